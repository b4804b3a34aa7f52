"""The terms of exchanges follow what the link carried. The limit of lag follows how long a transfer took."""

import math
from types import SimpleNamespace

import pytest

from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.pairwise.terms import ExchangeTerms
from gossipdp.protocol.rounds.pacing import AGAINST_EXCHANGE, ALONE_AFTER, FULL, MEDIAN_OF, Pacing
from simulations.simulator.settings import averaging_config, peer_config

CHUNKS = 16
PAIRWISE = averaging_config()
WINDOW, PATIENCE = PAIRWISE.window, PAIRWISE.deadlines.ask


class Paced:
    """A peer past its warm start that has fetched the model, one chunk every `seconds`."""

    def __init__(self, seconds: float = 0.01, **changed: object) -> None:
        self.looks: list[float] = []
        self.speed = SimpleNamespace(
            factor=1.0,
            spread=0.0,
            peers=16,
            trained=lambda seconds, now: self.looks.append(seconds),
            compare=lambda others: None,
            rests=lambda: None,
        )
        config, self.contribution = peer_config(**{"every": 10, **changed}), SimpleNamespace(clock=10_000)
        alone = SimpleNamespace(speeds=lambda lasting, now: [])
        self.pacing = Pacing(config.pacing, Outputs(), alone, self.speed, self.contribution)
        self._terms = ExchangeTerms(self.pacing, "modulo", PAIRWISE.bits, WINDOW, PAIRWISE.kappa, PATIENCE)
        for chunk in range(CHUNKS):
            self._terms.chunk_received(5.0 + chunk * seconds)
        self._terms.fetched()
        self.pacing.began(50, fresh=True)

    def mixed(self, duration: float) -> None:
        self._terms.exchanged(CHUNKS, CHUNKS)
        self.pacing.mixed(duration)
        self._terms.choose()

    def in_vain(self) -> None:
        self._terms.exchanged(0, CHUNKS)
        self._terms.choose()

    @property
    def terms(self) -> tuple[str, int]:
        return self._terms.codec, self._terms.window

    @property
    def pull(self) -> float:
        return self._terms.pull


@pytest.mark.parametrize(
    ("patiences", "terms"),
    [(0.01, ("modulo16", WINDOW)), (0.9, ("modulo16", 1)), (1.5, ("modulo8", 1)), (3.0, ("modulo4", 1))],
)
def test_terms_follow_how_fast_the_transfer_arrived(patiences: float, terms: tuple[str, int]) -> None:
    assert Paced(patiences * PATIENCE).terms == terms


def test_exchanges_in_vain_lower_bits_and_window_and_mixing_restores_the_window() -> None:
    paced = Paced()
    paced.in_vain()
    assert paced.terms == ("modulo16", WINDOW), "a partner may have died"
    paced.in_vain()
    assert paced.terms == ("modulo8", 1)
    paced.in_vain()
    assert paced.terms == ("modulo4", 1)
    paced.in_vain()
    assert paced.terms == ("modulo3", 1)
    windows = []
    for _ in range(3):
        paced.mixed(1.0)
        windows.append(paced.terms)
    assert windows == [("modulo3", min(2**doubled, WINDOW)) for doubled in (1, 2, 3)]


def test_expected_transfer_time_follows_exchanges_and_the_last_transfer() -> None:
    paced = Paced()
    paced.pacing.submitted(10, 100.0)
    paced.pacing.submitted(10, 105.0)
    paced.mixed(3.0)
    assert paced.pacing.own(700).transfer == pytest.approx(AGAINST_EXCHANGE * 3.0 / 0.5)
    paced.pacing.resynced(50, 40.0)
    assert paced.pacing.own(700).transfer == pytest.approx(40.0 / 0.5)
    paced.mixed(30.0)
    assert paced.pacing.own(700).transfer == pytest.approx(AGAINST_EXCHANGE * 30.0 / 0.5)


def test_what_an_exchange_fills_of_a_round_is_a_median_and_its_room_is_a_little_less_than_a_round() -> None:
    paced, sync = Paced(), Paced(sync=True)
    assert (paced.pacing.fill, paced.pacing.room) == (0.0, math.inf)
    for each in (paced, sync):
        each.pacing.submitted(10, 100.0)
        each.pacing.submitted(10, 105.0)
        for duration in (9.0, 4.0, 0.0):
            each.mixed(duration)
        assert each.pacing.fill == 0.0, "two exchanges say little"
        for duration in (2.0, 2.5, 40.0):
            each.mixed(duration)
    assert paced.pacing.fill == pytest.approx(4.0 / 5.0)
    paced.mixed(2.0)
    assert paced.pacing.fill == pytest.approx(2.5 / 5.0)
    assert paced.pacing.room == pytest.approx(FULL * 5.0)
    assert (sync.pacing.fill, sync.pacing.room) == (0.0, math.inf), "rounds wait for their exchanges"


