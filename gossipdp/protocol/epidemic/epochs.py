"""The increments that count in each epoch. Peers that know the same headers agree, in any order of arrival.

An epoch is a fixed span of the network's clock, and an increment names its own. Knowledge about one origin in one epoch
only grows: its signed headers, or once they contradict each other, the proof of that. Two headers with one number are a
proof, and so are more lives of an origin than a peer can have in an epoch. Then none of its increments in that epoch
counts, whichever came first. The union of two such sets is again one, so order, loss and duplication do not matter (a
state-based grow-only set, Shapiro et al. 2011).

An epoch closes when the clock is GRACE epochs past it; its samples then weigh later increments. It settles SETTLE
epochs later, and never changes again. Every peer calls a later increment stale by the same rule. Peers with different
clocks or links may settle different sets. They state their digests to each other, and a minority learns that its state
differs.

The epoch is part of an increment's identity, so a peer remembers only a digest of settled epochs. It is one chained
digest of everything settled since the founding, so no difference is ever forgotten. No message and no payload is
handled here.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gossipdp.protocol.epidemic.epoch_set import EMPTY, EpochSet
from gossipdp.protocol.wire.epidemic_messages import MAX_MARKS, NO_BASE, EpochMark, Stage

__all__ = ["AHEAD", "BEHIND", "GRACE", "LONGER", "REMEMBERED", "SETTLE", "YOUNG", "Epochs", "Settled", "Usual"]

GRACE: Final = 3
"""epochs that an increment may be late: the cap on staleness"""
SETTLE: Final = 1
"""further epochs in which peers repair differences"""
AHEAD: Final = 2
"""epochs that another peer's clock may be ahead of the clock known here"""
KEPT: Final = 8
"""settled epochs with a remembered digest"""
BEHIND: Final = GRACE + SETTLE + AHEAD + 1
"""distance in epochs at which everything is settled at each peer that admits an increment"""
LONGER: Final = 4.0
"""largest length of an increment, in units of the usual length BEHIND it"""
YOUNG: Final = 4
"""first epochs after a founding that give no usual length: in a learning-rate warmup lengths grow faster than LONGER"""
MAX_HELD: Final = 8
"""further epochs that stay unsettled while a state is fetched or a payload is lacking"""
REMEMBERED: Final = BEHIND + 1 + MAX_HELD + 8
"""epochs before the first live one with a remembered usual length"""
MAX_VOTES: Final = 64
"""peers whose digest of a settled epoch is kept"""
QUORUM: Final = 5
"""digests to hear before they are counted, if there are that many other members; or more than half of all agree"""


def _chained(before: bytes, epoch: int, digest: bytes) -> bytes:
    data = b"".join((before, epoch.to_bytes(4, "big"), digest))
    return hashlib.blake2b(data, digest_size=16, person=b"gossipdp chain").digest()


@dataclass
class Settled:
    """A settled epoch."""

    digest: bytes
    """chained digest of this epoch's set and all before it; an empty set changes nothing"""
    count: int
    """number of names in the set"""
    samples: int
    votes: dict[bytes, bytes] = field(default_factory=dict)
    """digests that other peers stated"""
    outvoted: bool = False
    """this peer was found in the minority"""


class Usual(NamedTuple):
    """The usual length of increments in a settled epoch, remembered longer than its digest."""

    length: float
    """see `EpochSet.length`"""
    age: int
    """epochs with increments since the founding, this one included"""


