"""Logs the network's state to TensorBoard or an experiment tracker, beside training and never in its thread.

A thread asks the daemon at an interval and writes one point. A tracker that takes longer than the interval loses points
instead of holding anything up. Nothing here imports a tracker.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from gossipdp.errors import ConfigError
from gossipdp.training.messages import log

__all__ = ["Points", "TrackerLog", "points_of"]

CLOSES_WITHIN: Final = 5.0
"""seconds that `close` waits for a tracker"""
AGAIN: Final = 600.0
"""seconds between two warnings"""
STATUS: Final = (
    "round",
    "samples_per_second",
    "network_samples_per_second",
    "consensus_distance",
    "consensus_ratio",
    "stall_seconds",
    "sent_bytes",
    "received_bytes",
)
"""keys of `gossipdp status --json` that are logged"""

Points: TypeAlias = dict[str, float]
"""value by name"""


class TrackerLog:
    """The thread that logs, and what it has lost.

    Args:
        run: where to write: an object with `add_scalar(name, value, step)`, such as TensorBoard's SummaryWriter, or
            with `log(values, step=step)`, such as a run of W&B, or the module.
        every: seconds between two points.
        look: what to write now, and the step. Called in the thread.
        clock: seconds, monotonic.

    Raises:
        ConfigError: GD-311, `run` has neither method, or `every` is not above 0.
    """

    def __init__(
        self,
        run: Any,
        every: float,
        look: Callable[[], tuple[Points, int]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not every > 0:
            raise ConfigError("GD-311", "the interval of a log must be above 0 s", seen=str(every), do="leave it out")
        self._write, self._run, self._look = _writer(run), run, look
        self._every, self._now = every, clock
        self._name = f"{type(run).__module__}.{type(run).__qualname__}"
        self._warned_at = -math.inf
        self.dropped = 0
        """points that were not written, because the tracker was busy or failed"""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="gossipdp log", daemon=True)

    def start(self) -> None:
        """Begin to log."""
        self._thread.start()

    def close(self) -> None:
        """Write a last point, let the tracker flush, and end. Waits for that, but not for long."""
        self._over.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CLOSES_WITHIN)
            if self._thread.is_alive():
                log.warning("%s is still busy after %.0f s: its last points may be lost", self._name, CLOSES_WITHIN)

    def _follow(self) -> None:
        due = self._now() + self._every
        while not self._over.wait(max(0.0, due - self._now())):
            due = self.turn(due)
        self.point()
        flush = getattr(self._run, "flush", None)
        if callable(flush):
            try:
                flush()
            except Exception as error:
                self._lose(0, repr(error))

    def turn(self, due: float) -> float:
        """Write the point that was due at a time, and drop those that came due meanwhile. Returns when the next is."""
        self.point()
        late = self._now() - due
        missed = int(late // self._every)
        if missed:
            self._lose(missed, f"a point took {late:.0f} s")
        return due + (1 + missed) * self._every

    def point(self) -> None:
        """Write one point now."""
        try:
            found, step = self._look()
            values = {f"gossipdp/{name}": value for name, value in found.items() if math.isfinite(value)}
            if values:
                self._write(values, step)
        except Exception as error:  # of the tracker's own: training must not hear of it
            self._lose(1, repr(error))

    def _lose(self, points: int, why: str) -> None:
        self.dropped += points
        now = self._now()
        if now - self._warned_at >= AGAIN:
            self._warned_at = now
            log.warning("%s: %s; %d points of the log were dropped so far", self._name, why, self.dropped)


def points_of(status: Mapping[str, Any] | None) -> Points:
    """What is logged of a daemon's status; nothing without one."""
    if status is None:
        return {}
    found = {name: status.get(name) for name in STATUS}
    members = status.get("members")
    found["members"] = members.get("alive") if isinstance(members, Mapping) else None
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def _writer(run: Any) -> Callable[[Points, int], object]:
    if callable(getattr(run, "add_scalar", None)):

        def add(values: Points, step: int) -> None:
            for name, value in values.items():
                run.add_scalar(name, value, step)

        return add
    if callable(getattr(run, "log", None)):
        return lambda values, step: run.log(values, step=step)
    raise ConfigError(
        "GD-311",
        "gossipdp cannot log to this object",
        seen=f"{type(run).__qualname__} has neither add_scalar nor log",
        do="pass a SummaryWriter of TensorBoard, or a run with log(values, step=...)",
    )
