"""What one exchange mixes once training is over (algorithms section 12)."""

from __future__ import annotations

import numpy as np
import pytest

from gossipdp.algorithms.pairwise import NORM_SHARE, PLAUSIBLE
from gossipdp.protocol import jobs
from tests.algorithms.replicas import Replica, exchange
from tests.algorithms.test_pairwise_bound import Trainee

USUAL = np.sqrt(2.0)
"""usual distance of trainees after one round, whose step has the norm 1"""


def trained(number, rounds=1):
    trainee = Trainee(number)
    for _ in range(rounds):
        trainee.settle()
        trainee.x += trainee.progress
        trainee.outer(1.0, 0.0)
        trainee.settle()
    return trainee


def meet(distance, share=1.0, codec="fp32"):
    """Two trainees this far apart exchange in the closing. Returns the turn, both, and how far each has moved."""
    one, two = trained(1), trained(2)
    two.ledger.a[:] = one.ledger.a + np.float32(distance) * one.progress
    before = one.a, two.a
    for each in (one, two):
        each.run(jobs.Widen(share))
    [turn] = exchange(one, two, codec)
    return turn, one, two, [np.linalg.norm(each.a - old) for each, old in zip((one, two), before, strict=True)]


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_plausible_difference_is_mixed_whole_and_a_longer_one_not_at_all(share):
    bound = share * PLAUSIBLE * USUAL
    turn, one, two, _ = meet(0.99 * bound, share)
    assert turn.share == 1.0 and np.linalg.norm(one.a - two.a) < 1e-5 * bound
    turn, _, _, moved = meet(1.01 * bound, share)
    assert turn.share == 0.0 and moved == [0.0, 0.0]


def test_partner_too_far_away_does_not_make_the_next_grid_coarse():
    turn, one, *_ = meet(1e6, codec="modulo16")
    assert turn.share == 0.0 and one.algorithm.range.max() < 1.0


def test_claim_of_a_larger_bound_than_a_peers_own_moves_it_no_further():
    victim, liar = trained(1), trained(2)
    liar.algorithm.clip = np.inf
    victim.run(jobs.Widen(1.0))
    liar.ledger.a[:] = victim.ledger.a + np.float32(1.01 * PLAUSIBLE * USUAL) * victim.progress
    before = victim.a
    [turn] = exchange(liar, victim)
    assert turn.share == 0.0 and (victim.a == before).all()


@pytest.mark.parametrize("initiator", [0, 1])
def test_partner_of_an_earlier_version_mixes_what_its_own_bound_leaves(initiator):
    """It clips where this version mixes whole. Both come nearer, as before."""
    new, old = trained(1), trained(2)
    old.ledger.a[:] = new.ledger.a + np.float32(10.0 * USUAL) * new.progress
    before, bound = new.a, old.algorithm._bound(0)
    new.run(jobs.Widen(1.0))
    [turn] = exchange(*((new, old) if initiator == 0 else (old, new)))
    assert turn.share == pytest.approx(bound / (10.0 * USUAL), rel=1e-3)
    assert np.linalg.norm(new.a - before) == pytest.approx(0.5 * bound, rel=1e-3)


@pytest.mark.parametrize(("factor", "share"), [(0.99, 1.0), (1.01, 0.0)])
def test_peer_without_own_steps_measures_by_its_model(factor, share):
    copy, other = Replica(1, 256, clip=1.5), Replica(2, 256)
    copy.ledger.a[:] = 1.0
    bound = PLAUSIBLE * NORM_SHARE * np.linalg.norm(copy.a)
    other.ledger.a[:] = 1.0 + factor * bound / 16.0
    copy.run(jobs.Widen(1.0))
    [turn] = exchange(other, copy)
    assert turn.share == share


def test_grid_stays_fine_after_many_rounds_whose_movements_cancel():
    """A grid as coarse as the whole way left more than a thousandth of the distance, and a third exchange was due."""
    one, two = Replica(1, 256), Replica(2, 256)
    random = np.random.default_rng(3)
    for _ in range(100):
        for each in (one, two):
            each.settle()
            each.x += random.standard_normal(256).astype(np.float32)
            each.outer(1.0, 0.0)
            each.settle()
    apart = np.linalg.norm(one.a - two.a)
    for each in (one, two):
        each.run(jobs.Widen(1.0))
    exchange(one, two, "modulo16")
    assert np.linalg.norm(one.a - two.a) < 2e-4 * apart
