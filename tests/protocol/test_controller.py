"""The consensus-distance controller (algorithms section 7): what R calls for, how long a level stands, and what a peer
makes of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from types import SimpleNamespace

import pytest

from gossipdp.protocol import controller
from gossipdp.protocol.averaging import AveragingConfig
from gossipdp.protocol.controller import (
    DECAY,
    FARTHEST,
    HIGHEST,
    HOLD,
    LONGEST_HOLD,
    LOWEST,
    Controller,
    Terms,
    moved,
    terms_of,
)
from gossipdp.protocol.events import LevelChanged, Pace
from gossipdp.protocol.membership import LOCAL
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.pacing import FORGET_AFTER, Pacing, Timetable
from gossipdp.protocol.peer_config import PeerConfig
from gossipdp.protocol.rounds import Outer

SQRT2 = math.sqrt(2.0)


# -- arithmetic ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "terms"),
    [
        (-2, (0, 1.69, 1.0)),
        (-1, (0, 1.3, 1.0)),
        (0, (0, 1.0, 1.0)),
        (1, (1, 1.0, 1.0)),
        (2, (1, 0.7, 1.0)),
        (3, (1, 0.49, 1.0)),
        (4, (1, 0.343, 1.0)),
        (5, (1, 0.343, 0.5)),
    ],
)
def test_levels_are_an_exchange_then_shorter_rounds_then_less_momentum_and_longer_rounds_on_the_other_side(
    level: int, terms: tuple[int, float, float]
) -> None:
    found = terms_of(level)
    assert (found.exchanges, pytest.approx(found.every), found.momentum) == terms
    assert LOWEST <= level <= HIGHEST


def test_the_ladder_ends_where_the_table_does() -> None:
    assert (LOWEST, HIGHEST) == (-2, 5) and terms_of(0) == Terms()


@pytest.mark.parametrize(
    ("level", "ratio", "then"),
    [
        (0, 1.5, 0),
        (0, 1.51, 1),
        (0, 0.5, 0),
        (0, 0.49, -1),
        (1, 1.51, 2),
        (1, 0.76, 1),
        (1, 0.74, 0),
        (3, 0.74, 2),
        (3, 0.1, 2),
        (5, 9.9, 5),
        (-1, 0.74, -1),
        (-1, 0.76, 0),
        (-1, 0.49, -2),
        (-2, 0.01, -2),
        (-2, 9.9, -1),
        (2, math.nan, 2),
        (-1, math.nan, -1),
    ],
)
def test_level_that_follows(level: int, ratio: float, then: int) -> None:
    assert moved(level, ratio) == then


@pytest.mark.parametrize(
    ("level", "ratio", "then"), [(0, 0.1, 0), (1, 0.1, 0), (-1, 0.1, 0), (-2, 0.1, -1), (0, 2.0, 1)]
)
def test_level_that_follows_where_rounds_are_not_to_grow_longer(level: int, ratio: float, then: int) -> None:
    assert moved(level, ratio, lowest=0) == then


# -- measuring -----------------------------------------------------------------------------------------------------


def fed(ratio: float, rounds: int, of: Controller | None = None, *, relax: bool = True) -> tuple[Controller, list[int]]:
    """So many rounds in each of which an exchange finds R = `ratio`; the level after each."""
    one, levels = of or Controller(), []
    one.stepped(0.3)
    for _ in range(rounds):
        one.exchanged(SQRT2 * ratio * 0.3)
        one.stepped(0.3)
        one.settle(relax=relax)
        levels.append(one.level)
    return one, levels


def test_ratio_is_of_two_means_over_time() -> None:
    one = Controller()
    one.exchanged(2.0)
    one.stepped(1.0)
    assert math.isnan(one.ratio), "an exchange before the first outer step has nothing to be compared with"
    one.exchanged(2.0)
    assert one.ratio == pytest.approx(SQRT2)
    one.exchanged(3.0)
    one.stepped(2.0)
    assert one.ratio == pytest.approx((DECAY * 2 + 0.3 * 3) / (SQRT2 * (DECAY * 1 + 0.3 * 2)))


def test_peers_that_step_independently_and_meet_once_a_round_stay_within_the_target() -> None:
    """R^2 = 1/(1 - rho) with rho = (N-2)/(2(N-1)): what the target of 1.5 leaves room for."""
    for peers in (2, 8, 16, 10_000):
        rho = (peers - 2) / (2 * (peers - 1))
        assert 1.0 <= math.sqrt(1 / (1 - rho)) < controller.TARGET


def test_distance_that_is_not_known_measures_nothing() -> None:
    one, _ = fed(1.0, 3)
    before = one.ratio
    one.exchanged(math.nan)
    one.exchanged(math.inf)
    one.stepped(math.nan)
    assert one.ratio == before


def test_peers_that_stand_still_have_no_ratio_and_keep_their_level() -> None:
    one = Controller()
    for _ in range(3 * HOLD):
        one.exchanged(0.1)
        one.stepped(0.0)
        assert math.isnan(one.ratio) and not one.settle(relax=True)


@pytest.mark.parametrize("usual", [0.6, 1.0, 1.3])
def test_one_bad_partner_in_fifteen_moves_no_level(usual: float) -> None:
    one, worst = Controller(), 0.0
    one.stepped(0.3)
    for number in range(600):
        one.exchanged(1e6 if number % 15 == 14 else SQRT2 * usual * 0.3)
        worst = max(worst, one.ratio)
        one.stepped(0.3)
        assert not one.settle(relax=True) and not one.level
    assert worst == pytest.approx(DECAY * usual + (1 - DECAY) * FARTHEST, rel=0.02)


def test_network_that_really_parted_is_noticed_in_two_exchanges() -> None:
    one, _ = fed(1.0, HOLD)
    for _ in range(2):
        one.exchanged(SQRT2 * 300.0)
    assert controller.TARGET < one.ratio < FARTHEST


# -- holding -------------------------------------------------------------------------------------------------------


def test_levels_come_one_at_a_time_after_holding() -> None:
    _, levels = fed(2.0, 6 * HOLD)
    assert levels == [(number + 1) // HOLD for number in range(6 * HOLD)][: 5 * HOLD] + [5] * HOLD


def test_levels_are_undone_in_reverse_order() -> None:
    one, _ = fed(2.0, 5 * HOLD)
    _, levels = fed(0.6, 6 * HOLD, one)
    assert [level for level, before in zip(levels, [5, *levels], strict=False) if level != before] == [4, 3, 2, 1, 0]


def test_rounds_grow_longer_while_peers_hardly_differ_and_only_if_that_is_wanted() -> None:
    assert fed(0.2, 3 * HOLD)[1][-1] == -2
    assert fed(0.2, 3 * HOLD, relax=False)[1][-1] == 0


def test_between_the_marks_nothing_moves() -> None:
    for level, ratio in ((0, 1.0), (1, 1.0), (-1, 0.6)):
        one, _ = fed(ratio, HOLD)
        one.level = level
        assert set(fed(ratio, 5 * HOLD, one)[1]) == {level}


def test_rounds_without_an_exchange_hold_no_level_ripe() -> None:
    one, _ = fed(2.0, HOLD - 1)
    for _ in range(50):
        one.stepped(0.3)
        assert not one.settle(relax=True)
    assert fed(2.0, 1, one)[1] == [1]


def test_level_that_is_needed_only_when_it_is_gone_is_undone_ever_more_seldom() -> None:
    """A plant that would oscillate: R 0.6 with the second exchange, 2.0 without it."""
    one, changes = Controller(), []
    for number in range(2000):
        one.exchanged(SQRT2 * (0.6 if one.level else 2.0))
        one.stepped(1.0)
        if one.settle(relax=True):
            changes.append((number, one.level))
    held = [after - before for (before, level), (after, _) in pairwise(changes) if level == 1]
    assert [after - before for before, after in pairwise(held[:5])] == [HOLD * 2**doubled for doubled in range(4)]
    assert LONGEST_HOLD <= max(held) <= LONGEST_HOLD + HOLD, "R takes a while to fall"
    assert {level for _, level in changes} == {0, 1}


def test_what_is_forgotten_is_measured_anew() -> None:
    one, _ = fed(2.0, 3 * HOLD)
    one.forget()
    assert one.level == 0 and math.isnan(one.ratio)
    assert fed(2.0, HOLD, one)[1] == [0] * (HOLD - 1) + [1]


# -- in a peer -----------------------------------------------------------------------------------------------------

AVERAGING = AveragingConfig(fineness={}, settings=b"the settings....")


class Paced:
    """A peer past its warm start that exchanges once a round."""

    def __init__(self, *, on: bool = True, every: int = 50, clock: int = 10_000, early_steps: int = 1000) -> None:
        self.speed = SimpleNamespace(factor=1.0, trained=lambda seconds, now: None, rests=lambda: None)
        model = SimpleNamespace(chunks=4)
        self.averaging = SimpleNamespace(model=model, codec="", window=0, pull=0.0)
        self.rounds = SimpleNamespace(rounds=50, open=True, movement=0.3)
        self.outputs = Outputs()
        self.now = clock
        self.config = PeerConfig(
            membership=LOCAL, averaging=AVERAGING, every=every, controller=on, early_steps=early_steps
        )
        self.pacing = Pacing(self.config, self.rounds, self.averaging, self.outputs, self.speed, clock=lambda: self.now)
        self.pacing.began(fresh=True)
        self.pacing.set()
        self.play(1.0, 1)

    def play(self, ratio: float, rounds: int, *, exchanges: bool = True, lasting: float = 0.0) -> None:
        for _ in range(rounds):
            self.pacing.submitted(10, self.now)
            if exchanges:
                self.pacing.mixed(4, lasting, SQRT2 * ratio * 0.3)
            self.rounds.rounds += 1
            self.pacing.round_done(0.0)

    def heard(self, kind: type) -> list:
        return [event for event in self.outputs.events if isinstance(event, kind)]


def test_peer_that_disagrees_tells_each_level_and_paces_itself_by_it() -> None:
    peer = Paced()
    peer.play(2.0, 6 * HOLD)
    assert [event.level for event in peer.heard(LevelChanged)] == [1, 2, 3, 4, 5]
    first = peer.heard(LevelChanged)[0]
    assert (first.exchanges, first.every, first.momentum) == (1, 1.0, 1.0) and first.ratio == pytest.approx(2.0)
    assert [event.every for event in peer.heard(Pace)] == [50, 35, 24, 17]
    assert peer.pacing.outer() == Outer(0.7, 0.5)
    assert peer.averaging.pull == pytest.approx(0.3 / 0.7), "what momentum sees of the mixing is agreed, and stays"
    assert (peer.pacing.level, peer.pacing.ratio) == (5, pytest.approx(2.0))


def test_momentum_below_the_controllers_is_kept() -> None:
    peer = Paced()
    peer.pacing._config = PeerConfig(membership=LOCAL, averaging=AVERAGING, controller=True, momentum=0.3)
    peer.play(2.0, 6 * HOLD)
    assert peer.pacing.level == 5 and peer.pacing.outer().momentum == 0.3


def test_first_round_at_another_pace_is_exchanged_finely() -> None:
    peer = Paced()
    peer.play(2.0, 2 * HOLD - 1)
    assert (peer.pacing.every, peer.averaging.codec) == (50, "modulo4")
    peer.play(2.0, 1)
    assert peer.pacing.every == 35
    peer.rounds.rounds += 1
    peer.pacing._choose_terms()
    assert peer.averaging.codec == "modulo8"


def test_rounds_get_no_shorter_than_their_exchanges_last() -> None:
    peer = Paced()
    for number in range(6 * HOLD):
        peer.pacing.submitted(10, float(number))  # 0.1 s a step
        peer.pacing.mixed(4, 1.9, SQRT2 * 2.0 * 0.3)
        peer.rounds.rounds += 1
        peer.pacing.round_done(0.0)
    assert peer.pacing.level == 5 and peer.pacing.every == 38, "two exchanges of 19 steps each"


def test_peer_that_hardly_disagrees_makes_longer_rounds_but_not_early_ones() -> None:
    early = Paced(clock=500)
    early.play(0.2, 3 * HOLD)
    assert (early.pacing.level, early.pacing.every) == (0, 50)
    late = Paced(every=100)
    late.play(0.2, 3 * HOLD)
    assert (late.pacing.level, late.pacing.every) == (-2, 169)
    assert late.pacing.outer() == Outer(0.7, 0.7)


def test_controller_that_is_off_measures_and_changes_nothing() -> None:
    for ratio in (0.1, 3.0):
        peer = Paced(on=False)
        peer.play(ratio, 5 * HOLD)
        assert peer.pacing.ratio == pytest.approx(ratio) and peer.pacing.terms == Terms()
        assert not peer.heard(LevelChanged) and [event.every for event in peer.heard(Pace)] == [50]
        assert peer.pacing.outer() == Outer(0.7, 0.7)


def test_peer_that_is_alone_or_warms_up_is_not_controlled() -> None:
    peer = Paced()
    peer.play(2.0, 2 * HOLD)
    assert peer.pacing.every == 35
    peer.play(2.0, 1, exchanges=False)
    assert peer.pacing.level == 2 and peer.pacing.outer() == Outer(1.0, 0.0), "alone: the rule for that stands above"
    ratio = peer.pacing.ratio
    peer.rounds.movement = 1e6
    peer.play(2.0, FORGET_AFTER - 3, exchanges=False)
    assert (peer.pacing.level, peer.pacing.ratio) == (2, ratio), "what it does alone is not measured"
    peer.play(2.0, 1, exchanges=False)
    last = peer.heard(LevelChanged)[-1]
    assert last.level == 0 and math.isnan(last.ratio) and math.isnan(peer.pacing.ratio)
    assert peer.pacing.every == 50 and peer.pacing.outer() == Outer(1.0, 0.0)
    warm = Paced(clock=100)
    warm.play(5.0, 5 * HOLD)
    assert warm.pacing.level == 0 and not warm.heard(LevelChanged) and warm.pacing.outer() == Outer(1.0, 0.0)


def test_model_of_another_is_measured_anew() -> None:
    peer = Paced()
    peer.play(2.0, HOLD)
    peer.pacing.resynced(3.0)
    assert peer.pacing.level == 0 and [event.level for event in peer.heard(LevelChanged)] == [1, 0]


class Wanted:
    """Stands for `Averaging`: how many exchanges a round asked for, and along which schedule."""

    def __init__(self, company: Iterable[bytes]) -> None:
        self.company = set(company)
        self.schedule: object = None
        self.exchanges: list[tuple[int, bool]] = []

    def want(self, exchanges: int, now: float, number: int) -> None:
        self.exchanges.append((exchanges, self.schedule is not None))


@pytest.mark.parametrize(("level", "wanted"), [(0, (3, True)), (1, (4, False)), (-1, (3, False))])
def test_round_makes_one_exchange_more_and_keeps_step_with_no_schedule(level: int, wanted: tuple[int, bool]) -> None:
    ids = [bytes([number]) * 32 for number in range(8)]
    averaging = Wanted(ids[1:])
    pacing = SimpleNamespace(level=level, terms=terms_of(level), every=10, warming_up=False, speed=1.0)
    membership = SimpleNamespace(settled=lambda now: ids)
    progress = SimpleNamespace(clock=lambda: 100, of=lambda peer: SimpleNamespace(clock=100))
    config = PeerConfig(membership=LOCAL, averaging=AVERAGING)
    Timetable(config, membership, progress, averaging, pacing).begin_round(100, bytes(16), 1.0)
    assert averaging.exchanges == [wanted]


@pytest.mark.parametrize(
    ("settled", "clocks", "followed"),
    [
        (8, {}, True),
        (8, {5: 120, 6: 80}, True),
        (8, {5: 121}, False),
        (8, {5: 79}, False),
        (8, {5: None}, False),
        (7, {}, False),
        (0, {}, False),
    ],
    ids=["in-step", "two-rounds-off", "ahead", "behind", "unheard", "no-power-of-two", "in-doubt"],
)
def test_schedule_is_followed_only_while_the_view_is_fresh_and_all_keep_step(
    settled: int, clocks: dict[int, int | None], followed: bool
) -> None:
    ids = [bytes([number]) * 32 for number in range(8)]
    averaging = Wanted(ids[1:])

    def report(peer: bytes) -> SimpleNamespace | None:
        clock = clocks.get(peer[0], 100)
        return None if clock is None else SimpleNamespace(clock=clock)

    pacing = SimpleNamespace(level=0, terms=terms_of(0), every=10, warming_up=False, speed=1.0)
    membership = SimpleNamespace(settled=lambda now: tuple(ids[:settled]))
    progress = SimpleNamespace(clock=lambda: 100, of=report)
    config = PeerConfig(membership=LOCAL, averaging=AVERAGING)
    Timetable(config, membership, progress, averaging, pacing).begin_round(100, bytes(16), 1.0)
    assert averaging.exchanges == [(3, followed)]
