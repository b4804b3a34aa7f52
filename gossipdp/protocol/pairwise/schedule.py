"""Schedules after which all members hold the exact average: hypercube and Base-2 graph.

A schedule follows from the members, a seed and a step number alone. Members that agree on these agree on every meeting
without a message. Steps come in cycles of `period`. Each cycle has a new order of the members, drawn from the seed, so
that partners change. In each step a member has at most one partner. `timetable` decides whether a schedule is followed.

For N = 2^m this is the one-peer hypercube, i meets i XOR 2^k: m steps, all with weight 1/2. Otherwise it is the
Base-(k+1) graph with k = 1 (Takezawa, Sato, Bao, Niwa, Yamada 2023, "Beyond Exponential Graph: Communication-Efficient
Topologies for Decentralized Learning via Finite-time Convergence", NeurIPS 2023, arXiv 2305.11420, algorithms 1 to 3).
With N = 2^s q, q odd, the members form 2^s groups of q:

    1. In every group, the Simple Base-2 graph, 2 floor(log2 q) + 1 steps. q is a sum of powers of two, largest first:
       blocks B_0, B_1, ... of so many members. A hypercube in each block, until B_0 is through; then one step for each
       block but the last, in which every member of the blocks after B_l meets its own member of B_l with the weight
       |B_l| / (|B_l| + |B_l+1| + ...); then B_l holds the group's average as a whole, and finds it by a hypercube.
    2. A hypercube over the groups, s steps: those at the same place in their groups meet.

A meeting moves both towards each other by the same weight w: a_i += w (a_j - a_i), a_j += w (a_i - a_j). A step's
mixing matrix is therefore symmetric and doubly stochastic, the sum is kept, and an exchange can carry it out as it is.

A member that step 1 leaves idle is given a partner too, because replicas drift apart between two steps. Members of one
block that hold the same value may meet without harm. One member of every group has no partner left there: it meets its
counterpart in another group. That keeps the average over all groups at every place, and step 2 removes differences
between groups. So no member is idle when N is even, and one member a step when N is odd.

Weights: an exchange's weight is the smaller of both sides' wishes (`offers`). Both sides of a meeting read the same
weight here, so both wish it instead of the configured gamma of 1/2. A side that does not follow the schedule wishes
1/2, and the meeting averages the pair: only the cycle is not exact. A responder wishes more than 1/2 only of the
partner that the schedule names, so an offer alone never raises how far an anchor is moved. With a gamma below 1/2 no
schedule is exact, and the wish is 2 gamma w.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from gossipdp.errors import LocalProtocolError
from gossipdp.protocol.wire.messages import short

__all__ = ["Schedule", "SchedulePosition"]

_HALF: Final = 0.5
_CYCLES: Final = 2
"""orders kept: of this cycle, and of members one step behind or ahead"""


class Schedule:
    """The meetings of a set of members.

    Args:
        members: ids of all that take part, this peer among them, in any order.
        seed: shared by all. Another seed gives other orders.
    """

    def __init__(self, members: Sequence[bytes], seed: bytes) -> None:
        self.members = tuple(sorted(members))
        if len(set(self.members)) != len(members) or not members:
            raise LocalProtocolError(f"a schedule of {len(members)} members, {len(set(members))} of them distinct")
        self.period = _period(len(members))
        """steps of a cycle, after which all hold the average of what they held at its start"""
        self._known = frozenset(members)
        self._seed = seed
        self._orders: dict[int, tuple[list[bytes], dict[bytes, int]]] = {}

    def partner(self, me: bytes, step: int) -> tuple[bytes, float] | None:
        """The partner of `me` in `step`, counted from 0, and the weight; None if it is idle."""
        if me not in self._known:
            raise LocalProtocolError(f"{short(me)} is none of the schedule's {len(self.members)} members")
        if step < 0:
            raise LocalProtocolError(f"step {step} of a schedule, which begins with 0")
        cycle, phase = divmod(step, self.period)
        order, positions = self._order(cycle)
        met = _meeting(len(order), positions[me], phase)
        return None if met is None else (order[met[0]], met[1])

    def opponent(self, me: bytes, step: int) -> bytes:
        """The partner of `me` in `step` of a round robin, in which partners differ; b"" if it is idle."""
        order, positions = self._order(0)
        rounds, place = len(order) - 1 | 1, positions[me]
        last = len(order) - 1 if rounds < len(order) else None  # of an even number: it meets those left over
        other = step * (rounds + 1) // 2 % rounds if place == last else (step - place) % rounds
        if other == place:
            return b"" if last is None else order[last]
        return order[other]

    def _order(self, cycle: int) -> tuple[list[bytes], dict[bytes, int]]:
        """The members as they stand in `cycle`, and where each stands."""
        if cycle not in self._orders:
            # Sorted by keyed hash: a shuffle that is the same in every Python, unlike that of `random`.
            person = b"gossipdp cycle"
            key = hashlib.blake2b(cycle.to_bytes(16, "big") + self._seed, digest_size=32, person=person).digest()
            order = sorted(self.members, key=lambda peer: hashlib.blake2b(peer, digest_size=16, key=key).digest())
            while len(self._orders) >= _CYCLES:
                del self._orders[next(iter(self._orders))]
            self._orders[cycle] = order, {peer: position for position, peer in enumerate(order)}
        return self._orders[cycle]


def _split(members: int) -> tuple[int, int]:
    """s and q: members = 2^s q, q odd."""
    s = (members & -members).bit_length() - 1
    return s, members >> s


def _period(members: int) -> int:
    s, q = _split(members)
    return max(1, s + _simple_period(q))


def _simple_period(q: int) -> int:
    """Steps of the Simple Base-2 graph of odd q: 2 floor(log2 q) + 1, none for one member."""
    return 0 if q == 1 else 2 * (q.bit_length() - 1) + 1


def _meeting(members: int, position: int, phase: int) -> tuple[int, float] | None:
    """Position and weight of the partner of the member at `position`, in the step `phase` of a cycle."""
    s, q = _split(members)
    group, place = divmod(position, q)
    inside = _simple_period(q)
    if phase < inside:
        met = _simple_meeting(q, place, phase)
        if met is not None:
            return group * q + met[0], met[1]
        dimension = phase
    else:
        dimension = phase - inside
    return None if s == 0 else ((group ^ 1 << dimension % s) * q + place, _HALF)


def _simple_meeting(q: int, place: int, phase: int) -> tuple[int, float] | None:
    """The same in one group of odd size, the Simple Base-2 graph."""
    powers = [power for power in reversed(range(q.bit_length())) if q >> power & 1]
    first, rest = 0, q
    for number, power in enumerate(powers):
        # In the step `hands_on` this block meets all those after it, `rest` in number, one each.
        size, hands_on = 1 << power, powers[0] + number
        rest -= size
        within = place - first
        if phase == hands_on and rest:
            weight = size / (size + rest)
            if within >= size:
                return first + (within - size), weight
            if within < rest:
                return first + size + within, weight
            # The others of this block hold the same value: they may meet two by two.
            neighbour = rest + (within - rest ^ 1)
            return (first + neighbour, _HALF) if neighbour < size else None
        if within < size:
            if not power:
                return None
            step = phase if phase < powers[0] else phase - hands_on - 1
            return first + (within ^ 1 << step % power), _HALF
        first += size
    raise AssertionError("a place outside its group")


class SchedulePosition:
    """Where one peer stands in the schedule that all follow: which of its steps it meets next.

    A round holds as many steps as it makes exchanges, and their numbers follow the network's round. So all peers that
    follow agree on them without a message. A peer that is a little ahead may bring a step forward: it is then held, and
    not held again.
    """

    def __init__(self, me: bytes) -> None:
        self._me = me
        self._schedule: Schedule | None = None
        self._step = self._last = 0
        """the step to meet next, and the first of the next round"""

    def begin(self, schedule: Schedule | None, number: int, exchanges: int) -> None:
        """Round `number` of the network begins, with `exchanges`, along `schedule` if there is one."""
        self._schedule = schedule
        begin, self._last = number * exchanges, (number + 1) * exchanges
        # More than one round ahead, the steps were counted in another way.
        if schedule is not None and not begin <= self._step <= self._last:
            self._step = begin

    def next(self) -> tuple[bytes, float]:
        """The partner that the next step names, and the weight; b"" and 0 without one."""
        return (self._schedule and self._schedule.partner(self._me, self._step)) or (b"", 0.0)

    def serves(self, partner: bytes) -> bool:
        """Would an exchange that `partner` offers be the next step's?

        An exchange outside the schedule belongs to no round. One that comes a step early is that step's.
        """
        return self._schedule is None or self._step > self._last or partner == self.next()[0]

    def met(self, partner: bytes, *, initiator: bool) -> bool:
        """An exchange with `partner` begins. Is it the next step's?"""
        counts = initiator or self.serves(partner)
        self._step += counts and self._schedule is not None and self._step <= self._last
        return counts
