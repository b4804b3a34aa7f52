"""Hypercube and Base-2 schedule (algorithms section 7): exact after a cycle, the same for all, and its timetable."""

import hashlib
import itertools
import math
import subprocess
import sys
from collections import Counter
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from gossipdp.errors import LocalProtocolError
from gossipdp.protocol.pairwise.schedule import Schedule, SchedulePosition
from gossipdp.protocol.pairwise.timetable import CROWDED, PATIENT, Timetable, exchanges_per_round

SEED = b"a run id"
SIZES = [*range(1, 65), 100, 128, 1000]
GOLDEN = "1:0.500 9:0.500 1:0.500 8:0.500 9:0.500 8:0.500 10:0.667 8:0.500 4:0.500 5:0.500"


def ids(count):
    return [hashlib.blake2b(number.to_bytes(2, "big"), digest_size=32).digest() for number in range(count)]


def meetings(schedule, step):
    """Partner and weight of every member that has a partner."""
    return {me: met for me in schedule.members if (met := schedule.partner(me, step)) is not None}


def mix(schedule, step, values):
    """One step's mixing matrix applied to the rows of `values`."""
    place = {peer: number for number, peer in enumerate(schedule.members)}
    mixed = values.copy()
    for me, (partner, weight) in meetings(schedule, step).items():
        mixed[place[me]] += weight * (values[place[partner]] - values[place[me]])
    return mixed


@pytest.mark.parametrize("count", SIZES)
def test_after_a_cycle_all_hold_the_exact_average(count):
    schedule = Schedule(ids(count), SEED)
    # The second cycle. Any other has another order and the same graph.
    product = np.eye(count)
    for step in range(schedule.period, 2 * schedule.period):
        product = mix(schedule, step, product)
    assert np.abs(product - 1.0 / count).max() < 1e-12


@pytest.mark.parametrize("count", SIZES)
def test_each_step_is_a_matching_with_equal_weights_on_both_sides(count):
    schedule = Schedule(ids(count), SEED)
    for step in range(schedule.period):
        met = meetings(schedule, step)
        for me, (partner, weight) in met.items():
            assert partner != me and met[partner] == (me, weight) and 0.5 <= weight < 1.0
        # Of an even number no member is idle, of an odd one exactly one is.
        assert count - len(met) == count % 2


@pytest.mark.parametrize("count", SIZES)
def test_steps_of_a_cycle_keep_the_bound_of_the_paper(count):
    period = Schedule(ids(count), SEED).period
    assert period <= 2.0 * math.log2(count) + 2.0
    if count & (count - 1) == 0:
        assert period == max(1, math.log2(count))


@pytest.mark.parametrize(("count", "steps"), [(3, 3), (5, 5), (6, 4), (7, 5), (12, 5), (24, 6), (33, 11), (1000, 16)])
def test_steps_of_a_cycle_of_the_base_2_graph(count, steps):
    # 2^s q members: s steps, and 2 floor(log2 q) + 1 for the odd q.
    assert Schedule(ids(count), SEED).period == steps


def test_powers_of_two_meet_along_a_hypercube_by_halves():
    schedule = Schedule(ids(16), SEED)
    met = [meetings(schedule, step) for step in range(4)]
    assert {weight for step in met for _, weight in step.values()} == {0.5}
    for me in schedule.members:
        # The dimensions commute: a then b leads to the same member as b then a.
        for a in range(4):
            for b in range(a):
                assert met[b][met[a][me][0]][0] == met[a][met[b][me][0]][0]
        assert len({step[me][0] for step in met}) == 4


def test_three_members_hand_on_two_thirds():
    schedule = Schedule(ids(3), SEED)
    weights = [sorted(weight for _, weight in meetings(schedule, step).values()) for step in range(3)]
    assert weights == [[0.5, 0.5], [2 / 3, 2 / 3], [0.5, 0.5]]


@pytest.mark.parametrize("count", [2, 8, 12, 33])
def test_members_in_any_order_and_asked_at_any_time_all_agree(count):
    members, random = ids(count), Random(count)
    reference = Schedule(members, SEED)
    expected = {step: meetings(reference, step) for step in range(4 * reference.period)}
    for me in members:
        shuffled = random.sample(members, count)
        mine = Schedule(shuffled, SEED)
        for step in random.sample(sorted(expected), len(expected)):
            assert mine.partner(me, step) == expected[step].get(me)


@pytest.mark.parametrize(("seed", "later"), [(SEED, 4), (b"another run", 0)])
def test_another_cycle_or_seed_gives_another_order(seed, later):
    members = ids(16)
    first = meetings(Schedule(members, SEED), 0)
    second = meetings(Schedule(members, seed), later)
    # By chance one in fifteen would meet the same.
    assert sum(first[me] == second[me] for me in members) < 6


