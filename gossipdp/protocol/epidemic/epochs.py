"""Which rumours count in which epoch, so that all who have heard the same agree, in whatever order they heard it.

An epoch is a fixed span of the network's clock, and a rumour names its own. What is known of one origin in one epoch
only grows: its signed rumours, or once these contradict each other the proof of that. Two rumours of one number, or
more lives of an origin than a peer can have in an epoch, are such a proof, and then nothing that it signed for the
epoch counts, whichever came first. The union of two such sets is again one, so order, loss and duplication do not
matter (a state-based grow-only set, Shapiro et al. 2011).

An epoch closes when the clock has passed it by GRACE epochs; then its samples weigh later rumours. It settles after
SETTLE more, and never changes again: what comes later is stale, by the same rule for all. Peers whose clocks or links
differ may settle on different sets; they state their digests to each other, and who is outnumbered knows that its state
is not the others'. A rumour's epoch is part of its identity, so what is remembered of settled ones is a digest: one of
all that is settled since the founding, as a chain, so that a difference that nobody noticed in time is never forgotten.
No message and no payload is here.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gossipdp.protocol.epidemic.signing import void_name
from gossipdp.protocol.wire.epidemic_messages import LONGEST, MAX_MARKS, NO_BASE, EpochMark, Rumour, Stage

__all__ = [
    "AHEAD",
    "BEHIND",
    "EMPTY",
    "GRACE",
    "LONGER",
    "MAX_LIVES",
    "MAX_RUMOURS",
    "REMEMBERED",
    "SETTLE",
    "YOUNG",
    "EpochSet",
    "Epochs",
    "Usual",
    "Verdict",
]

GRACE: Final = 3
"""epochs that a rumour may be late: the staleness cap"""
SETTLE: Final = 1
"""epochs more for peers to repair what they differ in"""
AHEAD: Final = 2
"""epochs that another's clock may be ahead of what is known of it here"""
KEPT: Final = 8
"""settled epochs of which the digest is remembered: a rumour of the oldest live one is weighed by one nearly so old"""
BEHIND: Final = GRACE + SETTLE + AHEAD + 1
"""epochs: so long before a rumour's own all is settled wherever the rumour is admitted"""
LONGER: Final = 4.0
"""times as long as what was usual BEHIND it an increment may be"""
YOUNG: Final = 4
"""epochs from which nothing usual follows: learning rates are being warmed up, and lengths grow by more than that"""
MAX_HELD: Final = 8
"""epochs more than else that do not settle while a state is being fetched, or while one lacks a payload"""
REMEMBERED: Final = BEHIND + 1 + MAX_HELD + 8
"""epochs before the first live one of which it is known how long increments were"""
MAX_RUMOURS: Final = 2048
"""of one epoch; past it new ones are refused, and counted"""
MAX_LIVES: Final = 4
"""incarnations of one origin in one epoch"""
MOST_TIMES: Final = 32
"""how much faster than the middle one a peer may be"""
MAX_VOTES: Final = 64
"""peers whose word on a settled epoch is kept"""
QUORUM: Final = 5
"""words to be heard, if there are so many others, before any are counted; or more than half of all agree"""


def _digest(names: list[bytes]) -> bytes:
    return hashlib.blake2b(b"".join(names), digest_size=16, person=b"gossipdp epoch").digest()


EMPTY: Final = _digest([])


def _chained(before: bytes, epoch: int, digest: bytes) -> bytes:
    data = b"".join((before, epoch.to_bytes(4, "big"), digest))
    return hashlib.blake2b(data, digest_size=16, person=b"gossipdp chain").digest()


class Verdict(NamedTuple):
    """What became of a rumour: new, known, void (its origin is already), proof (it is now), full. fallen: the rumours
    that counted until now, by name."""

    word: str
    proof: tuple[Rumour, ...] = ()
    fallen: tuple[tuple[bytes, Rumour], ...] = ()


