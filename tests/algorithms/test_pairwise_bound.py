"""How the bound of `pairwise` follows training and partners over many rounds, on the real jobs."""

import numpy as np
import pytest

from gossipdp.algorithms.pairwise import MOST_A_ROUND, NORM_SHARE
from gossipdp.config import AUTO_CLIP
from gossipdp.protocol import jobs
from tests.algorithms.replicas import Replica, bounded, exchange, replicas


def test_bound_is_not_widened_by_distant_partners():
    """Dissensus attack (He et al. 2022): a partner at the largest distance does not widen the bound step by step."""
    i, j = bounded(0.1)
    first = i.algorithm._bound(0)
    for _ in range(20):
        j.ledger.a[:] = i.ledger.a + 10.0
        i.algorithm._mixed[:] = j.algorithm._mixed[:] = 0
        [turn] = exchange(i, j, "fp32")
        assert turn.share < 1.0
    i.algorithm._mixed[:] = 0
    assert i.algorithm._bound(0) <= first * 1.001


def test_exchanges_of_a_round_share_its_bound():
    """Peers come closer at each exchange. A liar met three times must not push three times as far."""
    i, j = bounded()
    first = i.algorithm._bound(0)
    for share in (2.0, 3.0, 3.0, 3.0):
        j.ledger.a[:] = i.ledger.a
        exchange(i, j, "fp32")
        assert i.algorithm._bound(0) == pytest.approx(first / share)
    i.outer(0.7, 0.8)
    assert i.algorithm._mixed.tolist() == [0]


class Trainee(Replica):
    """A replica with the default settings and the same progress of norm 1 each round."""

    def __init__(self, number):
        super().__init__(number, 256, clip=AUTO_CLIP)
        self.progress = np.random.default_rng(1).standard_normal(256).astype(np.float32)
        self.progress /= np.linalg.norm(self.progress)

    def round(self, rounds=1.0):
        """Make rounds: `part` of a usual one, or several."""
        self.settle()
        self.x += np.float32(rounds) * self.progress
        self.outer(0.7, 0.8, min(1.0, rounds))
        self.settle()
        return self.algorithm._bound(0)


@pytest.mark.parametrize("way", [1.0, -1.0])
def test_distant_liar_met_in_every_round_does_not_widen_the_bound(way):
    """Momentum must not widen it either: longer own steps of the victim would mean a wider bound."""
    victim, alone, liar = Trainee(1), Trainee(2), Replica(3, 256)
    for _ in range(60):
        bound, usual = victim.round(), alone.round()
        assert bound <= 1.001 * usual
        liar.ledger.a[:] = victim.ledger.a + np.float32(way * 1e3) * victim.progress
        [turn] = exchange(liar, victim, pull=0.3 / 0.7)
        assert turn.share < 1.0


def test_liar_just_within_the_bound_in_every_round_does_not_widen_it_without_limit():
    """Its differences are mixed whole and pull at momentum, but do not teach a wider bound."""
    victim, liar, bounds = Trainee(1), Replica(3, 256), []
    for _ in range(90):
        bounds.append(victim.round())
        liar.ledger.a[:] = victim.ledger.a - np.float32(0.99 * bounds[-1]) * victim.progress
        [turn] = exchange(liar, victim, pull=0.3 / 0.7)
        assert turn.share == 1.0
    assert bounds[-1] < 1.05 * bounds[-30] and bounds[-1] < 5.0 * bounds[10]


@pytest.mark.parametrize("factor", [2, 10, 30])
def test_slow_peer_with_rounds_as_long_as_a_fast_peers_does_not_lag(factor):
    """H by speed (algorithms section 8). All progress has one direction."""
    fast, slow = Trainee(1), Trainee(2)
    for _ in range(300):
        fast.round(2 * factor / (factor + 1))
        exchange(fast, slow, pull=0.3 / 0.7)
        slow.round(2 / (factor + 1))
    assert np.linalg.norm(fast.a) > 900 and np.linalg.norm(fast.a - slow.a) < 10


def test_bound_after_a_short_round_is_that_of_a_usual_round():
    usual, short = Trainee(1), Trainee(2)
    for _ in range(20):
        assert short.round(0.1) == pytest.approx(usual.round(), rel=1e-4)


