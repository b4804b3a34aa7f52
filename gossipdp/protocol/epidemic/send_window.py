"""The number of items that may be under way to one neighbour before it answers.

The window starts small, widens by one with each answer, and halves when one stays out (Jacobson, "Congestion avoidance
and control", SIGCOMM 1988). The timeout follows the last answer time and doubles with each silence. Nothing here knows
the items or the receiver.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from gossipdp.protocol.patience import Patience, backed_off

__all__ = ["SendWindow"]

Key = TypeVar("Key", bound=Hashable)


class SendWindow(Generic[Key]):
    """The window and timeout of one neighbour.

    Args:
        most: largest window, items.
        again: least timeout in seconds, and the timeout before the first answer.
        first: window at the start, items.
    """

    def __init__(self, most: int, again: float, first: int = 1) -> None:
        self._most, self._patience = most, Patience(again)
        self._window = first
        self._repeats = 0
        self._overtaken = float("-inf")
        """latest send time of an answered item; older items get no backoff, because an answer overtook them"""
        self._sent: dict[Key, float] = {}
        """send time of each item under way, the oldest first"""
        self._lost: set[Key] = set()
        """items sent again: their answers are ambiguous and teach no time (Karn & Partridge 1987)"""
        self._at: float | None = float("inf")
        """cached result of `timer`; None after a change"""

    def __contains__(self, key: Key) -> bool:
        return key in self._sent

    @property
    def room(self) -> bool:
        """Whether another item may be sent."""
        return len(self._sent) < self._window

    def sent(self, key: Key, now: float) -> None:
        """Record that an item was sent."""
        self._sent.pop(key, None)
        self._sent[key] = now
        self._at = None

    def answered(self, keys: Iterable[Key], now: float) -> None:
        """Record answers to items. Each widens the window."""
        for key in keys:
            since = self._sent.pop(key, None)
            if since is not None and key not in self._lost:
                self._patience.answered(now - since)
                self._repeats = 0
                self._overtaken = max(self._overtaken, since)
            if since is not None:
                self._window = min(self._most, self._window + 1)
            self._lost.discard(key)
        self._at = None

    def forget(self, keys: Iterable[Key]) -> None:
        """Forget items that the receiver no longer needs."""
        for key in keys:
            self._sent.pop(key, None)
            self._lost.discard(key)
        self._at = None

    def lost(self, now: float) -> list[Key]:
        """Remove and return the items whose timeout has passed, and halve the window."""
        if not self._sent or now < self.timer():
            return []
        gone = [key for key, since in self._sent.items() if self._lost_at(since) <= now]
        for key in gone:
            del self._sent[key]
            self._lost.add(key)
        self._at = None
        self._window = max(2, self._window // 2)
        self._repeats += 1
        return gone

    def timer(self) -> float:
        """Time of the next timeout; infinity while nothing is under way."""
        if self._at is None:
            self._at = self._lost_at(next(iter(self._sent.values()))) if self._sent else float("inf")
        return self._at

    def _lost_at(self, since: float) -> float:
        silences = 0 if since < self._overtaken else self._repeats
        return since + backed_off(self._patience.seconds, silences)