def test_every_pair_meets_equally_often_over_many_cycles():
    schedule, cycles = Schedule(ids(8), SEED), 700
    for me in schedule.members[:2]:
        met = Counter(schedule.partner(me, step)[0] for step in range(3 * cycles))
        # 2,100 meetings, 7 others.
        assert len(met) == 7 and all(abs(count - 300) < 5 * 17 for count in met.values())


def test_every_member_is_idle_equally_often_over_many_cycles():
    schedule, cycles = Schedule(ids(5), SEED), 400
    for me in schedule.members:
        idle = sum(schedule.partner(me, step) is None for step in range(5 * cycles))
        # One of five in each step, two or more steps of a cycle in a row the same one.
        assert abs(idle - 400) < 5 * 45


def test_order_is_the_same_in_every_process_and_version():
    """Peers with different versions of Python and gossipdp follow one schedule, so these figures must not change."""
    program = (
        "from gossipdp.protocol.pairwise.schedule import Schedule\n"
        "members = [bytes([n]) * 32 for n in range(12)]\n"
        "schedule = Schedule(members, b'a run id')\n"
        "met = [schedule.partner(members[3], step) for step in range(10)]\n"
        "print(' '.join(f'{peer[0]}:{weight:.3f}' for peer, weight in met))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == GOLDEN


def test_a_lone_member_is_idle():
    schedule = Schedule(ids(1), SEED)
    assert [schedule.partner(schedule.members[0], step) for step in range(3)] == [None, None, None]


def test_unknown_members_and_wrong_steps_are_refused():
    members = ids(4)
    schedule = Schedule(members[:3], SEED)
    with pytest.raises(LocalProtocolError, match=f"{members[3][:4].hex()} is none of the schedule's 3 members"):
        schedule.partner(members[3], 0)
    with pytest.raises(LocalProtocolError, match="step -1"):
        schedule.partner(members[0], -1)
    with pytest.raises(LocalProtocolError, match="3 members, 2 of them distinct"):
        Schedule([members[0], members[1], members[0]], SEED)
    with pytest.raises(LocalProtocolError, match="0 members"):
        Schedule([], SEED)


def test_orders_of_past_cycles_are_dropped():
    schedule = Schedule(ids(12), SEED)
    for step in range(50 * schedule.period):
        schedule.partner(schedule.members[0], step)
    assert len(schedule._orders) <= 2


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 33])
def test_round_robin_pairs_all_and_nobody_meets_a_member_twice_in_a_row(count):
    schedule = Schedule([bytes([number]) * 32 for number in range(count)], b"seed")
    met = {me: [] for me in schedule.members}
    for step in range(2 * count):
        for me in schedule.members:
            other = schedule.opponent(me, step)
            assert (other == b"" and count % 2) or (other != me and schedule.opponent(other, step) == me)
            met[me] += [other] if other else []
    for me, others in met.items():
        assert set(others[: count - 1]) == set(schedule.members) - {me}


IDS = [bytes([number]) * 32 for number in range(8)]
EVERY = 10


class Network:
    """Members as peer 0 knows them. A clock of None: no report has come."""

    def __init__(self, members: int = 8, policy: str = "hypercube", early: bool = True, **pacing: object) -> None:
        self.members = members
        self.clocks: dict[int, int | None] = dict.fromkeys(range(8), 100)
        self.steps = dict.fromkeys(range(8), 100)
        usual = {"usual_every": EVERY, "warming_up": False, "usual_round": 20.0, "early": early}
        self.pacing = SimpleNamespace(**usual | pacing)
        membership = SimpleNamespace(settled=lambda now: tuple(IDS[: self.members]))
        self.timetable = Timetable(membership, self, self.pacing, policy=policy, early=3, late=2)  # type: ignore[arg-type]

    def of(self, peer: bytes) -> SimpleNamespace | None:
        clock = self.clocks[peer[0]]
        return None if clock is None else SimpleNamespace(id=peer, clock=clock, steps=self.steps[peer[0]])

    @property
    def mine(self) -> SimpleNamespace:
        report = self.of(IDS[0])
        assert report is not None
        return report

    def clock(self) -> int:
        return max(clock for clock in self.clocks.values() if clock is not None)

    def plan(self, fill: float = 0.0):
        self.pacing.fill = fill
        return self.timetable.plan(self.members, bytes(16), 1.0)


@pytest.mark.parametrize(("early", "exchanges"), [(True, 3), (False, 2)])
def test_early_rounds_make_more_exchanges(early: bool, exchanges: int) -> None:
    assert Network(early=early).plan().exchanges == exchanges


