"""A trial: groups of peers average instead of pairs, each chunk at one member.

The groups of G are those of Moshpit all-reduce (Ryabinin et al. 2021, arXiv 2103.03239), without an all-reduce inside.
The owner of a chunk gathers it from the others, averages it and returns it (`group_exchange.py`). Outer steps and
rounds of pairs are those of `pairwise`. The trial is not in the product.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gossipdp.protocol.rounds.pacing import ALONE_AFTER
from peers.plan.frames import greeting_bytes
from peers.plan.pairs import OpenExchange
from simulations.lab.core import Lab
from simulations.lab.methods.pairwise import PairwiseGossip, PairwiseOptions
from simulations.lab.trials.group_exchange import GroupExchange

__all__ = ["GroupGossip", "groups_of"]

TURNS: Final = 7
"""sequential messages of a group's exchange: invitation, accept, ranges, the widest of them, codes, the average,
acknowledgement. Chunks overlap
"""
IDENTITY: Final = 32
"""bytes of a peer's id; an invitation names all members except the receiver"""


def groups_of(peers: int, size: int, number: int, random: np.random.Generator | None) -> list[list[int]]:
    """The groups of `size` peers that average in round `number`.

    Without `random`, for powers of two, the numbers of a group's members differ in log2(size) bits only. The next round
    takes the next bits. After ceil(log2 N / log2 size) rounds every peer holds the exact mean, as after log2 N rounds
    of the hypercube.
    """
    if random is not None:
        return [sorted(part.tolist()) for part in np.array_split(random.permutation(peers), max(1, peers // size))]
    bits, within = peers.bit_length() - 1, size.bit_length() - 1
    mask = sum({1 << (number * within + place) % bits for place in range(within)})
    found: dict[int, list[int]] = {}
    for peer in range(peers):
        found.setdefault(peer & ~mask, []).append(peer)
    return list(found.values())


class GroupGossip(PairwiseGossip):
    """`pairwise` in groups of `size` once a round, in all rounds or in early ones.

    A peer receives 2 (1 - 1/G) vectors per round. It owns every G-th chunk, a different one in each exchange. G chunks
    are under way at a time, one per owner.

    Groups follow several bits of the hypercube per round if N and G are powers of two and `PairwiseOptions.schedule` is
    set. Otherwise each round draws them anew. A member that cannot be reached (`Setting.failing`) is left out.

    Args:
        size: G.
        always: in all rounds. Otherwise in the early rounds of `options`, and in pairs as in `pairwise` later.
    """

    def __init__(self, options: PairwiseOptions | None = None, *, size: int, always: bool = True) -> None:
        super().__init__(options, f"pairwise, groups of {size}")
        if size < 2 or self.options.fragments != 1:
            raise ValueError(f"groups of {size} average whole vectors")
        self._size, self._always = size, always
        self._planned: list[list[int]] = []
        """groups of this round that have not begun"""
        self._planned_for = 0
        self._starting = False

    def begin(self, lab: Lab) -> None:
        if self._size > lab.peers:
            raise ValueError(f"groups of {self._size} of {lab.peers} peers")
        self._starting = True
        super().begin(lab)
        self._starting = False

    def round(self, lab: Lab) -> None:
        if self._grouped(lab, self._rounds):
            self._play(lab, lab.setting.every, self._outer_step(lab), 1, scheduled=False)
        else:
            super().round(lab)

    def _grouped(self, lab: Lab, before: int) -> bool:
        """Whether the round after `before` rounds is one of groups. Short rounds at the start are of pairs."""
        early = before - self._first_round < self.options.early * lab.setting.rounds
        return not self._starting and (self._always or early)

    def _random_pairs(self, lab: Lab) -> list[tuple[int, int, float]]:
        return [] if self._grouped(lab, self._rounds - 1) else super()._random_pairs(lab)

    def _advance(self, lab: Lab) -> None:
        super()._advance(lab)
        while self._grouped(lab, self._rounds - 1) and self._gather(lab):
            super()._advance(lab)

    def _gather(self, lab: Lab) -> bool:
        """Begin the exchange of each group whose members are all free. Other groups wait one round at most."""
        if self._planned_for != self._rounds:
            even = all(count & (count - 1) == 0 for count in (lab.peers, self._size))
            random = None if even and self.options.schedule else lab.random
            self._planned = groups_of(lab.peers, self._size, self._rounds, random)
            self._planned_for = self._rounds
        free = set(self._free())
        ready = [group for group in self._planned if free.issuperset(group)]
        for group in ready:
            self._planned.remove(group)
            self._assemble(lab, group)
        return bool(ready)

    def _assemble(self, lab: Lab, group: list[int]) -> None:
        self._steps[group] += 1
        failing, first = lab.setting.failing, group[0]
        there = [peer for peer in group if peer == first or lab.random.random() >= failing]
        self.tally.count_failed(len(group) - len(there))
        if len(there) == 1:
            return
        members = tuple(self.replicas[peer] for peer in there)
        self._exchanges += 1
        pull = self._pull if max(one.alone for one in members) < ALONE_AFTER else 0.0
        number, weight = (1 << 32) + self._exchanges, self.options.weight
        group_exchange = GroupExchange(members[0], members[1], number, self._codec, weight, pull, members)
        chunks = members[0].ledger.chunks
        left = [(members[0].first + place) % chunks for place in reversed(range(chunks))]
        for replica in members:
            replica.begin_exchange()
        accept, offer = greeting_bytes(self._codec)
        lab.received[there] += offer + IDENTITY * (len(there) - 2)
        lab.received[first] += (len(there) - 1) * accept - offer - IDENTITY * (len(there) - 2)
        delay = 0.0 if self.options.landing == "at once" else lab.setting.link.seconds(0.0, TURNS)
        self._open_exchanges.append(
            OpenExchange((there[0], there[1]), group_exchange, self._rounds, lab.seconds, lab.seconds + delay, left)
        )

    def _average_chunk(self, lab: Lab, exchange: OpenExchange) -> None:
        group_exchange = exchange.dialogue
        if not isinstance(group_exchange, GroupExchange):
            super()._average_chunk(lab, exchange)
            return
        count = len(group_exchange.members)
        moved = np.zeros((2, count), np.int64)
        for _ in range(min(count, len(exchange.left))):
            owner = (group_exchange.exchange + len(exchange.left)) % count
            chunk = exchange.left.pop()
            counted = group_exchange.average(chunk, owner)
            moved += counted.received, counted.sent
            group_exchange.initiator.averaged(chunk)
            exchange.average(1)
            self.tally.count_chunk(counted.blocks, counted.escalated)
        lab.received[[int.from_bytes(one.id, "big") for one in group_exchange.members]] += moved[0]
        if self.options.landing != "at once":
            exchange.delay(lab.setting.link.seconds(int(moved.max()), 0))

    def _end_exchange(self, lab: Lab, exchange: OpenExchange) -> None:
        super()._end_exchange(lab, exchange)
        if isinstance(exchange.dialogue, GroupExchange):
            for replica in exchange.dialogue.members[2:]:
                replica.end_exchange(mixed=True)
