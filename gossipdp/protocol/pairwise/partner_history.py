"""What a peer remembers of others between exchanges: when they appeared and met, their latest offer, wasted time.

An exchange keeps its two peers from all others until it ends. A partner that stalls and offers again at once could take
all of a peer's time. So a partner that has wasted time is left alone for at least as long, while there is another. Each
further exchange in a row that mixed nothing doubles that, up to a minute. One exchange worth its time clears the
record. This is no strike (`strikes`): an honest peer on a bad link is met less often for a while.

A partner that does not answer an offer is offered none for as long, which doubles in the same way. Its own offers are
taken all the while, and an exchange that mixes clears that record, too. Once a stranger does not answer, members with
which an exchange has mixed come first, until one has with a stranger.

A member that appears after this peer's first RAMP rounds is new. It moves this peer by a tenth of the usual weight at
first, and by all of it after RAMP rounds more. Keys cost nothing, so a member that was set aside must not return at
full weight under a new key. A member that restarts, or returns after a partition, is not new.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable
from typing import Final, NamedTuple

from gossipdp.protocol.causes import Objection

__all__ = ["PartnerHistory"]

MOST = 4096
"""members with an entry, at most"""
MOST_KNOWN: Final = 16_384
"""members whose first round is remembered: as many as membership holds"""
RAMP: Final = 10
"""rounds of this peer in which a newcomer's weight rises to the usual one"""
AGAIN: Final = 100
"""rounds of this peer after which a notice about other settings is repeated"""
SLOW: Final = 4.0
"""an exchange is worth its time if it takes at most this multiple of what its chunks usually take"""
SHORTEST: Final = 0.1
"""seconds that an exchange without a mixed chunk counts as, at least"""
LONGEST: Final = 60.0
"""seconds for which repeated waste leaves a member alone, at most"""


class _Wasted(NamedTuple):
    times: int
    """exchanges in a row that mixed nothing, or offers in a row without an answer"""
    until: float


class PartnerHistory:
    """The record of one peer about its partners."""

    def __init__(self) -> None:
        self._met: OrderedDict[bytes, int] = OrderedDict()
        """this peer's round of the latest exchange with each"""
        self._since: dict[bytes, int] = {}
        """this peer's round from which each counts as known"""
        self._latest: OrderedDict[bytes, int] = OrderedDict()
        self._wasted: OrderedDict[bytes, _Wasted] = OrderedDict()
        self._silent: OrderedDict[bytes, _Wasted] = OrderedDict()
        """members that did not answer this peer's last offers"""
        self._familiar: OrderedDict[bytes, int] = OrderedDict()
        """members with which an exchange mixed since they last did not answer; all others are strangers"""
        self._doubtful = False
        """the last stranger asked did not answer, and no exchange with one has mixed since"""
        self._differing: OrderedDict[bytes, int] = OrderedDict()
        """this peer's round of the latest notice about each one's settings"""

    def appeared(self, peer: bytes, round: int, members: Container[bytes]) -> None:
        """`peer` is there. members: ids that membership knows; the entries of others make room."""
        if peer in self._since:
            return
        if len(self._since) >= MOST_KNOWN:
            self._since = {known: since for known, since in self._since.items() if known in members}
        self._since[peer] = round if round >= RAMP else -RAMP

    def share(self, peer: bytes, round: int) -> float:
        """The share of the usual weight with which `peer` may move this one in `round`."""
        return min(1.0, (round - self._since.get(peer, round if round >= RAMP else -RAMP) + 1) / RAMP)

    def met(self, partner: bytes, round: int) -> None:
        """An exchange with `partner` begins."""
        self._met[partner] = round
        _keep(self._met, partner)

    def has_met(self, partner: bytes, since: int) -> bool:
        """Has this peer met `partner` in round `since` or later?"""
        return self._met.get(partner, since - 1) >= since

    def meets(self, round: int) -> set[bytes]:
        """Partners of this peer's `round`."""
        return {partner for partner, latest in self._met.items() if latest == round}

    def dealt_with(self, source: bytes, exchange: int) -> bool:
        """Whether this offer was answered before. A late copy must not begin the exchange again."""
        return exchange <= self._latest.get(source, 0)

    def accepted(self, source: bytes, exchange: int) -> None:
        """The offers of `source` up to this one are answered."""
        self._latest[source] = exchange
        _keep(self._latest, source)

    def differs(self, source: bytes, round: int) -> bool:
        """`source` has other settings. True if a notice is due: at most one in AGAIN rounds."""
        news = round >= self._differing.get(source, -AGAIN) + AGAIN
        if news:
            self._differing[source] = round
            _keep(self._differing, source)
        return news

    def parted(self, partner: bytes, chunks: int, seconds: float, usual: float, now: float) -> None:
        """An exchange has ended. usual: seconds that its chunks usually take; infinite if unknown."""
        if chunks:
            self._silent.pop(partner, None)
            self._doubtful = self._doubtful and partner in self._familiar
            self._familiar[partner] = 0
            _keep(self._familiar, partner)
        before = self._wasted.pop(partner, None)
        if chunks and seconds <= SLOW * usual:
            return
        times = 0 if chunks else 1 if before is None else min(16, before.times + 1)
        self._wasted[partner] = _waste(times, seconds - SLOW * usual, now)
        _keep(self._wasted, partner)

    def unanswered(self, partner: bytes, seconds: float, now: float) -> None:
        """`partner` has not answered an offer in `seconds`."""
        self._doubtful = self._familiar.pop(partner, None) is None or self._doubtful
        before = self._silent.get(partner)
        self._silent[partner] = _waste(1 if before is None else min(16, before.times + 1), seconds, now)
        _keep(self._silent, partner)

    def comes_first(self, peer: bytes) -> bool:
        """Whether `peer` is asked before strangers that may not answer."""
        return peer in self._familiar or not self._doubtful

    def left_alone(self, possible: Iterable[bytes], now: float, *, asks: bool) -> dict[bytes, Objection]:
        """Members to leave alone now, and why. None if that would be all of `possible`.

        Args:
            asks: this peer makes the offer. Those that did not answer the last one are left alone, too.
        """
        there = list(possible)
        waiting = {peer: Objection.SLOW for peer in there if peer in self._wasted and now < self._wasted[peer].until}
        if asks:
            waiting |= {
                peer: Objection.SILENT for peer in there if peer in self._silent and now < self._silent[peer].until
            }
        return waiting if len(waiting) < len(there) else {}


def _waste(times: int, seconds: float, now: float) -> _Wasted:
    """A partner has wasted `seconds`, and did so this many times in a row."""
    waste = max(seconds, SHORTEST)
    return _Wasted(times, now + max(waste, min(waste * 2.0 ** max(0, times - 1), LONGEST)))


def _keep(table: OrderedDict[bytes, int] | OrderedDict[bytes, _Wasted], latest: bytes) -> None:
    """Keep the latest entries, at most MOST."""
    table.move_to_end(latest)
    if len(table) > MOST:
        table.popitem(last=False)
