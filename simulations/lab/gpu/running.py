"""A run under way, and how it is kept on disk, with optimizers and open exchanges.

A file is what `pickle` makes of the run, besides the replicas. Methods hold rows of the replicas as views; these are
named, so they are views again when the run is read. This module knows no method.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simulations.lab.core import Method
from simulations.lab.gpu.lab import DeviceLab, Measurement, measured
from simulations.lab.gpu.model import TokenGpt

__all__ = ["Running"]


@dataclass
class Running:
    """A run under way."""

    lab: DeviceLab
    method: Method
    points: list[Measurement]
    round: int = 0
    """rounds that are over"""
    seconds: float = 0.0
    """that it has taken"""

    @classmethod
    def begin(cls, lab: DeviceLab, method: Method) -> Running:
        """A run whose warm start is over."""
        began = time.monotonic()
        method.begin(lab)
        lab.start()
        return cls(lab, method, [measured(lab, method, 0)], seconds=time.monotonic() - began)

    @property
    def whole(self) -> bool:
        return self.round == self.lab.setting.rounds

    def advance(self) -> Measurement | None:
        """Play one round. Returns a measurement where the setting wants one."""
        began, every = time.monotonic(), self.lab.setting.evaluate_every
        self.method.round(self.lab)
        self.round += 1
        due = self.round % every == 0 or self.whole
        if due:
            self.points.append(measured(self.lab, self.method, self.round))
        self.seconds += time.monotonic() - began
        return self.points[-1] if due else None

    def save(self, path: Path) -> None:
        """Write the run to `path`, at once or not at all."""
        x, partial = self.lab.x, path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.save(file, x.numpy())
            _Pickler(file, self.lab).dump(self)
        partial.replace(path)

    @classmethod
    def read(cls, path: Path, problem: TokenGpt) -> Running:
        """The run that `save` wrote. The caller wrote the file itself: reading it runs what it says."""
        with path.open("rb") as file:
            x = torch.from_numpy(np.load(file))
            x = x.pin_memory() if problem.device == "cuda" else x
            run = _Unpickler(file, problem, x).load()
        assert isinstance(run, cls)
        run.lab.take(x)
        return run


class _Pickler(pickle.Pickler):
    """Leaves out the problem, and names rows of `x`, which methods hold as views."""

    def __init__(self, file: Any, lab: DeviceLab) -> None:
        super().__init__(file, protocol=5)
        self._problem, self._x = lab.problem, lab.x.numpy()

    def persistent_id(self, obj: Any) -> int | None:
        if obj is self._problem:
            return -1
        if isinstance(obj, np.ndarray) and np.may_share_memory(obj, self._x):
            return (obj.ctypes.data - self._x.ctypes.data) // self._x.strides[0]
        return None


class _Unpickler(pickle.Unpickler):
    """Reads what `_Pickler` wrote."""

    def __init__(self, file: Any, problem: TokenGpt, x: Tensor) -> None:
        super().__init__(file)
        self._problem, self._x = problem, x

    def persistent_load(self, pid: Any) -> Any:
        return self._problem if pid < 0 else self._x[pid].numpy()