@pytest.mark.parametrize(("fill", "exchanges"), [(0.3, 3), (0.32, 2), (0.46, 2), (0.47, 1), (3.0, 1)])
def test_early_rounds_make_as_many_exchanges_as_fit(fill: float, exchanges: int) -> None:
    assert exchanges_per_round(8, 3, fill) == exchanges


@pytest.mark.parametrize(
    ("policy", "early", "fill", "members", "follows"),
    [
        ("hypercube", True, 0.1, 8, True),
        ("hypercube", True, 0.1, 7, False),
        ("hypercube", False, 0.1, 8, False),
        ("hypercube", False, CROWDED, 8, True),
        ("hypercube", False, CROWDED, 7, True),
        ("base2", False, 0.1, 7, True),
        ("", True, 1.0, 8, False),
        ("hypercube", True, 1.0, 0, False),
    ],
    ids=["early", "no power of two", "late", "crowded", "crowded, 7", "base2", "random", "view in doubt"],
)
def test_when_a_schedule_is_followed(policy: str, early: bool, fill: float, members: int, follows: bool) -> None:
    network = Network(members, policy, early)
    assert (network.plan(fill).schedule is not None) == follows


def test_the_partner_of_a_crowded_round_is_waited_for_half_a_round() -> None:
    network = Network()
    assert network.plan(0.1).patience == 0.0
    assert network.plan(CROWDED).patience == PATIENT * 20.0


def test_members_that_have_not_trained_are_no_partners_of_the_schedule() -> None:
    network = Network()
    network.clocks[7], network.steps[6] = None, 0
    schedule = network.plan(CROWDED).schedule
    assert schedule is not None and schedule.members == tuple(IDS[:6])
    network.steps[4] = network.steps[5] = 0
    assert network.plan(0.1).schedule is None, "four that train, of eight"
    network.steps[0] = 0
    assert network.plan(CROWDED).schedule is None, "this peer trains nothing"


def test_no_schedule_is_followed_during_the_warm_start() -> None:
    assert Network(warming_up=True).plan().schedule is None


def test_a_round_has_one_number_at_peers_that_begin_it_at_different_moments() -> None:
    first, last = Network(), Network()
    for step in range(110, 200, EVERY):
        first.clocks[0] = step
        numbers = [first.plan(CROWDED).number]
        for network in (first, last):
            network.clocks.update(dict.fromkeys(range(1, 8), step))
        last.clocks[0] = step
        numbers.append(last.plan(CROWDED).number)
        assert numbers == [step // EVERY] * 2


def test_peers_of_other_speeds_count_the_rounds_of_the_median() -> None:
    slow = Network()
    for round in range(1, 20):
        slow.clocks.update(dict.fromkeys(range(1, 8), 100 + EVERY * round))
        slow.clocks[0] = 100 + EVERY * round // 4
        assert slow.plan(CROWDED).number == 10 + round


def test_a_peer_whose_rounds_are_shorter_repeats_a_number_now_and_then() -> None:
    network, numbers = Network(), []
    for round in range(1, 40):
        network.clocks[0] = 100 + EVERY * round
        network.clocks.update(dict.fromkeys(range(1, 8), 100 + EVERY * int(0.9 * round)))
        numbers.append(network.plan(CROWDED).number)
        assert numbers[-1] - (10 + int(0.9 * round)) in (0, 1)
    assert all(later - earlier in (0, 1) for earlier, later in itertools.pairwise(numbers))


MEMBERS = tuple(bytes([number]) * 32 for number in range(8))


def test_peer_brings_one_step_of_the_next_round_forward_and_no_more() -> None:
    position = SchedulePosition(MEMBERS[0])
    position.begin(Schedule(MEMBERS, bytes(16)), 4, 1)
    for _ in range(2):
        partner, _ = position.next()
        assert [peer for peer in MEMBERS[1:] if position.serves(peer)] == [partner]
        assert position.met(partner, initiator=False)
    assert all(position.serves(peer) for peer in MEMBERS[1:]), "an exchange of no round"
    held = position.next()
    assert position.met(MEMBERS[1], initiator=False) and position.next() == held


def test_step_that_was_brought_forward_is_not_held_again() -> None:
    position, schedule = SchedulePosition(MEMBERS[0]), Schedule(MEMBERS, bytes(16))
    position.begin(schedule, 4, 1)
    for _ in range(2):
        position.met(b"", initiator=True)
    ahead = position.next()
    position.begin(schedule, 5, 1)
    assert position.next() == ahead
    position.begin(schedule, 9, 1)
    assert position.next() == (schedule.partner(MEMBERS[0], 9) or (b"", 0.0))
