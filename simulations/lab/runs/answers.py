"""Kept answers of the laboratory: one file per answer while a suite plays, one file per suite beside its page.

An answer is found by its task alone. It carries a fingerprint of the code that gave it, so answers of other code are
recognised. The files beside the pages are in the repository. So hours of playing can be divided among days and
machines. This module plays nothing (see `runs.py`) and knows no suite.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

__all__ = ["SUFFIX", "Answer", "Answers", "key", "machine", "pack", "rounded"]

SUFFIX: Final = ".jsonl.gz"
DIGITS: Final = 7
"""significant digits of every number, as many as fp32 has"""
UNREADABLE: Final = (OSError, EOFError, ValueError, KeyError, TypeError)
"""what reading a missing or damaged file can raise"""


@dataclass(frozen=True)
class Answer:
    result: dict[str, Any]
    code: str
    """fingerprint of the code that gave the answer"""
    cpu: float
    """seconds of one core"""
    error: str = ""
    """why the run failed: type, message, place; empty if it did not"""
    machine: str = ""
    """the machine that played it"""


def key(spec: Mapping[str, Any]) -> str:
    """Name of a task's answer, a function of its spec alone."""
    text = json.dumps(spec, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class Answers:
    """Answers in a folder, which new ones join, and answers packed beside pages.

    Args:
        folder: one file per answer.
        packed: a folder of files that `pack` wrote; None for none.
    """

    def __init__(self, folder: Path, packed: Path | None = None) -> None:
        self._folder = folder
        self._packed: dict[str, Answer] = {}
        for path in sorted(packed.glob(f"*{SUFFIX}")) if packed else ():
            self._packed |= _unpacked(path)

    def find(self, spec: Mapping[str, Any], code: str) -> Answer | None:
        """The answer that this code gave, otherwise an answer of other code, otherwise None."""
        place = key(spec)
        found = [one for one in (self._kept(place), self._packed.get(place)) if one is not None]
        return next((one for one in found if one.code == code), found[0] if found else None)

    def keep(self, spec: Mapping[str, Any], answer: Answer) -> None:
        path = self._path(key(spec))
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"spec": spec, **_row(answer)}, default=list))
        partial.replace(path)

    def _kept(self, place: str) -> Answer | None:
        try:
            return _answer(json.loads(self._path(place).read_text()))
        except UNREADABLE:
            return None

    def _path(self, place: str) -> Path:
        return self._folder / f"{place}.json"


def pack(path: Path, specs: Mapping[str, Mapping[str, Any]], answers: Mapping[str, Answer]) -> None:
    """Write these answers and their specs, sorted by name: equal answers give equal files. Failed runs are left out."""
    lines = [
        json.dumps({"key": place, "spec": specs[place], **_row(answers[place])}, default=list, sort_keys=True)
        for place in sorted(answers)
        if not answers[place].error
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    partial.replace(path)


def _unpacked(path: Path) -> dict[str, Answer]:
    """The answers in a packed file; none if it is damaged."""
    try:
        rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        return {row["key"]: _answer(row) for row in rows}
    except (*UNREADABLE, zlib.error):
        return {}


def _row(answer: Answer) -> dict[str, Any]:
    return {"code": answer.code, "cpu": round(answer.cpu, 2), "machine": answer.machine, "told": answer.result}


def _answer(row: Mapping[str, Any]) -> Answer:
    return Answer(row["told"], row["code"], row["cpu"], machine=row["machine"])


def rounded(result: Any) -> Any:
    """The same value with DIGITS significant digits, so fresh and kept answers compare equal."""
    if isinstance(result, float):
        return float(f"{result:.{DIGITS}g}")
    if isinstance(result, list):
        return [rounded(one) for one in result]
    if isinstance(result, dict):
        return {name: rounded(one) for name, one in result.items()}
    return result


def machine() -> str:
    """Processor, cores, system and versions of this machine."""
    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
    return f"{model}, {os.cpu_count()} cores, {platform.system()}; {versions}"
