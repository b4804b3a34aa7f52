"""How much one neighbour is sent before it has answered for what it was sent before.

As many items are under way at once as the window allows. It starts small, widens by one with each answer, and halves
when one stays out (Jacobson, "Congestion avoidance and control", SIGCOMM 1988); patience is learnt from the answers and
doubles with each silence. What is sent is not known here, nor who gets it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from gossipdp.protocol.patience import Patience, backed_off

__all__ = ["Credit"]

Key = TypeVar("Key", bound=Hashable)


class Credit(Generic[Key]):
    """Args:

    most: items under way at once, at the most.
    again: seconds without an answer, until one has come, after which an item counts as lost.
    first: items under way at once to begin with.
    """

    def __init__(self, most: int, again: float, first: int = 1) -> None:
        self._most, self._patience = most, Patience(again)
        self._window = first
        self._repeats = 0
        self._overtaken = float("-inf")
        """what was sent before this was overtaken by an answer, and backing off would not help it"""
        self._sent: dict[Key, float] = {}
        """when each was sent, the longest ago first"""
        self._lost: set[Key] = set()
        """what counted as lost: an answer now may be to either, and teaches nothing (Karn, Partridge 1987)"""
        self._at: float | None = float("inf")
        """what `timer` returns; None when it is to be found anew"""

    def __contains__(self, key: Key) -> bool:
        return key in self._sent

    @property
    def room(self) -> bool:
        return len(self._sent) < self._window

    def sent(self, key: Key, now: float) -> None:
        self._sent.pop(key, None)
        self._sent[key] = now
        self._at = None

    def answered(self, keys: Iterable[Key], now: float) -> None:
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
        """These are of no interest to the receiver any more."""
        for key in keys:
            self._sent.pop(key, None)
            self._lost.discard(key)
        self._at = None

    def lost(self, now: float) -> list[Key]:
        """What has had no answer for too long; it counts as under way no more."""
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
        """Infinity while nothing is under way."""
        if self._at is None:
            self._at = self._lost_at(next(iter(self._sent.values()))) if self._sent else float("inf")
        return self._at

    def _lost_at(self, since: float) -> float:
        silences = 0 if since < self._overtaken else self._repeats
        return since + backed_off(self._patience.seconds, silences)
