"""How many exchanges a round makes, when peers follow a schedule, and how they agree on the number of a round."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from gossipdp.protocol.pairwise.timetable import CROWDED, PATIENT, Timetable, exchanges_per_round

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
