"""Plays optimizers in processes of their own, because torch's hooks see every optimizer of a process; keeps rows."""

from __future__ import annotations

import gc
import io
import json
import multiprocessing
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import torch

from simulations.lab.pages.report import commit
from simulations.optimizers.catalogue import Kind, installed
from simulations.optimizers.trial import Row, play

__all__ = ["Played", "keep", "kept", "played"]

ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Played:
    """A row, and how it came about."""

    row: Row
    seconds: float
    """of a core"""
    commit: str
    version: str
    """of the optimizer's library"""


def played(kinds: Sequence[Kind], jobs: int) -> Iterator[Played]:
    """The rows in order."""
    now = commit(ROOT)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_begin) as pool:
        for row, seconds in pool.map(_play, kinds):
            yield Played(row, round(seconds, 1), now, installed(row.key.partition(".")[0]))


def keep(each: Played, file: Path) -> None:
    """Add a line of JSON."""
    with file.open("a") as lines:
        lines.write(json.dumps(asdict(each)) + "\n")


def kept(file: Path) -> dict[str, Played]:
    """What a file keeps, by optimizer. A row of another version of a library than the installed one is left out."""
    found = dict[str, Played]()
    for line in file.read_text().splitlines() if file.exists() else []:
        read = json.loads(line)
        row = Row(**read.pop("row"))
        each = Played(replace(row, told=tuple(row.told)), **read)
        if each.version == installed(row.key.partition(".")[0]):
            found[row.key] = each
    return found


def _begin() -> None:
    """A worker has one thread and says nothing."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sys.stdout = sys.stderr = io.StringIO()


def _play(kind: Kind) -> tuple[Row, float]:
    assert kind.cls is not None  # its library is imported before the objects are frozen
    gc.freeze()  # `attach` looks through all objects for copies of the model
    began = time.process_time()
    return play(kind), time.process_time() - began