@dataclass
class _Origin:
    """What one origin signed for one epoch, and once it is proven void the proof, for ever."""

    signed: dict[tuple[int, int], tuple[bytes, Rumour]] = field(default_factory=dict)
    """by incarnation and sequence"""
    proof: tuple[Rumour, ...] = ()

    def lives(self) -> dict[int, Rumour]:
        """The incarnations that signed something, with a rumour of each."""
        return {incarnation: rumour for (incarnation, _), (_, rumour) in self.signed.items()}


class EpochSet:
    """The rumours of one epoch. `inside` are those that have come whole, by name; `lacking` those of them that had come
    to whoever gave the state, and whose payload is still to come."""

    def __init__(self, epoch: int, run: bytes) -> None:
        self.epoch, self._run = epoch, run
        self._origins: dict[bytes, _Origin] = {}
        self._voids: dict[bytes, bytes] = {}
        self.inside: dict[bytes, Rumour] = {}
        self.lacking: set[bytes] = set()
        self._signed = 0
        self._sorted: list[bytes] | None = None
        self._state = EMPTY

    def claim(self, name: bytes, rumour: Rumour) -> Verdict:
        """`rumour` is signed by its origin."""
        origin = self._origins.get(rumour.origin) or _Origin()
        if origin.proof:
            return Verdict("void", origin.proof)
        key = rumour.incarnation, rumour.sequence
        known = origin.signed.get(key)
        if known is not None and known[0] == name:
            return Verdict("known")
        if known is not None:
            return self._void(origin, (known[1], rumour))
        lives = origin.lives()
        if rumour.incarnation not in lives and len(lives) >= MAX_LIVES:
            return self._void(origin, (*lives.values(), rumour))
        if self._signed >= MAX_RUMOURS:
            return Verdict("full")
        origin.signed[key] = name, rumour
        self._origins[rumour.origin] = origin
        self._signed += 1
        return Verdict("new")

    def _void(self, origin: _Origin, proof: tuple[Rumour, ...]) -> Verdict:
        fallen = tuple(each for each in origin.signed.values() if self.inside.pop(each[0], None) is not None)
        self.lacking.difference_update(name for name, _ in fallen)
        self._signed += len(proof) - len(origin.signed)
        origin.signed, origin.proof = {}, proof
        self._voids[void_name(proof[0].origin, self.epoch, self._run)] = proof[0].origin
        self._sorted = None
        return Verdict("proof", proof, fallen)

    def takes(self, origin: bytes, incarnation: int) -> bool:
        """Would another rumour of this life of `origin` count, and prove nothing against it?"""
        if self._signed >= MAX_RUMOURS:
            return False
        known = self._origins.get(origin) or _Origin()
        lives = known.lives()
        return not known.proof and (incarnation in lives or len(lives) < MAX_LIVES)

    def complete(self, name: bytes, rumour: Rumour) -> bool:
        """It has come whole; whether that is news, and not only the payload of what was inside before."""
        self.lacking.discard(name)
        if name in self.inside:
            return False
        self.inside[name] = rumour
        self._sorted = None
        return True

    def holds(self, name: bytes) -> bool:
        """It is here, or is the name of a proof that is known."""
        return (name in self.inside and name not in self.lacking) or name in self._voids

    def proof(self, name: bytes) -> tuple[Rumour, ...]:
        """The proof of this name."""
        origin = self._voids.get(name)
        return self._origins[origin].proof if origin is not None else ()

    def proofs(self) -> list[tuple[Rumour, ...]]:
        return [self._origins[origin].proof for origin in self._voids.values()]

    def names(self) -> list[bytes]:
        """All that the digest is of."""
        if self._sorted is None:
            self._sorted = sorted([*self.inside, *self._voids])
            self._state = _digest(self._sorted)
        return self._sorted

    @property
    def digest(self) -> bytes:
        self.names()
        return self._state

    @property
    def samples(self) -> int:
        """Shares follow from it. What an origin claims beyond MOST_TIMES as many as the middle one is not counted."""
        return sum(min(count, MOST_TIMES * self.middle) for count in self._made())

    @property
    def middle(self) -> int:
        """Those of the middle one of all who made any, or 0."""
        made = sorted(filter(None, self._made()))
        return made[(len(made) - 1) // 2] if made else 0

    @property
    def length(self) -> float:
        """How far an increment of share 1 moves an anchor: that of the middle origin, each by its longest; 0 if none
        does. Nobody is the middle one by many rumours or lives; of two it is the longer, or who stands still would
        stop the other."""
        longest: dict[bytes, float] = {}
        for rumour in self.inside.values():
            whole = min(rumour.length / rumour.weight, LONGEST) if rumour.weight else 0.0
            longest[rumour.origin] = max(whole, longest.get(rumour.origin, 0.0))
        lengths = sorted(filter(None, longest.values()))
        return lengths[len(lengths) // 2] if lengths else 0.0

    def _made(self) -> Iterable[int]:
        """Samples by origin."""
        made: Counter[bytes] = Counter()
        for rumour in self.inside.values():
            made[rumour.origin] += rumour.samples
        return made.values()


@dataclass
class Settled:
    digest: bytes
    """of this epoch's set and all before it; an empty set changes nothing"""
    count: int
    samples: int
    votes: dict[bytes, bytes] = field(default_factory=dict)
    """what other peers have settled it as"""
    told: bool = False


class Usual(NamedTuple):
    """What is remembered of a settled epoch's increments, for longer than its digest is: see `EpochSet.length`. age:
    epochs with rumours since the founding, this one included."""

    length: float
    age: int


class Epochs:
    """`first` is the first that is not settled, `current` that of the clock."""

    def __init__(self, span: int, run: bytes) -> None:
        self.span, self._run = span, run
        self.first = self.current = 0
        self.held = True
        """nothing settles"""
        self.base = NO_BASE
        """names the founding that the state goes back to"""
        self._live: dict[int, EpochSet] = {}
        self._settled: dict[int, Settled] = {}
        self._chain, self._age = EMPTY, 0
        self.usual: dict[int, Usual] = {}
        """by epoch"""

    def admits(self, epoch: int) -> bool:
        return self.first <= epoch <= self.current + AHEAD

    def live(self) -> list[EpochSet]:
        """In order; those of which nothing is known are left out."""
        return [self._live[epoch] for epoch in sorted(self._live)]

    def of(self, epoch: int) -> EpochSet:
        """An epoch that is admitted."""
        if epoch not in self._live:
            self._live[epoch] = EpochSet(epoch, self._run)
        return self._live[epoch]

    def digest_of(self, epoch: int) -> bytes:
        known = self._live.get(epoch)
        return EMPTY if known is None else known.digest

    def closes(self, clock: int) -> int:
        """The last epoch that is closed at `clock`; negative if none is."""
        return clock // self.span - GRACE - 1

    def advance(self, clock: int) -> tuple[list[EpochSet], list[EpochSet]]:
        """The network's clock: which epochs have closed, and which have settled."""
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
        """A state is taken over that goes back to `base`, and in which all before `first` is settled so."""
        self.first = self.current = first
        founded = EMPTY if base == NO_BASE else base
        self.base, self._chain = base, settled[max(settled)].digest if settled else founded
        self.usual = {} if usual is None else usual
        self._age = self.usual[max(self.usual)].age if self.usual else 0
        self._settled, self._live = settled, {}

    def longest(self, epoch: int) -> float:
        """How far an increment of share 1 may move an anchor in a live `epoch`: LONGER times what was usual BEHIND it.
        All with whom this peer agrees on what is settled say the same; inf while nothing is usual."""
        for before in (epoch - BEHIND, epoch - BEHIND - 1):
            usual = self.usual.get(before)
            if usual is not None and usual.length and usual.age > YOUNG:
                return LONGER * usual.length
        return math.inf

    def settled(self) -> dict[int, Settled]:
        return dict(self._settled)

    def marks(self) -> tuple[EpochMark, ...]:
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
        """`peer` has settled `epoch` so, one of `others`. If this peer, `me`, is outnumbered, which is found once: how
        many are with it, and who are the most of the others. Of two camps as large the one of the lowest id counts as
        the larger, whatever the epoch, so that both do not give way to each other."""
        known = self._settled.get(epoch)
        if known is None or known.told or (peer not in known.votes and len(known.votes) >= MAX_VOTES):
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
        known.told = True
        return len(camps[known.digest]), tuple(camps[winner])
