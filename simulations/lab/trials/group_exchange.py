"""One chunk of a group's exchange: its owner gathers it, averages it and returns it, by the codec of the exchange.

`groups.py` decides who is in a group and when. The trial is not in the product.
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
from gossipdp.codecs.base import Buffer, ChunkCodec, Vector
from gossipdp.codecs.blocks import BLOCK
from gossipdp.codecs.modulo import ModuloCodec
from gossipdp.protocol.wire.messages import Ack, Data, Ranges
from peers.plan.frames import frame_bytes
from simulations.lab.methods.replica import Dialogue, Replica

__all__ = ["GroupExchange", "Traffic"]


@dataclass
class Traffic:
    """Traffic of one chunk: bytes per member, in their order, and blocks of all dialogues about it."""

    received: NDArray[np.int64]
    sent: NDArray[np.int64]
    blocks: int = 0
    escalated: int = 0

    def move(self, source: int, target: int, size: int) -> None:
        self.sent[source] += size
        self.received[target] += size


@dataclass(frozen=True)
class GroupExchange(Dialogue):
    """The terms of a group's exchange, and how it averages a chunk. The first member invites the others."""

    members: tuple[Replica, ...]

    def average(self, chunk: int, owner: int) -> Traffic:
        """Gather `chunk` at its owner o, average, return. All members use one grid, the widest that any of them needs:

            gather     D_m = u_m - u_o                             from codes of m; o knows which blocks failed
            average    sum_m D_m = G q + r,   0 <= r < G;   w_m = q + 1 for r of all G members, q for the others
            return     a_m += s (w_m - D_m),   a_o -= the same     codes of u_o + w_m, from which m knows it too

        So a_o moves by s w_o. The remainder r is dealt out to the members. Otherwise the owner would bear (G - 1) times
        the rounding error.

        Each return is a dialogue of two, about the owner's target for m and a_m, whose codes the owner already has. It
        is antisymmetric to the last bit, so the sum of all anchors stays exact. Momentum is pulled as in `pairwise`.
        Nothing is clipped.
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
        # One seed for the group, so equal values have equal codes.
        name = hashlib.blake2b(b"%d,%d" % (self.exchange, chunk), digest_size=8).digest()
        seed = int.from_bytes(name, "little")
        return CODECS[self.codec].chunk(values, predicted, lower=lower, seed=seed)

    def _ranges(self, chunk: int, owner: int, counted: Traffic) -> Buffer:
        """Collect the ranges of all members at the owner; return the widest of each block, which all receive."""
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
        """Both sides of a dialogue: the owner with `target`, a member with its anchor."""
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
        """The owner learns the member's codes.

        It sends no codes of its own. One bit per block says which blocks failed, and the member sends more of those.
        """
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
        """The target of each of the other members."""
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
        """Update the ranges by the member's distance from the average.

        Other members are further away, but the widest range of the group counts. Wider ranges would escalate hardly
        less, and make every step of the grid coarser.
        """
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
    """The difference from the own values to the partner's, shape (size,)."""
    found: Vector = np.zeros(size, np.float32)
    side.mix(1.0, found, np.zeros_like(found), None, 0.0)
    return found