def test_outer_step_is_chosen_by_the_phase_and_by_what_an_exchange_fills_unless_it_is_set() -> None:
    free, stated = Paced(), Paced(lr=0.5, momentum=0.9)
    for each in (free, stated):
        each.pacing.submitted(10, 100.0)
        each.pacing.submitted(10, 105.0)
    found = []
    for clock, duration in ((999, 0.0), (1000, 0.0), (1000, 2.5), (1000, 8.0), (150, 8.0)):
        for each in (free, stated):
            each.contribution.clock = clock
            for _ in range(MEDIAN_OF):
                each.mixed(duration)
            each.pacing.mixed(0.0)
        found.append((free.pacing.outer().lr, free.pacing.outer().momentum))
        warming = clock == 150
        assert (stated.pacing.outer().lr, stated.pacing.outer().momentum) == ((1.0, 0.0) if warming else (0.5, 0.9))
    assert found == [(1.0, 0.6), (1.0, 0.8), (pytest.approx(0.85), 0.8), (pytest.approx(0.7), 0.8), (1.0, 0.0)]


def test_correction_waits_for_an_exchange_that_takes_a_third_of_its_round__without_momentum_never() -> None:
    free, stated = Paced(), Paced(momentum=0.0)
    found = []
    for seconds in (0.0, 1.7, 1.8):
        for each in (free, stated):
            each.pacing.submitted(10, 100.0)
            each.pacing.submitted(10, 105.0)
            for _ in range(MEDIAN_OF):
                each.mixed(seconds)
        found.append((free.pacing.outer().waits, stated.pacing.outer().waits))
    assert found == [(True, False), (True, False), (False, False)]
    free.contribution.clock = 150
    assert not free.pacing.outer().waits, "the warm start has no momentum"


def test_pull_is_that_of_the_last_round_or_exchange__none_without_training_or_company() -> None:
    paced = Paced(lr=0.5, momentum=0.9)
    paced.mixed(1.0)
    assert paced.pull == 0.0, "no training process has made a round"
    paced.pacing.round_done(51, 0.3, 0.3, True, 6.0)
    paced.contribution.clock = 150
    assert paced.pull == PAIRWISE.kappa / 0.5, "as chosen before"
    paced.mixed(1.0)
    assert paced.pull == 0.0, "the warm start has no momentum"
    paced.contribution.clock = 10_000
    paced.mixed(1.0)
    for rounds in range(52, 52 + ALONE_AFTER):
        assert paced.pull == PAIRWISE.kappa / 0.5
        paced.pacing.round_done(rounds, 0.3, 0.3, True, 7.0)
    assert paced.pull == 0.0, "alone it steps without momentum"
    paced.mixed(1.0)
    assert paced.pull > 0.0
    paced.pacing.detached()
    assert paced.pull == 0.0


def test_later_momentum_falls_with_the_spread_of_speeds_to_that_of_early_rounds() -> None:
    paced = Paced()
    paced.pacing.mixed(0.0)
    found = []
    for paced.speed.spread in (0.0, 0.625, 4.0):
        found.append(paced.pacing.outer().momentum)
    assert found == [0.8, pytest.approx(0.7), 0.6]


def test_few_members_have_less_momentum() -> None:
    """Two hosts with the momentum of many were worse than each alone, at rates that suit one host."""
    paced = Paced()
    paced.pacing.mixed(0.0)
    found = []
    for paced.speed.peers in (1, 2, 3, 4, 6, 1000):
        found.append(round(paced.pacing.outer().momentum, 3))
    assert found == [0.43, 0.43, 0.62, 0.715, 0.8, 0.8], "1: no member's speed is known yet"


def test_h_follows_speed_in_the_warm_start_and_is_at_least_one_step() -> None:
    paced = Paced()
    found = []
    for factor, clock in [(1.0, 10_000), (2.0, 10_000), (0.2, 10_000), (1 / 16, 10_000), (2.0, 0), (0.2, 0), (1.0, 0)]:
        paced.speed.factor, paced.contribution.clock = factor, clock
        paced.pacing.set()
        found.append(paced.pacing.every)
    assert found == [10, 20, 2, 1, 4, 1, 2]


