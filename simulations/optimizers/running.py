"""Plays optimizers in processes of their own: torch's hooks see every optimizer of a process."""

from __future__ import annotations

import gc
import io
import multiprocessing
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import torch

from simulations.optimizers.catalogue import Kind
from simulations.optimizers.trial import Row, play

__all__ = ["played"]


def played(kinds: Sequence[Kind], jobs: int) -> Iterator[tuple[Row, float]]:
    """The rows in order, each with the seconds of a core that it took."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_begin) as pool:
        yield from pool.map(_play, kinds)


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
