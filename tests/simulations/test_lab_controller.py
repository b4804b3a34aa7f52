"""The controller in the laboratory is the daemon's; it costs no step, and where it only measures nothing changes."""

from __future__ import annotations

import itertools

import pytest

from gossipdp.protocol.controller import LOWEST
from simulations.lab import Link, Setting, play
from simulations.lab_controller import ControlledGossip
from simulations.lab_methods import PairwiseGossip, PairwiseOptions
from simulations.lab_problems import Quadratic

LINK = Link(bandwidth=1e6, latency=0.01)


def setting(every=4, rounds=60, peers=4):
    return Setting(
        peers=peers, every=every, rounds=rounds, inner="sgd", lr=0.1, decay=False, link=LINK, evaluate_every=rounds
    )


def test_controller_that_only_measures_leaves_the_method_as_it_is():
    options = PairwiseOptions(momentum=0.8)
    plain = play(Quadratic(size=300), PairwiseGossip(options), setting(rounds=12))
    method = ControlledGossip(options, acts=False)
    watched = play(Quadratic(size=300), method, setting(rounds=12))
    assert watched.points == plain.points
    assert set(method.levels) == {0.0} and method.ratios[-1] > 0.5


def test_second_exchange_stops_the_growth_that_momentum_which_sees_all_of_the_mixing_brings():
    """The coupled form at mu 0.9 (algorithms section 2), on steps of noise alone."""
    options = PairwiseOptions(momentum=0.9, kappa=1.0, early=0.0)
    off, on = ControlledGossip(options, acts=False), ControlledGossip(options)
    before, after = (play(Quadratic(size=300), method, setting(peers=8, rounds=40)) for method in (off, on))
    assert min(off.ratios[20:]) > 1.5 > max(on.ratios[-5:])
    assert on.levels[-1] == 1.0
    assert after.last.distance < 0.5 * before.last.distance
    assert 1.3 * before.last.bytes < after.last.bytes < 2.0 * before.last.bytes


def test_rounds_grow_longer_where_replicas_walk_the_same_way_and_no_step_is_lost():
    """Hardly any noise: all walk down the same slope."""
    options = PairwiseOptions(momentum=0.0, early=0.0)
    off, on = ControlledGossip(options, acts=False), ControlledGossip(options)
    problem = Quadratic(size=300, curvature=0.01, noise=0.01)
    before, after = (play(problem, method, setting(every=10, rounds=40)) for method in (off, on))
    assert off.ratios[-1] < 0.5 and on.levels[-1] == LOWEST
    assert after.last.bytes < 0.85 * before.last.bytes
    assert 0 <= before.last.steps - after.last.steps < 2 * 10, "what is left over is less than a round"


def test_round_after_a_change_of_h_is_encoded_finer(monkeypatch):
    """As that after a warm start: a round moves by another measure than was predicted from."""
    told = []
    play_ = ControlledGossip._play

    def watched(self, lab, every, *rest, **named):
        play_(self, lab, every, *rest, **named)
        told.append((every, self._codec))

    monkeypatch.setattr(ControlledGossip, "_play", watched)
    method = ControlledGossip(PairwiseOptions(momentum=0.0, early=0.0))
    play(Quadratic(size=300, curvature=0.01, noise=0.01), method, setting(every=10, rounds=40))
    fine = [codec == "modulo8" for _, codec in told]
    changed = [True, *(one[0] != other[0] for one, other in itertools.pairwise(told))]
    assert fine == changed and 1 < sum(changed) < len(changed)


def test_exchanges_of_fragments_are_refused():
    with pytest.raises(ValueError, match="whole vector"):
        ControlledGossip(PairwiseOptions(fragments=2))
