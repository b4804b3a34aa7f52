"""The consensus ratio: its definition, and what a peer measures."""

import math
from types import SimpleNamespace

import pytest

from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.rounds.consensus_ratio import FARTHEST, RATIO_DECAY, ConsensusRatio
from gossipdp.protocol.rounds.pacing import FORGET_AFTER, Pacing
from gossipdp.protocol.rounds.speed import Speed
from simulations.simulator.settings import peer_config

SQRT2 = math.sqrt(2.0)


def fed(ratio: float, rounds: int) -> ConsensusRatio:
    """The ratio after rounds in each of which an exchange measures R = `ratio`."""
    one = ConsensusRatio()
    one.stepped(0.3)
    for _ in range(rounds):
        one.exchanged(SQRT2 * ratio * 0.3)
        one.stepped(0.3)
    return one


def test_ratio_is_of_two_means_over_time() -> None:
    one = ConsensusRatio()
    one.exchanged(2.0)
    one.stepped(1.0)
    assert math.isnan(one.value), "an exchange before the first outer step has nothing to be compared with"
    one.exchanged(2.0)
    assert one.value == pytest.approx(SQRT2)
    one.exchanged(3.0)
    one.stepped(2.0)
    wanted = (RATIO_DECAY * 2 + 0.3 * 3) / (SQRT2 * (RATIO_DECAY * 1 + 0.3 * 2))
    assert one.value == pytest.approx(wanted)


def test_unknown_distance_measures_nothing() -> None:
    one = fed(1.0, 3)
    before = one.value
    one.exchanged(math.nan)
    one.exchanged(math.inf)
    one.stepped(math.nan)
    assert one.value == before


def test_peers_that_stand_still_have_no_ratio() -> None:
    one = ConsensusRatio()
    for _ in range(18):
        one.exchanged(0.1)
        one.stepped(0.0)
        assert math.isnan(one.value)


def test_one_exchange_counts_as_farthest_at_most() -> None:
    one = fed(1.0, 20)
    one.exchanged(1e6)
    assert one.value == pytest.approx(RATIO_DECAY * 1.0 + (1 - RATIO_DECAY) * FARTHEST, rel=1e-3)


def test_forgotten_ratio_is_measured_anew() -> None:
    one = fed(2.0, 18)
    one.forget()
    assert math.isnan(one.value)


# -- in a peer -----------------------------------------------------------------------------------------------------


class Paced:
    """A peer past its warm start that exchanges once a round."""

    def __init__(self, *, clock: int = 10_000) -> None:
        self.now, self.rounds, self.movement = clock, 50, 0.3
        alone, contribution = SimpleNamespace(speeds=lambda lasting, now: []), SimpleNamespace(clock=clock)
        self.pacing = Pacing(peer_config(every=50).pacing, Outputs(), alone, Speed(), contribution)
        self.pacing.began(self.rounds, fresh=True)
        self.play(1.0, 1)

    def play(self, ratio: float, rounds: int, *, exchanges: bool = True) -> None:
        for _ in range(rounds):
            self.pacing.submitted(50, self.now)
            if exchanges:
                self.pacing.mixed(0.0, SQRT2 * ratio * 0.3)
            self.rounds += 1
            self.pacing.round_done(self.rounds, self.movement, self.movement, True, 0.0)


@pytest.mark.parametrize("ratio", [0.1, 3.0])
def test_peer_measures_its_distance_to_partners(ratio: float) -> None:
    peer = Paced()
    peer.play(ratio, 30)
    assert peer.pacing.ratio == pytest.approx(ratio, rel=1e-3) and peer.pacing.every == 50


def test_peer_that_is_alone_or_warms_up_measures_nothing() -> None:
    peer = Paced()
    peer.play(2.0, 12)
    peer.play(2.0, 1, exchanges=False)
    ratio = peer.pacing.ratio
    peer.movement = 1e6
    peer.play(2.0, FORGET_AFTER - 3, exchanges=False)
    assert peer.pacing.ratio == ratio, "what it does alone is not measured"
    peer.play(2.0, 1, exchanges=False)
    assert math.isnan(peer.pacing.ratio)
    warm = Paced(clock=100)
    warm.play(5.0, 30)
    assert math.isnan(warm.pacing.ratio)


def test_ratio_is_measured_anew_for_another_peers_model() -> None:
    peer = Paced()
    peer.play(2.0, 6)
    peer.pacing.resynced(62, 3.0)
    assert math.isnan(peer.pacing.ratio)
