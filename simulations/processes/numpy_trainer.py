"""A training process without torch: a vector that a test or a benchmark moves, attached to a real daemon.

It uses the link of `gossipdp.attach` and follows the same rules: drain before submit, and one snapshot at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gossipdp.errors import UnreachableError
from gossipdp.protocol.schema import Schema
from gossipdp.runtime import link as links
from simulations.processes.progress import undelayed

__all__ = ["NumpyTrainer"]


class NumpyTrainer:
    """A training process.

    Args:
        home: the peer's folder.
        x: parameters, fp32, shape (parameters,). Call `step` after each change.
        timeout: longest wait in seconds for the daemon, on the clock `undelayed`.
    """

    def __init__(self, home: Path, x: NDArray[np.float32], *, timeout: float = 60.0) -> None:
        self.x = x.astype(np.float32)
        self.schema = Schema.of([("x", (len(x),), "float32", "parameter")])
        self.every, self.session, self.applied, self.snapshots = 0, 0, 0, 0
        self.steps = self.drains = 0
        self._since = 0
        self._taken = True
        self._slot: links.Slot | None = None
        """the slot to drain"""
        self._sealed: int | None = None
        """while this process holds the region's token: number of the last slot that was sealed"""
        self._width = 0
        deadline = undelayed() + timeout
        self._link = self._connect(home, deadline)
        self._link.hello(self.schema)
        self._until(lambda: self._link.region is not None, deadline)
        assert self._link.region is not None
        self._link.region.buffers[0][: len(x)] = self.x
        self._link.send(links.Ready())
        self._until(lambda: self.session > 0, deadline)
        self.x[:] = self._link.region.buffers[0][: len(x)]
        self._link.send(links.Applied(self.session, 0))

    @property
    def lost(self) -> str:
        """Why the daemon is gone; an empty string while it runs."""
        return self._link.lost

    def _connect(self, home: Path, deadline: float) -> links.Link:
        while True:
            try:
                return links.Link.connect(home)
            except UnreachableError:
                if undelayed() > deadline:
                    raise
                time.sleep(0.05)

    def _until(self, condition: Callable[[], bool], deadline: float) -> None:
        while not condition():
            if self._link.lost or undelayed() > deadline:
                raise TimeoutError(self._link.lost or "the daemon does not answer")
            self._link.wait(0.2)
            self._hear()

    def _hear(self) -> None:
        for message in self._link.receive():
            match message:
                case links.Session(session, every, _, width):
                    self.session, self.every, self._width = session, every, width
                case links.Pace(every):
                    self.every = every
                case links.Taken():
                    self._taken = True
                case links.Slot():
                    self._slot = message
                case links.Refused(code, cause, seen, _):
                    raise ConnectionRefusedError(f"{code} {cause}: {seen}")

    def step(self, *, submit: bool | None = None) -> None:
        """One step boundary: handle messages, drain, and submit when due, or as `submit` says."""
        self.steps += 1
        self._since += 1
        self._hear()
        self._drain()
        due = self._since >= self.every if submit is None else submit
        region = self._link.region
        if due and self._taken and region is not None:
            if self._sealed is None:
                self._sealed = region.take()
            if self._sealed != self.applied:
                return  # a slot is being sealed, or its message is on its way
            self._sealed = None
            self.snapshots += 1
            snapshot = region.buffers[self.applied % 2]
            snapshot[: len(self.x)], snapshot[len(self.x) :] = self.x, 0.0
            self._taken = False
            self._link.send(links.Submit(self.session, self.snapshots, self.applied, self._since, self._since))
            self._since = 0

    def _drain(self) -> None:
        slot, self._slot = self._slot, None
        if slot is None:
            return
        assert self._link.region is not None
        corrections = self._link.region.buffers[slot.slot % 2]
        for first, last in slot.spans:
            span = slice(first * self._width, min((last + 1) * self._width, len(self.x)))
            self.x[span] += corrections[span]
        self.applied = slot.slot
        self.drains += 1
        self._link.send(links.Applied(self.session, slot.slot))

    def wait(self, seconds: float) -> None:
        """Wait while handling messages and draining."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._link.wait(left)
            self._hear()
            self._drain()

    def close(self) -> None:
        self._link.close()