class Epochs:
    """All epochs of one peer.

    Args:
        span: steps of the network's clock in an epoch.
        run: name of the run.
    """

    def __init__(self, span: int, run: bytes) -> None:
        self.span, self._run = span, run
        self.first = 0
        """first epoch that is not settled"""
        self.current = 0
        """epoch of the network's clock"""
        self.held = True
        """nothing settles, because the state is missing or about to be replaced"""
        self.base = NO_BASE
        """name of the state's founding"""
        self._live: dict[int, EpochSet] = {}
        self._settled: dict[int, Settled] = {}
        self._chain, self._age = EMPTY, 0
        self.usual: dict[int, Usual] = {}
        """usual lengths by epoch"""

    def hold(self) -> None:
        """Settle nothing until `resume`."""
        self.held = True

    def resume(self, clock: int) -> None:
        """The state is here. Epochs that `clock` has passed meanwhile settle at the next `advance`."""
        self.advance(clock)
        self.held = False

    def admits(self, epoch: int) -> bool:
        """Whether increments of this epoch are accepted now."""
        return self.first <= epoch <= self.current + AHEAD

    def live(self) -> list[EpochSet]:
        """The live epochs with a set, in order."""
        return [self._live[epoch] for epoch in sorted(self._live)]

    def of(self, epoch: int) -> EpochSet:
        """The set of an admitted epoch."""
        if epoch not in self._live:
            self._live[epoch] = EpochSet(epoch, self._run)
        return self._live[epoch]

    def digest_of(self, epoch: int) -> bytes:
        """Digest of a live epoch."""
        known = self._live.get(epoch)
        return EMPTY if known is None else known.digest

    def closes(self, clock: int) -> int:
        """The last epoch that is closed at `clock`, negative if none is."""
        return clock // self.span - GRACE - 1

    def advance(self, clock: int) -> tuple[list[EpochSet], list[EpochSet]]:
        """Take the network's clock. Returns the epochs that closed, and the epochs that settled."""
        before, self.current = self.current, max(self.current, clock // self.span)
        if self.current == before and self.first >= self.current - GRACE - SETTLE:
            return [], []
        oldest = self.current - GRACE - SETTLE
        closed = range(max(before - GRACE, oldest - KEPT, self.first), self.current - GRACE)
        closing = [self._live.get(epoch) or EpochSet(epoch, self._run) for epoch in closed]
        waits = next((each.epoch for each in self.live() if each.lacking), oldest)
        least = oldest - MAX_HELD
        return closing, self._settle(least if self.held else max(least, min(oldest, waits)))

    def _settle(self, first: int) -> list[EpochSet]:
        if first <= self.first:
            return []
        passed = set(range(max(self.first, first - KEPT), first)) | {epoch for epoch in self._live if epoch < first}
        sets = [self._live.get(epoch) or EpochSet(epoch, self._run) for epoch in sorted(passed)]
        self._live = {epoch: each for epoch, each in self._live.items() if epoch >= first}
        self.first = first
        for each in sets:
            if each.names():
                self._chain = _chained(self._chain, each.epoch, each.digest)
                self._age += 1
            self._settled[each.epoch] = Settled(self._chain, len(each.names()), each.samples)
            self.usual[each.epoch] = Usual(each.length, self._age)
        self.usual = {epoch: usual for epoch, usual in self.usual.items() if epoch >= first - REMEMBERED}
        for epoch in sorted(self._settled)[:-KEPT]:
            del self._settled[epoch]
        return sets

    def restart(
        self, first: int, settled: dict[int, Settled], base: bytes = NO_BASE, usual: dict[int, Usual] | None = None
    ) -> None:
        """Begin with a new state, held until `resume`.

        Args:
            first: first epoch that is not settled in it.
            settled: its settled epochs.
            base: name of its founding.
            usual: its usual lengths.
        """
        self.first = self.current = first
        founded = EMPTY if base == NO_BASE else base
        self.base, self._chain = base, settled[max(settled)].digest if settled else founded
        self.usual = {} if usual is None else usual
        self._age = self.usual[max(self.usual)].age if self.usual else 0
        self._settled, self._live, self.held = settled, {}, True

    def longest(self, epoch: int) -> float:
        """The largest movement of an increment of share 1 in a live epoch: LONGER times the usual length BEHIND it.

        Peers that agree on the settled epochs get the same number. Infinity while no usual length is known.
        """
        for before in (epoch - BEHIND, epoch - BEHIND - 1):
            usual = self.usual.get(before)
            if usual is not None and usual.length and usual.age > YOUNG:
                return LONGER * usual.length
        return math.inf

    def settled(self) -> dict[int, Settled]:
        """The remembered settled epochs."""
        return dict(self._settled)

    def marks(self) -> tuple[EpochMark, ...]:
        """The digests to send: settled epochs, then live ones."""
        live = [
            EpochMark(
                each.epoch,
                Stage.OPEN if each.epoch >= self.current - GRACE else Stage.CLOSED,
                len(each.names()),
                each.digest,
            )
            for each in self.live()
            if each.names()
        ]
        past = [EpochMark(epoch, Stage.SETTLED, known.count, known.digest) for epoch, known in self._settled.items()]
        return (*past[-KEPT:], *live)[-MAX_MARKS:]

    def vote(
        self, peer: bytes, epoch: int, digest: bytes, others: int, me: bytes
    ) -> tuple[int, tuple[bytes, ...]] | None:
        """Count the digest of a settled epoch that `peer` stated.

        Of two camps of one size the one with the lowest id counts as larger, so that they do not give way to each
        other.

        Args:
            others: number of other live members.
            me: this peer's id.

        Returns:
            If this peer is in the minority, once: the size of its camp, and the members of the largest camp. Else None.
        """
        known = self._settled.get(epoch)
        if known is None or known.outvoted or (peer not in known.votes and len(known.votes) >= MAX_VOTES):
            return None
        known.votes[peer] = digest
        camps = {known.digest: [me]}
        for voter, vote in known.votes.items():
            camps.setdefault(vote, []).append(voter)
        most = max(map(len, camps.values()))
        if len(known.votes) < min(QUORUM, others) and 2 * most <= 1 + others:
            return None
        winner = max(camps, key=lambda each: (len(camps[each]), [-byte for byte in min(camps[each])]))
        if winner == known.digest:
            return None
        known.outvoted = True
        return len(camps[known.digest]), tuple(camps[winner])
