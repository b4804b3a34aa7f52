"""The laboratory's conditions: churn, founders, flipped labels, attackers."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from simulations.lab.methods.attacked import AttackedPairwise
from simulations.lab.methods.conditions import ChurningPairwise, Departure, FlippedLabels, Pretrained

from gossipdp.codecs.moments import payload_bytes
from peers.plan.timeline import Link
from simulations.lab.core import Lab, Setting, play
from simulations.lab.methods import conditions
from simulations.lab.methods.pairwise import PairwiseGossip, PairwiseOptions
from simulations.lab.problems import DigitsMlp

SETTING = Setting(peers=8, every=4, rounds=6, lr=3e-3, evaluate_every=6)
DIGITS = DigitsMlp(hidden=32)
CHUNKS = DigitsMlp(hidden=256)
"""a model of three chunks"""
AT_ONCE = PairwiseOptions(landing="at once")


def ran(method, setting=SETTING, problem=DIGITS):
    lab = Lab(problem, setting)
    method.begin(lab)
    for number in range(setting.rounds):
        lab.progress = number / setting.rounds
        method.round(lab)
    return lab


# -- churn ---------------------------------------------------------------------------------------------------------


def test_churn_replaces_peers_by_copies_and_the_run_goes_on():
    setting = replace(SETTING, rounds=12, evaluate_every=12, link=Link(bandwidth=2e4))
    calm = play(CHUNKS, PairwiseGossip(), setting)
    method = ChurningPairwise(every=2, share=0.25)
    curve = play(CHUNKS, method, setting)
    assert curve.last.loss < curve.points[0].loss - 0.2
    assert abs(curve.last.loss - calm.last.loss) < 0.3
    assert method.tally.cut > 0
    assert play(CHUNKS, ChurningPairwise(every=2, share=0.25), setting) == curve


def test_half_of_the_leaving_peers_finish_their_exchange_and_half_crash_in_it(monkeypatch):
    seen = []

    class Watched(ChurningPairwise):
        def _replace(self, lab, peer, source):
            seen.append((peer, lab.seconds))
            super()._replace(lab, peer, source)

        def _end_exchange(self, lab, meeting):
            for peer in set(meeting.pair) & set(self._leaving):
                crashes = self._leaving[peer].after < 1.0
                assert meeting.mixed < 3 if crashes else meeting.mixed == 3
                chunks.append(meeting.mixed)
            super()._end_exchange(lab, meeting)

    chunks = []
    # An exchange of three chunks takes two of five seconds. A leaving peer is in one, and begins no other.
    monkeypatch.setattr(
        conditions, "departures", lambda lab, share, number: [Departure(1, 5, 0.1), Departure(2, 4, 0.1)]
    )
    method = Watched(PairwiseOptions(early=0.0, exchanges=1, bits=4), every=3)
    lab = Lab(CHUNKS, replace(SETTING, link=Link(bandwidth=1e4)))
    method.begin(lab)
    for number in range(1, 5):
        method.round(lab)
        if number == 3:
            assert sorted(peer for peer, _ in seen) == [1, 2] and not method._leaving
            assert all(8.0 < seconds < 12.0 for _, seconds in seen), "in the middle of the round"
    assert sorted(chunks) == [1, 3] and method.tally.cut == 1


def test_every_method_loses_and_copies_the_same_peers():
    drawn = []
    for method in (ChurningPairwise(every=2), ChurningPairwise(AT_ONCE, every=2)):
        gone = []

        class Watched(type(method)):
            def _replace(self, lab, peer, source, gone=gone):
                gone.append((peer, source))
                super()._replace(lab, peer, source)

        method.__class__ = Watched
        ran(method, replace(SETTING, failing=0.2))
        drawn.append(gone)
    assert drawn[0] == drawn[1] and len(drawn[0]) == 3


def test_joiner_without_moments_holds_only_a_peers_anchor():
    lab = Lab(DIGITS, SETTING)
    method = ChurningPairwise(PairwiseOptions(moments=False))
    method.begin(lab)
    for _ in range(2):
        PairwiseGossip.round(method, lab)
    before = lab.received.copy()
    method._replace(lab, 3, 5)
    one, other = method.replicas[3], method.replicas[5]
    assert (one.ledger.a == other.ledger.a).all() and torch.equal(lab.x[3], torch.from_numpy(other.ledger.a))
    assert not one.ledger.v.any() and not lab.inner.m[3].any() and lab.inner.m[5].any()
    assert all(3 not in meeting.pair for meeting in method._open_exchanges)
    assert (lab.received - before)[3] == 2.0 * DIGITS.parameters


def test_joiner_may_have_the_moments_of_the_copied_peer():
    cost = {}
    for moments in (False, True):
        lab, method = Lab(DIGITS, SETTING), ChurningPairwise(PairwiseOptions(moments=moments))
        method.begin(lab)
        method.round(lab)
        lab.inner.counts[5] = 99.0
        before = lab.received[3]
        method._replace(lab, 3, 5)
        cost[moments] = lab.received[3] - before
        assert lab.inner.m[5].any() and float(lab.inner.counts[3]) == (99.0 if moments else 0.0)
        updates = [lab.inner.m[peer] / (lab.inner.v[peer].sqrt() + 1e-12) for peer in (3, 5)]
        off = float((updates[0] - updates[1]).abs().max())
        assert (0.0 < off < 0.2) if moments else not updates[0].any(), "as the codec has them, or none"
    assert cost[True] - cost[False] == payload_bytes(DIGITS.parameters)


# -- starts and labels ---------------------------------------------------------------------------------------------


def test_pretrained_problem_begins_where_founders_ended():
    problem = Pretrained("digits-mlp", founders=2, steps=30, lr=3e-3, hidden=32)
    begun, fresh = problem.start(0), DIGITS.start(0)
    assert DIGITS.evaluate(begun).loss < DIGITS.evaluate(fresh).loss - 0.5
    assert torch.equal(begun, problem.start(0)) and not torch.equal(begun, problem.start(1))


def test_labels_are_flipped_for_attackers_only():
    plain, flipped = DigitsMlp(), FlippedLabels("digits-mlp", bad=2, attack="label flip")
    peers, steps = np.array([1, 2, 0]), np.zeros(3, np.int64)
    pixels, labels = plain.batches(peers, steps, 0)
    same, told = flipped.batches(peers, steps, 0)
    assert torch.equal(pixels, same)
    assert torch.equal(told[[0, 2]], 9 - labels[[0, 2]]) and torch.equal(told[1], labels[1])


# -- liars ---------------------------------------------------------------------------------------------------------


def test_attacked_pairwise_without_attackers_is_pairwise():
    attacked, plain = AttackedPairwise(AT_ONCE, "sign flip", 0), PairwiseGossip(AT_ONCE)
    assert torch.equal(attacked.model(ran(attacked)), plain.model(ran(plain)))


@pytest.mark.parametrize("attack", ["dissensus", "noise"])
def test_clipping_bounds_the_damage_of_attackers(attack):
    setting = replace(SETTING, rounds=10)
    accuracy = []
    for clip in (math.inf, 2.0):
        method = AttackedPairwise(replace(AT_ONCE, clip=clip), attack, 2)
        lab = ran(method, setting)
        accuracy.append(DIGITS.evaluate(method.model(lab)).accuracy)
    assert accuracy[1] > accuracy[0] + 0.2


def test_attacker_continues_in_private_as_if_honest():
    method = AttackedPairwise(AT_ONCE, "x100", 1)
    lab = ran(method, replace(SETTING, rounds=4))
    honest = np.stack([replica.ledger.a for replica in method.replicas[1:]])
    spread = np.linalg.norm(honest - honest.mean(0), axis=1).max()
    assert np.linalg.norm(method.replicas[0].ledger.a - honest.mean(0)) < 10.0 * max(spread, float(lab.distance()))


def test_momentum_and_ranges_of_an_attacker_are_those_of_an_honest_peer():
    """An attacker resembles its partner no more than others do, and its lies leave no trace in itself."""
    method = AttackedPairwise(AT_ONCE, "x100", 1)
    ran(method, replace(SETTING, rounds=6))
    liar, *honest = (float(np.linalg.norm(replica.ledger.v)) for replica in method.replicas)
    assert 0.6 * min(honest) < liar < 1.6 * max(honest)
    # Honest ranges cover what the peers received.
    liar, *honest = (float(replica.algorithm.range.max()) for replica in method.replicas)
    assert liar < max(honest)


def test_tally_has_the_models_of_honest_peers_only(monkeypatch):
    """Dissensus drives honest peers apart, which their mean hides. The tally leaves out attackers."""
    seen = []
    evaluate = DigitsMlp.evaluate
    monkeypatch.setattr(DigitsMlp, "evaluate", lambda self, at: (seen.append(at.clone()), evaluate(self, at))[1])
    method = AttackedPairwise(replace(AT_ONCE, clip=math.inf), "dissensus", 2)
    curve = play(DIGITS, method, replace(SETTING, rounds=6, evaluate_every=6))
    anchors = [torch.from_numpy(replica.ledger.a) for replica in method.replicas]
    own = [evaluate(DIGITS, anchor).accuracy for anchor in anchors[2:]]
    assert method.tally.honest == pytest.approx(np.mean(own)) and method.tally.worst == min(own)
    assert method.tally.worst < method.tally.honest < curve.last.accuracy
    lies = [row for row in anchors[:2] for one in seen if torch.equal(row, one)]
    assert not lies and len(seen) == len(own) + 2 * 5