def test_halves_that_trained_apart_come_together_through_clipped_exchanges():
    """They need four times the rounds that they walked in opposite directions."""
    sides = [[Trainee(2 * number + side) for number in range(4)] for side in (0, 1)]
    everybody, random, shares = sides[0] + sides[1], np.random.default_rng(0), []

    def play(rounds, groups):
        for _ in range(rounds):
            for replica in everybody:
                replica.round()
            for group in groups:
                order = [group[place] for place in random.permutation(len(group))]
                for first, second in zip(order[::2], order[1::2], strict=True):
                    shares.extend(turn.share for turn in exchange(first, second, pull=0.3 / 0.7))

    def apart():
        return np.linalg.norm(np.mean([r.a for r in sides[0]], axis=0) - np.mean([r.a for r in sides[1]], axis=0))

    for replica in sides[0]:
        replica.progress *= -1
    play(10, sides)
    distance = apart()
    assert distance > 8.0 * everybody[0].algorithm._bound(0)
    for replica in sides[0]:
        replica.progress *= -1
    shares.clear()
    play(40, [everybody])
    assert min(shares) < 0.2 and apart() < 0.01 * distance


def test_bound_before_any_step_or_distance_is_a_share_of_the_anchor():
    i, j = replicas(2, size=256, clip=2.0)
    bound = 2.0 * NORM_SHARE * np.linalg.norm(i.a)
    assert i.algorithm._bound(0) == pytest.approx(bound)
    j.ledger.a[:] = i.ledger.a
    exchange(i, j)
    i.algorithm._mixed[:] = 0
    # Equal anchors give a distance of 0, which predicts nothing.
    assert i.algorithm._bound(0) == pytest.approx(bound)


@pytest.mark.parametrize("codec", ["fp32", "modulo4"])
@pytest.mark.parametrize("still", [False, True])
@pytest.mark.parametrize("lie", [1e3, 1e12])
def test_first_exchange_with_a_liar_moves_a_peer_without_steps_little_and_is_soon_forgotten(codec, still, lie):
    """The same holds for a chunk without own steps: a constant buffer, or an unused expert."""
    victim, liar = Trainee(1), Replica(3, 256)
    victim.ledger.a[:] = np.random.default_rng(2).standard_normal(256)
    victim.x[:] = victim.ledger.a
    if still:
        for _ in range(3):
            victim.outer(0.7, 0.8)
    before, most = victim.a, 0.5 * AUTO_CLIP * NORM_SHARE * np.linalg.norm(victim.a)
    for number in range(3):
        liar.ledger.a[:] = victim.ledger.a + np.float32(lie) * victim.progress
        exchange(liar, victim, codec)
        assert np.linalg.norm(victim.a - before) <= most * (1.01, 1.51, 1.85)[number]
    honest, other = Trainee(2), Trainee(4)
    for _ in range(20):
        bound, usual = victim.round(), honest.round()
        other.ledger.a[:] = victim.ledger.a + np.float32(0.5) * victim.progress
        exchange(other, victim)
    assert bound <= 1.001 * usual


def test_peer_without_steps_keeps_up_with_a_partner_that_trains():
    """They meet once in each round of the partner, whose progress has one direction."""
    idle, other = Trainee(1), Trainee(1)
    for _ in range(5):
        idle.round()
        other.round()
        exchange(other, idle)
    for _ in range(40):
        other.round()
        exchange(other, idle)
        idle.algorithm.run(jobs.Renew())
    assert np.linalg.norm(other.a - idle.a) < 0.1 * np.linalg.norm(other.progress)


def test_all_exchanges_of_a_round_together_bring_no_more_than_some_bounds():
    victim, liar = Trainee(1), Replica(3, 256)
    victim.round()
    before, bound = victim.a, victim.algorithm._bound(0)
    for _ in range(200):
        liar.ledger.a[:] = victim.ledger.a + np.float32(1e3) * victim.progress
        exchange(liar, victim)
    assert np.linalg.norm(victim.a - before) == pytest.approx(0.5 * MOST_A_ROUND * bound, rel=1e-3)
    # A peer without steps lets partners in again when a round should be over.
    victim.algorithm.run(jobs.Renew())
    liar.ledger.a[:] = victim.ledger.a + np.float32(1e3) * victim.progress
    [turn] = exchange(liar, victim)
    assert turn.share > 0.0
    # A near partner brings little, and is mixed whole again after the next step.
    victim.round()
    liar.ledger.a[:] = victim.ledger.a + np.float32(0.1) * victim.progress
    assert [turn.share for _ in range(50) for turn in exchange(liar, victim)] == [1.0] * 50
