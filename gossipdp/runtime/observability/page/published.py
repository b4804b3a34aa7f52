"""What the I/O thread publishes for the status page: finished bytes, and only while somebody watches.

The threads of the HTTP server note that they were asked, and read bytes. They touch nothing else of the daemon.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from gossipdp.runtime.plain_json import encode

__all__ = ["Dated", "Published"]

WATCHED: Final = 60.0
"""seconds after a request for which answers are published"""
EVERY: Final = 0.9
"""least seconds between two publications; the I/O thread looks twice a second"""
STALE: Final = 3.0
"""seconds after which an answer is too old"""
PATIENCE: Final = 4.0
"""most seconds that a request waits for an answer"""


class Dated(Protocol):
    """A record of the history; msgspec can encode it."""

    @property
    def time(self) -> float: ...


class Published:
    """The latest answers. `publish` belongs to the I/O thread, `status` and `history` to threads of the server.

    Args:
        clock: monotonic time in seconds.
        patience: most seconds that a request waits for an answer.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, patience: float = PATIENCE) -> None:
        self._clock, self._patience = clock, patience
        self._asked = self._made = float("-inf")
        self._fresh = threading.Event()
        self._status = b""
        self._history: tuple[tuple[float, bytes], ...] = ()
        """time and line of each record; replaced as a whole"""

    # -- the I/O thread --------------------------------------------------------------------------------------------

    def due(self) -> bool:
        """Whether somebody watches, and the answers have an age."""
        now = self._clock()
        return now < self._asked + WATCHED and now >= self._made + EVERY

    def publish(self, status: dict[str, Any], members: Iterable[dict[str, Any]], history: Sequence[Dated]) -> None:
        """Publish the answers to `status` and `members`, and the records of the history, the oldest first."""
        self._status = encode({"status": status, "members": list(members)})
        if [record.time for record in history[-1:]] != [told for told, _ in self._history[-1:]]:
            known = dict(self._history)
            self._history = tuple((each.time, known.get(each.time) or msgspec.json.encode(each)) for each in history)
        self._made = self._clock()
        self._fresh.set()

    # -- threads of the server -------------------------------------------------------------------------------------

    def status(self) -> bytes | None:
        """JSON with "status" and "members". None if the I/O thread publishes nothing in time."""
        return self._status if self._wait() else None

    def history(self, since: float) -> bytes | None:
        """A JSON list of the records after `since`, in seconds since 1970. None as for `status`."""
        if not self._wait():
            return None
        return b"[" + b",".join(line for told, line in self._history if told > since) + b"]"

    def _wait(self) -> bool:
        """Note that somebody watches. Wait until the answers are fresh, and return whether they are."""
        self._asked = now = self._clock()
        if now < self._made + STALE:
            return True
        self._fresh.clear()
        return self._fresh.wait(self._patience)
