"""What a peer remembers of others between two exchanges: since when they are known, when they met, their latest offer,
and time they have wasted.

An exchange keeps its two peers from all others until it ends. One that mixes nothing, for a word was lost or a host has
died, costs both the same; but one side that never comes to the point, or at a crawl, and is always there with the next
offer, would have all of the other's time. So whoever has wasted some is left alone for at least as long, and for twice
as long at each exchange in a row that mixed nothing, up to a minute, as long as there is anybody else. One exchange
that is worth its time, and all is forgotten. Nothing is proven by it, and it is no strike (`strikes`): an honest peer
on a bad link is met less often for a while, and that serves both.

Whoever appears later than this peer's first RAMP rounds is new to it, and moves it by a tenth of the usual weight at
first, by all of it after RAMP rounds more: a key costs nothing, and one that has been set aside must not be back at
full weight under another at once. Those found at the start vouched for the state that this peer has; a network that is
young itself knows nobody longer. A member that restarts, or comes back from the far side of a cut, is not new.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable
from typing import Final, NamedTuple

__all__ = ["Acquaintances"]

MOST = 4096
"""members of whom anything is remembered"""
MOST_KNOWN: Final = 16_384
"""members of whom it is remembered since when they are known: as many as membership holds"""
RAMP: Final = 10
"""rounds of this peer in which a newcomer's weight rises to the whole"""
AGAIN: Final = 100
"""rounds of this peer after which it tells again of other settings"""
SLOW: Final = 4.0
"""an exchange is worth its time if it takes no longer than so many times what its chunks usually take"""
SHORTEST: Final = 0.1
"""seconds that an exchange in vain counts for, at the least"""
LONGEST: Final = 60.0
"""seconds that a member is left alone for what it has wasted before, at the most"""


class _Wasted(NamedTuple):
    times: int
    """exchanges in a row that mixed nothing"""
    until: float


class Acquaintances:
    def __init__(self) -> None:
        self._met: OrderedDict[bytes, int] = OrderedDict()
        """round of this peer in which an exchange with each began last"""
        self._since: dict[bytes, int] = {}
        """round of this peer from which each counts as known"""
        self._latest: OrderedDict[bytes, int] = OrderedDict()
        self._wasted: OrderedDict[bytes, _Wasted] = OrderedDict()
        self._differing: OrderedDict[bytes, int] = OrderedDict()
        """the round of this peer in which it was told last that they have other settings"""

    def appeared(self, peer: bytes, round: int, members: Container[bytes]) -> None:
        """`peer` is there; if it was not before, it is new. members: whom membership knows; the others make room."""
        if peer in self._since:
            return
        if len(self._since) >= MOST_KNOWN:
            self._since = {known: since for known, since in self._since.items() if known in members}
        self._since[peer] = round if round >= RAMP else -RAMP

    def share(self, peer: bytes, round: int) -> float:
        """Of the usual weight, with which `peer` may move this one in `round`."""
        return min(1.0, (round - self._since.get(peer, round if round >= RAMP else -RAMP) + 1) / RAMP)

    def met(self, partner: bytes, round: int) -> None:
        """An exchange with `partner` begins."""
        self._met[partner] = round
        _keep(self._met, partner)

    def has_met(self, partner: bytes, since: int) -> bool:
        """Has this peer met `partner` in round `since` or later?"""
        return self._met.get(partner, since - 1) >= since

    def meets(self, round: int) -> set[bytes]:
        """Whom this peer has met in `round`."""
        return {partner for partner, latest in self._met.items() if latest == round}

    def dealt_with(self, source: bytes, exchange: int) -> bool:
        """Is this offer no news? A copy that comes late must not begin the exchange anew."""
        return exchange <= self._latest.get(source, 0)

    def accepted(self, source: bytes, exchange: int) -> None:
        """The offers of `source` up to this one are dealt with."""
        self._latest[source] = exchange
        _keep(self._latest, source)

    def differs(self, source: bytes, round: int) -> bool:
        """`source` has other settings: is that to be told? Not again for AGAIN rounds, whatever they are."""
        news = round >= self._differing.get(source, -AGAIN) + AGAIN
        if news:
            self._differing[source] = round
            _keep(self._differing, source)
        return news

    def parted(self, partner: bytes, chunks: int, seconds: float, usual: float, now: float) -> None:
        """An exchange is over that mixed so many chunks; usual: seconds these take, infinite if unknown."""
        before = self._wasted.pop(partner, None)
        if chunks and seconds <= SLOW * usual:
            return
        times = 0 if chunks else 1 if before is None else min(16, before.times + 1)
        waste = max(seconds - SLOW * usual, SHORTEST)
        alone = max(waste, min(waste * 2.0 ** max(0, times - 1), LONGEST))
        self._wasted[partner] = _Wasted(times, now + alone)
        _keep(self._wasted, partner)

    def left_alone(self, possible: Iterable[bytes], now: float) -> dict[bytes, str]:
        """Who of those `possible` is to be left alone now, and why; nobody if it is all of them."""
        there = list(possible)
        waiting = [peer for peer in there if peer in self._wasted and now < self._wasted[peer].until]
        return dict.fromkeys(waiting, "slow") if len(waiting) < len(there) else {}


def _keep(table: OrderedDict[bytes, int] | OrderedDict[bytes, _Wasted], latest: bytes) -> None:
    """The one heard of longest ago makes room."""
    table.move_to_end(latest)
    if len(table) > MOST:
        table.popitem(last=False)
