"""One chunk of a group's exchange: gathered by its owner, averaged, returned, by the codec of the exchange.

For the trial of groups in `lab_trial_groups`, where it stands who they are and when. It is not in the product. No clock
may stand here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gossipdp.algorithms.ledger import block_max
from gossipdp.algorithms.pairwise import RANGE_DECAY, RANGE_SHARE
from gossipdp.codecs import CODECS
from gossipdp.codecs.base import BLOCK, Buffer, ChunkCodec, Vector
from gossipdp.codecs.modulo import ModuloCodec
from gossipdp.protocol.wire.messages import Ack, Data, Ranges
from simulations.lab.methods.replica import Dialogue, Replica, frame_bytes

__all__ = ["GroupExchange", "Traffic"]


@dataclass
class Traffic:
    """Of one chunk: bytes of each member, in their order, and blocks of all conversations about it."""

    received: NDArray[np.int64]
    sent: NDArray[np.int64]
    blocks: int = 0
    escalated: int = 0

    def move(self, source: int, target: int, size: int) -> None:
        self.sent[source] += size
        self.received[target] += size


@dataclass(frozen=True)
class GroupExchange(Dialogue):
    """Terms of a group's exchange, and how a chunk of it is averaged. The first member has invited the others."""

    members: tuple[Replica, ...]

    def average(self, chunk: int, owner: int) -> Traffic:
        """Gather `chunk` at its owner o, average, return. All on one grid, the widest that any member asks for:

            gather     D_m = u_m - u_o                             from codes of m; o knows which blocks failed
            average    sum_m D_m = G q + r,   0 <= r < G;   w_m = q + 1 for r of all G members, q for the others
            return     a_m += s (w_m - D_m),   a_o -= the same     codes of u_o + w_m, from which m knows it too

        so a_o moves by s w_o: the remainder of the division is dealt out, or the owner would bear (G - 1) times the
        rounding. Each return is a dialogue of two as any other, about the owner's wish for m and a_m, whose codes the
        owner has already; it is antisymmetric to the last bit, and the sum of all anchors stays exact. Momentum is
        pulled as in `pairwise`. Nothing is clipped.
        """
        one = self.members[owner]
        others = [place for place in range(len(self.members)) if place != owner]
        span, count = one.ledger.span(chunk), len(self.members)
        counted = Traffic(np.zeros(count, np.int64), np.zeros(count, np.int64))
        start = one.ledger.a[span].copy()
        ranges = self._ranges(chunk, owner, counted)
        deltas = []
        for place in others:
            here, there = self._pair(chunk, owner, place, start, ranges)
            self._gathered(chunk, (owner, place), here, there, counted)
            deltas.append(_delta(here, len(start)))
        targets = self._targets(chunk, start, deltas, ranges)
        for place, target in zip(others, targets, strict=True):
            here, there = self._pair(chunk, owner, place, target, ranges)
            self._returned(chunk, (owner, place), here, there, counted)
            largest = self._mixed(self.members[place], there, chunk)
            self._mixed(one, here, chunk)
            self._learn_ranges(self.members[place], chunk, largest)
        self._learn_ranges(one, chunk, block_max(one.ledger.a[span] - start))
        return counted

    # -- the grid ---------------------------------------------------------------------------------------------

    def _side(self, replica: Replica, chunk: int, values: Vector, lower: bool) -> ChunkCodec:
        algorithm, blocks = replica.algorithm, _blocks(replica, chunk)
        predicted = algorithm.range[blocks] + algorithm.moved[blocks]
        # One seed for all of the group: equal values have equal codes.
        name = hashlib.blake2b(b"%d,%d" % (self.exchange, chunk), digest_size=8).digest()
        seed = int.from_bytes(name, "little")
        return CODECS[self.codec].chunk(values, predicted, lower=lower, seed=seed)

    def _ranges(self, chunk: int, owner: int, counted: Traffic) -> Buffer:
        """Everybody's to the owner, the largest of each block back."""
        span = self.initiator.ledger.span(chunk)
        told = [self._side(each, chunk, each.ledger.a[span], True).ranges()[0] for each in self.members]
        widest: bytes = np.max([np.frombuffer(each, np.uint8) for each in told], 0).tobytes()
        for place in range(len(self.members)):
            if place != owner:
                counted.move(place, owner, frame_bytes(Ranges(self.exchange, chunk, 1), [told[place]]))
                counted.move(owner, place, frame_bytes(Ranges(self.exchange, chunk, 1), [widest]))
        return widest

    def _pair(
        self, chunk: int, owner: int, place: int, target: Vector, ranges: Buffer
    ) -> tuple[ChunkCodec, ChunkCodec]:
        """A conversation of the owner, about `target`, with a member, about its anchor."""
        one, other = self.members[owner], self.members[place]
        here = self._side(one, chunk, target, one.id < other.id)
        there = self._side(other, chunk, other.ledger.a[other.ledger.span(chunk)], other.id < one.id)
        here.open(ranges)
        there.open(ranges)
        return here, there

    # -- the three parts --------------------------------------------------------------------------------------

    def _gathered(
        self, chunk: int, pair: tuple[int, int], here: ChunkCodec, there: ChunkCodec, counted: Traffic
    ) -> None:
        """The owner learns the member's codes. What the owner would say in a dialogue is not sent: a bit a block says
        which ones failed, and the member sends more of those."""
        owner, place = pair
        data = Data(self.exchange, chunk, 1, math.inf)
        failing = bytes(-(-there.blocks // 8))
        while True:
            codes = there.emit()
            counted.move(place, owner, frame_bytes(data, codes))
            here.absorb(codes)
            there.absorb(here.emit())
            if here.complete:
                break
            counted.move(owner, place, frame_bytes(data, [failing]))
        self._count(counted, here)

    def _targets(self, chunk: int, start: Vector, deltas: Sequence[Vector], ranges: Buffer) -> list[Vector]:
        """What each of the others should come to hold."""
        codec, count = CODECS[self.codec], len(deltas) + 1
        if not isinstance(codec, ModuloCodec):
            mean = start + np.sum(deltas, 0, np.float64) / count
            return [mean.astype(np.float32)] * len(deltas)
        step = np.repeat(codec.steps[np.frombuffer(ranges, np.uint8)], BLOCK)[: len(start)]
        total = np.sum([np.rint(delta / step).astype(np.int64) for delta in deltas], 0)
        share, rest = np.divmod(total, count)
        first = np.random.default_rng((self.exchange, chunk)).integers(count, size=len(start))
        return [
            (start + step * (share + ((first + place) % count < rest))).astype(np.float32)
            for place in range(len(deltas))
        ]

    def _returned(
        self, chunk: int, pair: tuple[int, int], here: ChunkCodec, there: ChunkCodec, counted: Traffic
    ) -> None:
        owner, place = pair
        data, known = Data(self.exchange, chunk, 2, math.inf), there.emit()
        here.absorb(known)
        while not (here.complete and there.complete):
            targets = here.emit()
            counted.move(owner, place, frame_bytes(data, targets))
            there.absorb(targets)
            if more := there.emit():
                counted.move(place, owner, frame_bytes(data, more))
                here.absorb(more)
        counted.move(place, owner, frame_bytes(Ack(self.exchange, chunk, 3, 1.0)))
        self._count(counted, here)

    def _mixed(self, replica: Replica, side: ChunkCodec, chunk: int) -> Vector:
        ledger = replica.ledger
        span = ledger.span(chunk)
        momentum = ledger.v[span] if self.pull else None
        return side.mix(2.0 * self.weight, ledger.a[span], ledger.pending(chunk), momentum, self.pull)

    def _learn_ranges(self, replica: Replica, chunk: int, largest: Vector) -> None:
        """How far it was from the average. Another's anchor is further, but the widest range of all members counts:
        wider ones escalate hardly less, and make every step of the grid coarser."""
        algorithm, blocks = replica.algorithm, _blocks(replica, chunk)
        algorithm.range[blocks] = np.maximum(RANGE_SHARE * largest, RANGE_DECAY * algorithm.range[blocks])
        algorithm.moved[blocks] = 0.0

    def _count(self, counted: Traffic, side: ChunkCodec) -> None:
        counted.blocks += side.blocks
        counted.escalated += side.escalated


def _blocks(replica: Replica, chunk: int) -> slice:
    span = replica.ledger.span(chunk)
    return slice(span.start // BLOCK, -(-span.stop // BLOCK))


def _delta(side: ChunkCodec, size: int) -> Vector:
    """From the own values to the partner's."""
    found: Vector = np.zeros(size, np.float32)
    side.mix(1.0, found, np.zeros_like(found), None, 0.0)
    return found
