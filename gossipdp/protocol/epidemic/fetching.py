"""Increments that are not complete yet: their holders, the peer that sends each, and when to ask another one.

These are the timers of Plumtree (Leitao et al. 2007, section 3.7). A peer waits for an announced increment, because the
tree may bring it, and then grafts the link to an announcer. If no part comes, it asks the next holder. A sender that
brings parts of other increments is busy, and gets more time. No message or payload is handled here.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

__all__ = ["MAX_ANNOUNCED", "MAX_FETCHES", "Fetch", "Fetches"]

MAX_FETCHES: Final = 4096
"""largest number of fetches"""
MAX_ANNOUNCED: Final = 512
"""largest number of names that one peer announced first and that have no header yet"""
MAX_HOLDERS: Final = 8
"""largest number of holders that a fetch remembers"""
BUSY: Final = 8.0
"""longest wait for a busy sender, in units of the patience"""
LONGEST: Final = 4.0
"""largest factor on the patience by failed attempts"""


class Fetch:
    """One increment on its way to this peer.

    Args:
        epoch: its epoch.
        first: the peer that named it first.
        at: when to look at it next.
    """

    __slots__ = ("at", "epoch", "first", "holders", "moved_at", "name", "seen", "source", "tries")

    def __init__(self, name: bytes, epoch: int, first: bytes, now: float, at: float) -> None:
        self.name, self.epoch, self.first = name, epoch, first
        self.holders: dict[bytes, bool] = {}
        """peers that have it or will have it; True for a peer that has all of it, which is asked first"""
        self.source = b""
        """the peer that sends it, b"" for none"""
        self.seen = False
        """its header is here"""
        self.tries = 0
        """attempts since its last part"""
        self.moved_at, self.at = now, at


class Fetches:
    """All fetches of one peer."""

    def __init__(self) -> None:
        self._all: dict[bytes, Fetch] = {}
        self._announced: Counter[bytes] = Counter()
        self._at = float("inf")

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, name: bytes) -> bool:
        return name in self._all

    def get(self, name: bytes) -> Fetch | None:
        return self._all.get(name)

    def before(self, epoch: int) -> list[Fetch]:
        """The fetches of epochs before this one."""
        return [fetch for fetch in self._all.values() if fetch.epoch < epoch]

    def announced(self, name: bytes, epoch: int, peer: bytes, now: float, wait: float) -> bool:
        """`peer` announced that it has the whole increment. False if there is no room for another name."""
        fetch = self._all.get(name)
        if fetch is None:
            if len(self._all) >= MAX_FETCHES or self._announced[peer] >= MAX_ANNOUNCED:
                return False
            fetch = self._all[name] = Fetch(name, epoch, peer, now, now + wait)
            self._announced[peer] += 1
            self._at = min(self._at, fetch.at)
        elif not fetch.holders and not fetch.source:
            fetch.at = min(fetch.at, now + wait)
            self._at = min(self._at, fetch.at)
        _hold(fetch, peer, whole=True)
        return True

    def shown(self, name: bytes, epoch: int, peer: bytes, now: float, patience: float) -> Fetch:
        """The header came for the first time, from `peer`, which pushes the increment."""
        fetch = self._all.get(name) or Fetch(name, epoch, peer, now, now)
        if name in self._all:
            self._seen(fetch)
        self._all[name] = fetch
        fetch.seen, fetch.source, fetch.moved_at = True, peer, now
        fetch.at = now + patience
        self._at = min(self._at, fetch.at)
        _hold(fetch, peer)
        return fetch

    def offered(self, fetch: Fetch, peer: bytes) -> None:
        """`peer` would push it too."""
        _hold(fetch, peer)

    def switch(self, fetch: Fetch, source: bytes) -> None:
        """`source` sends it from now on."""
        fetch.source = source

    def moved(self, name: bytes, now: float) -> float:
        """A part has come. Returns the time since when the peer waited for it."""
        fetch = self._all[name]
        since, fetch.moved_at, fetch.tries = fetch.moved_at, now, 0
        return since

    def end(self, name: bytes) -> Fetch | None:
        """Remove a fetch that is complete or of no use any more, and return it."""
        fetch = self._all.pop(name, None)
        if fetch is not None:
            self._seen(fetch)
        return fetch

    def denied(self, name: bytes, peer: bytes, now: float) -> None:
        """`peer` cannot send it, or sent something wrong."""
        fetch = self._all.get(name)
        if fetch is not None:
            fetch.holders.pop(peer, None)
            if fetch.source == peer:
                fetch.source, fetch.at = b"", now
                self._at = now

    def postponed(self, name: bytes, now: float, wait: float, patience: float) -> None:
        """There is no room for it yet: ask again, later each time."""
        fetch = self._all.get(name)
        if fetch is not None:
            fetch.source, fetch.at = b"", now + min(wait * 2.0 ** min(fetch.tries, MAX_HOLDERS), patience)
            self._at = min(self._at, fetch.at)

    def lost(self, peer: bytes, now: float) -> None:
        """`peer` has failed or left."""
        for name in [name for name, fetch in self._all.items() if peer in fetch.holders or fetch.source == peer]:
            self.denied(name, peer, now)

    def _seen(self, fetch: Fetch) -> None:
        if not fetch.seen:
            fetch.seen = True
            self._announced[fetch.first] -= 1
            if not self._announced[fetch.first]:
                del self._announced[fetch.first]

    def timer(self) -> float:
        """When to look at the fetches next."""
        return self._at

    def due(self, now: float) -> list[Fetch]:
        """The fetches to look at now."""
        if now < self._at:
            return []
        due = [fetch for fetch in self._all.values() if fetch.at <= now]
        if not due:
            self.looked()
        return due

    def looked(self) -> None:
        """Every due fetch has a new time."""
        self._at = min((fetch.at for fetch in self._all.values()), default=float("inf"))

    def waits(self, fetch: Fetch, part_at: float, patience: float, now: float) -> bool:
        """Whether to wait longer for its source.

        Args:
            part_at: when the source last sent a part of any increment.
            patience: seconds to wait for the next part.
        """
        if not fetch.source:
            return False
        fetch.at = min(max(fetch.moved_at, part_at) + patience, fetch.moved_at + BUSY * patience)
        return fetch.at > now

    def turn(self, fetch: Fetch, patience: float, now: float) -> bytes:
        """Choose the holder to ask now: another one than before, if possible. b"" if no holder is known."""
        fetch.tries += 1
        fetch.moved_at = now
        fetch.at = now + patience * min(LONGEST, 2.0 ** (fetch.tries - 1))
        if not fetch.holders:
            fetch.source = b""
            return b""
        asked = fetch.holders.pop(fetch.source, None)
        if asked is not None:
            fetch.holders[fetch.source] = asked
        order = [*fetch.holders]
        # Every second attempt prefers complete holders. In between, an incomplete holder may have the missing part.
        if fetch.tries % 2:
            order.sort(key=lambda peer: not fetch.holders[peer])
        fetch.source = order[0]
        return fetch.source


def _hold(fetch: Fetch, peer: bytes, *, whole: bool = False) -> None:
    if peer not in fetch.holders and len(fetch.holders) >= MAX_HOLDERS and fetch.tries:
        # The last holder was asked last, and has not sent it.
        fetch.holders.popitem()
    if peer in fetch.holders or len(fetch.holders) < MAX_HOLDERS:
        fetch.holders[peer] = fetch.holders.get(peer, False) or whole
