"""Rumours that are not whole yet: who has each, who is sending it, and when to turn to somebody else.

Plumtree's timers (Leitao et al. 2007, section 3.7): a rumour that was only announced is waited for, as the tree may be
about to bring it, and then grafted from whoever announced it; if nothing comes from there, from the next. A sender that
brings parts of other rumours is not silent, only busy, and is given longer. No message is here, and no payload.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

__all__ = ["MAX_ANNOUNCED", "MAX_FETCHES", "Fetch", "Fetches"]

MAX_FETCHES: Final = 4096
MAX_ANNOUNCED: Final = 512
"""names that one peer has announced first and that nobody has shown yet"""
MAX_HOLDERS: Final = 8
BUSY: Final = 8.0
"""times as long that a sender is waited for which brings others meanwhile"""
LONGEST: Final = 4.0
"""patience grows up to so many times with each vain attempt"""


class Fetch:
    """holders: who has it, or will have it; the whole ones are asked first. source: who is sending it, b"" for nobody.
    seen: its header is here."""

    __slots__ = ("at", "epoch", "first", "holders", "moved_at", "name", "seen", "source", "tries")

    def __init__(self, name: bytes, epoch: int, first: bytes, now: float, at: float) -> None:
        self.name, self.epoch, self.first = name, epoch, first
        self.holders: dict[bytes, bool] = {}
        """True: it has all of it"""
        self.source = b""
        self.seen = False
        self.tries = 0
        self.moved_at, self.at = now, at


class Fetches:
    """`at` is when to look at them next."""

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

    def of(self, epoch_before: int) -> list[Fetch]:
        """Those of epochs before this one."""
        return [fetch for fetch in self._all.values() if fetch.epoch < epoch_before]

    def announced(self, name: bytes, epoch: int, peer: bytes, now: float, wait: float) -> bool:
        """`peer` has it whole. False if there is no room for more such words."""
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
        """Its header has come from `peer`, which pushes it; for the first time."""
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
        """`peer` would push it, too."""
        _hold(fetch, peer)

    def moved(self, name: bytes, now: float) -> float:
        """A part has come; returns since when it was waited for."""
        fetch = self._all[name]
        since, fetch.moved_at, fetch.tries = fetch.moved_at, now, 0
        return since

    def end(self, name: bytes) -> Fetch | None:
        fetch = self._all.pop(name, None)
        if fetch is not None:
            self._seen(fetch)
        return fetch

    def denied(self, name: bytes, peer: bytes, now: float) -> None:
        """`peer` cannot send it, or what it sends is no good."""
        fetch = self._all.get(name)
        if fetch is not None:
            fetch.holders.pop(peer, None)
            if fetch.source == peer:
                fetch.source, fetch.at = b"", now
                self._at = now

    def postponed(self, name: bytes, now: float, wait: float, patience: float) -> None:
        """There is no room for it yet: it is asked for again, ever later."""
        fetch = self._all.get(name)
        if fetch is not None:
            fetch.source, fetch.at = b"", now + min(wait * 2.0 ** min(fetch.tries, MAX_HOLDERS), patience)
            self._at = min(self._at, fetch.at)

    def lost(self, peer: bytes, now: float) -> None:
        """`peer` is gone."""
        for name in [name for name, fetch in self._all.items() if peer in fetch.holders or fetch.source == peer]:
            self.denied(name, peer, now)

    def _seen(self, fetch: Fetch) -> None:
        if not fetch.seen:
            fetch.seen = True
            self._announced[fetch.first] -= 1
            if not self._announced[fetch.first]:
                del self._announced[fetch.first]

    def timer(self) -> float:
        return self._at

    def due(self, now: float) -> list[Fetch]:
        """Those to be looked at now."""
        if now < self._at:
            return []
        due = [fetch for fetch in self._all.values() if fetch.at <= now]
        if not due:
            self.looked()
        return due

    def looked(self) -> None:
        """All that were due have a new time."""
        self._at = min((fetch.at for fetch in self._all.values()), default=float("inf"))

    def waits(self, fetch: Fetch, part_at: float, patience: float, now: float) -> bool:
        """Its source is not to be given up yet: when it last sent a part of any rumour was `part_at`."""
        if not fetch.source:
            return False
        fetch.at = min(max(fetch.moved_at, part_at) + patience, fetch.moved_at + BUSY * patience)
        return fetch.at > now

    def turn(self, fetch: Fetch, patience: float, now: float) -> bytes:
        """Whom to ask now: another holder than before, if there is one; b"" if nobody has it."""
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
        # The only one that is said to have all of it may be silent, while another has the part that is missing.
        if fetch.tries % 2:
            order.sort(key=lambda peer: not fetch.holders[peer])
        fetch.source = order[0]
        return fetch.source


def _hold(fetch: Fetch, peer: bytes, *, whole: bool = False) -> None:
    if peer not in fetch.holders and len(fetch.holders) >= MAX_HOLDERS and fetch.tries:
        # Whoever was asked last stands last, and has not sent it.
        fetch.holders.popitem()
    if peer in fetch.holders or len(fetch.holders) < MAX_HOLDERS:
        fetch.holders[peer] = fetch.holders.get(peer, False) or whole
