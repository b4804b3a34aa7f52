"""Waits that a busy machine does not break: they end when nothing moves, not when a time is over.

`undelayed` is a clock that stands while a thread of this process or of its descendants waits for a CPU. A process that
hangs waits for no CPU, so the clock goes on. `until` waits for a condition. It fails after `STALL` seconds of that
clock in which neither the condition came true nor the count that it watches moved.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from time import monotonic  # itself: tests replace the one in the module
from typing import Protocol, TypeVar

__all__ = ["STALL", "delay", "stalled", "undelayed", "until"]

STALL = 60.0
"""seconds without progress"""
LOOK = 0.02
"""seconds between two checks of a condition"""
SAMPLE = 0.5
"""seconds between two looks at all threads; a longer delay of a thread counts in part"""

T = TypeVar("T")


class Logged(Protocol):
    """What an error tells of a host."""

    name: str

    def ends(self) -> str: ...
    def last_words(self) -> str: ...


class _Clock:
    """Seconds since it was made. From each interval it takes off the longest that any one thread waited for a CPU."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._looked, self._delays = monotonic(), dict(_delays())

    def __call__(self) -> float:
        now = monotonic()
        if now - self._looked >= SAMPLE:
            before, self._delays = self._delays, dict(_delays())
            longest = max((found - before.get(thread, 0.0) for thread, found in self._delays.items()), default=0.0)
            self._seconds += max(0.0, now - self._looked - max(0.0, longest))
            self._looked = now
        return self._seconds


def _delays() -> Iterator[tuple[int, float]]:
    """Id of each thread of this process and of its descendants, and the seconds that it has waited for a CPU."""
    processes = ["self"]
    for pid in processes:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                # A thread may end between two reads.
                with contextlib.suppress(OSError):
                    yield int(thread), _delay(f"/proc/{pid}/task/{thread}/schedstat")
                    with open(f"/proc/{pid}/task/{thread}/children") as children:
                        processes += children.read().split()


def _delay(path: str) -> float:
    """By the kernel's statistics of its scheduler. 0 from a kernel that keeps none: all seconds count there."""
    with contextlib.suppress(OSError, IndexError), open(path) as file:
        return int(file.read().split()[1]) / 1e9
    return 0.0


def delay() -> float:
    """Seconds that this thread has waited for a CPU."""
    return _delay(f"/proc/self/task/{threading.get_native_id()}/schedstat")


undelayed = _Clock()
_last = 0.0


def stalled(*, moved: bool = False) -> float:
    """Undelayed seconds since anything moved in this process; `moved` says that something does now."""
    global _last
    now = undelayed()
    if moved:
        _last = now
    return now - _last


def until(
    what: str,
    condition: Callable[[], T],
    told: Iterable[Logged] = (),
    *,
    moves: Callable[[], Hashable] = lambda: None,
    meanwhile: Callable[[], object] = lambda: select.select([], [], [], LOOK),
    seconds: float = STALL,
) -> T:
    """Wait for the first true result of `condition` and return it.

    Args:
        what: name of the condition.
        told: hosts whose logs are part of the error.
        moves: how far it has come. Each value that was not there before begins the limit anew.
        meanwhile: what is done between two looks at the condition; by default a short pause.
        seconds: the limit, on the clock `undelayed`.

    Raises:
        AssertionError: no true result, and no new value of `moves`, within `seconds`.
    """
    seen = set[Hashable]()
    begun, since = monotonic(), undelayed()
    while not (found := condition()):
        if (reached := moves()) not in seen:
            seen.add(reached)
            since = undelayed()
            stalled(moved=True)
        elif undelayed() - since > seconds:
            ended_first = sorted(told, key=lambda host: not host.ends())
            logs = "".join(f"\n--- {host.name}{host.ends()}\n{host.last_words()}" for host in ended_first)
            waited = f"{seconds:g} s without progress, {monotonic() - begun:.0f} s in all"
            raise AssertionError(f"{what}: {waited}; it came to {reached!r}; the last look gave {found!r}{logs}")
        meanwhile()
    stalled(moved=True)
    return found