@pytest.mark.parametrize(
    ("factor", "steps", "part"), [(1.0, 10, 1.0), (1.0, 5, 1.0), (2.0, 20, 1.0), (0.2, 2, 0.2), (0.2, 10, 1.0)]
)
def test_outer_step_is_scaled_by_its_share_of_a_usual_round(factor: float, steps: int, part: float) -> None:
    """This holds for a training process with its own H, and for a late snapshot."""
    paced = Paced()
    paced.speed.factor = factor
    paced.pacing.set()
    paced.pacing.submitted(steps, 1.0)
    assert paced.pacing.outer().part == pytest.approx(part)


def test_h_is_as_configured_to_the_step_after_a_fast_spell() -> None:
    """A peer of the usual speed follows a schedule, and counts the network's rounds by H."""
    paced = Paced()
    found = []
    for factor in (1.0, 1.24, 1.15, 1.0):
        paced.speed.factor = factor
        paced.pacing.set()
        found.append(paced.pacing.every)
    assert found == [10, 10, 10, 10]
    paced.speed.factor = 1.4
    paced.pacing.set()
    assert paced.pacing.every == 14
    paced.speed.factor = 1.2
    paced.pacing.set()
    assert paced.pacing.every == 14
    paced.speed.factor = 1.0
    paced.pacing.set()
    assert paced.pacing.every == 10


@pytest.mark.parametrize(("every", "factor", "part"), [(5, 1 / 16, 0.2), (1, 1 / 16, 1.0), (100, 1 / 16, 0.06)])
def test_round_of_one_step_counts_as_its_share_of_a_usual_round(every: int, factor: float, part: float) -> None:
    paced = Paced(every=every)
    paced.speed.factor = factor
    paced.pacing.set()
    paced.pacing.submitted(paced.pacing.every, 1.0)
    assert paced.pacing.outer().part == pytest.approx(part)


def test_share_of_a_round_uses_the_speed_that_set_its_length() -> None:
    """A host that turns out to be slow has made a whole round. One that is fast again has made a short one."""
    paced = Paced()
    paced.speed.trained = lambda seconds, now: setattr(paced.speed, "factor", 0.1 if seconds > 0.5 else 1.0)
    found = []
    for steps, now in ((10, 0.0), (10, 10.0), (1, 10.1)):
        paced.pacing.submitted(steps, now)
        found.append(paced.pacing.outer().part)
        paced.pacing.set()
    assert found == [1.0, 1.0, pytest.approx(0.1)] and paced.pacing.every == 10


def test_peer_without_a_training_process_says_so() -> None:
    paced = Paced()
    rested = []
    paced.speed.rests = lambda: rested.append(True)
    paced.pacing.detached()
    assert rested == [True]


@pytest.mark.parametrize(("changed", "looks"), [({}, [0.5]), ({"sync": True}, [])])
def test_speed_counts_where_rounds_do_not_wait_for_each_other(changed: dict, looks: list) -> None:
    paced = Paced(**changed)
    paced.pacing.submitted(7, 1.0)
    paced.pacing.submitted(2, 2.0)
    assert paced.looks == looks


@pytest.mark.parametrize("goes_on", [True, False])
def test_step_is_not_timed_by_snapshots_that_waited_while_the_daemon_slept(goes_on: bool) -> None:
    paced = Paced()
    paced.looks.clear()
    for steps, now in ((10, 100.0), (10, 105.0)):
        paced.pacing.submitted(steps, now)
    paced.pacing.slept(1000.0)
    late = ((10, 1000.0), (1780, 1000.1), (10, 1005.1)) if goes_on else ((10, 1003.0), (10, 1008.0), (10, 1013.0))
    for steps, now in late:
        paced.pacing.submitted(steps, now)
    assert paced.looks == pytest.approx([0.5, 0.5])


def test_sleep_of_the_daemon_does_not_count_as_training_standing_still() -> None:
    paced = Paced()
    for steps, now in ((10, 100.0), (10, 105.0)):
        paced.pacing.submitted(steps, now)
    paced.pacing.round_done(51, 0.1, 0.1, True, 105.0)
    due = paced.pacing.timer() - 105.0
    paced.pacing.slept(1000.0)
    assert paced.pacing.timer() == pytest.approx(1000.0 + due)
