"""`pairwise` on hosts with events: training goes on, and what the missing take part in comes to nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gossipdp.codecs.moments import payload_bytes
from peers.plan.timeline import Link
from simulations.lab.core import Lab
from simulations.lab.failures.gossip import DETECTION, SILENCE, FailingPairwise
from simulations.lab.failures.lab import HostLab
from simulations.lab.methods.pairwise import PairwiseGossip
from tests.simulations.lab.baselines.toy_problems import MLP
from tests.simulations.lab.failures.runs_of_events import SETTING, gone, paused, ran, slow

FOUR = replace(SETTING, inner="adamw", lr=0.01)
LINK = Link(bandwidth=500.0, latency=0.01)
"""an exchange lasts about two seconds"""


class Watched(FailingPairwise):
    """Notes who met whom, when, and how much they averaged."""

    def __init__(self):
        super().__init__()
        self.met, self.usual = [], []

    def _end_exchange(self, lab, exchange):
        self.met.append((set(exchange.pair), exchange.began, lab.seconds, exchange.mixed))
        super()._end_exchange(lab, exchange)
        self.usual.append(self._whole)


def played(*events, **changed):
    method = Watched()
    setting = {"inner": "adamw", "lr": 0.01, "rounds": 30, "link": LINK, **changed}
    return method, ran(method, *events, problem=MLP, **setting)


def test_without_events_it_is_pairwise():
    setting = replace(FOUR, seconds=100.0, link=LINK)
    mine, lab = FailingPairwise(), HostLab(MLP, setting)
    theirs, other = PairwiseGossip(), Lab(MLP, setting)
    for method, where in ((mine, lab), (theirs, other)):
        method.begin(where)
        for number in range(10):
            where.progress = number / 10
            method.round(where)
    assert lab.seconds == other.seconds == 100.0 and lab.steps.tolist() == other.steps.tolist()
    # Both take their rates from other clocks within a round, so only the costs are the same to the last bit.
    assert lab.received == pytest.approx(other.received, rel=0.05)
    assert mine.tally.exchanges == theirs.tally.exchanges


def test_nobody_waits_for_a_dead_host():
    method, lab = played(gone(2, 104.0))
    assert lab.steps.tolist() == [300, 300, 104, 300]
    assert lab.idle_shares() == pytest.approx([0.0] * 4) and not lab.lost.any()
    assert list(method.holders(lab)) == [0, 1, 3]
    assert not [pair for pair, began, *_ in method.met if 2 in pair and began > 104.0]
    mean = np.mean([method.replicas[host].ledger.a for host in (0, 1, 3)], 0)
    assert torch.equal(method.model(lab), torch.from_numpy(mean))


def test_a_partner_of_a_host_not_yet_known_to_be_dead_has_no_exchange_in_that_round():
    method, _ = played(gone(2, 109.0))
    met = [pair for pair, began, *_ in method.met if 110.0 <= began < 120.0]
    assert method.tally.failed >= 1 and not [pair for pair in met if 2 in pair]
    assert method.tally.cut == 0


def test_all_who_are_left_meet_once_the_death_is_known():
    method, _ = played(gone(2, 104.0), gone(3, 104.0))
    later = [began for pair, began, *_ in method.met if pair == {0, 1} and began >= 104.0 + DETECTION]
    assert len(later) >= 17


def test_an_exchange_with_a_host_that_dies_in_it_holds_its_partner_for_the_silence():
    method, _ = played(gone(2, 101.0))
    ((partner, began, ended, _),) = [one for one in method.met if 2 in one[0] and one[2] > 101.0]
    assert began == 100.0 and ended == pytest.approx(101.0 + SILENCE, abs=1.0)
    (other,) = partner - {2}
    assert not [one for one in method.met if other in one[0] and began < one[1] < ended]
    assert method.tally.cut == 1
    assert max(method.usual) < 5.0, "the silence is no part of an exchange's usual length"


def test_a_paused_host_goes_on_where_it_was_and_no_other_stops():
    method, lab = played(paused(2, 104.0, 224.0))
    assert lab.steps.tolist() == [300, 300, 180, 300]
    assert lab.idle_shares() == pytest.approx([0.0] * 4) and not lab.lost.any()
    assert not [pair for pair, began, *_ in method.met if 2 in pair and 104.0 < began < 224.0]
    assert [pair for pair, began, *_ in method.met if 2 in pair and began >= 230.0]


def test_a_paused_replica_does_not_move():
    method, lab = FailingPairwise(), HostLab(MLP, replace(FOUR, events=(paused(2, 14.0, 64.0),)))
    method.begin(lab)
    method.round(lab)
    method.round(lab)
    before, anchor = lab.x[2].clone(), method.replicas[2].ledger.a.copy()
    method.round(lab)
    assert torch.equal(lab.x[2], before) and (method.replicas[2].ledger.a == anchor).all()
    assert not torch.equal(lab.x[1], before)


def test_a_slow_link_lengthens_only_the_exchanges_of_its_host():
    method, lab = played(slow(2, 0.0), seconds=100.0)
    assert lab.steps.tolist() == [100] * 4
    lasted = {slowly: [end - began for pair, began, end, _ in method.met if (2 in pair) == slowly] for slowly in (0, 1)}
    assert min(lasted[1]) > 3.0 * max(lasted[0])


def test_a_host_that_arrives_copies_a_member_at_the_cost_of_its_link():
    method, lab = played(gone(2, 104.0, 160.0))
    size = 2.0 * MLP.parameters + payload_bytes(MLP.parameters)
    trains = 160.0 + 4 * LINK.latency + size / LINK.bandwidth
    late = int(np.ceil(trains)) - 160
    assert late >= 2
    assert lab.steps.tolist() == [300, 300, 104 + 140 - late, 300]
    assert lab.idle_shares()[2] == pytest.approx(late / 244.0)
    assert [pair for pair, began, *_ in method.met if 2 in pair and began >= trains]
    assert not [pair for pair, began, *_ in method.met if 2 in pair and 104.0 < began < trains]
    assert lab.hosts.there(lab.seconds) == list(method.holders(lab)) == [0, 1, 2, 3]


def test_a_joiner_has_a_members_anchor_and_moments_and_no_outer_momentum():
    method, lab = FailingPairwise(), HostLab(MLP, FOUR)
    method.begin(lab)
    method.round(lab)
    method.round(lab)
    lab.inner.counts[0], before = 99.0, lab.received[2]
    method._replace(lab, 2, 0)
    joiner, member = method.replicas[2], method.replicas[0]
    assert (joiner.ledger.a == member.ledger.a).all() and torch.equal(lab.x[2], torch.from_numpy(member.ledger.a))
    assert member.ledger.v.any() and not joiner.ledger.v.any()
    updates = [lab.inner.m[host] / (lab.inner.v[host].sqrt() + 1e-12) for host in (2, 0)]
    assert 0.0 < float((updates[0] - updates[1]).abs().max()) < 0.2, "as the codec of moments has them"
    assert float(lab.inner.counts[2]) == 99.0
    assert lab.received[2] - before == 2.0 * MLP.parameters + payload_bytes(MLP.parameters)


def test_a_schedule_is_left_while_a_member_is_missing():
    method = FailingPairwise()
    lab = HostLab(MLP, replace(FOUR, rounds=30, events=(gone(2, 4.0),)))
    method.begin(lab)
    method.round(lab)
    assert method._scheduled
    method.round(lab)
    method.round(lab)
    assert not method._scheduled


def test_finish_leaves_those_who_are_there_at_their_mean():
    method, lab = played(gone(2, 104.0))
    left = [0, 1, 3]
    apart, before = lab.x[left].std(0).norm(), method.model(lab)
    received = lab.received.copy()
    loss = method.finish(lab)
    assert lab.x[left].std(0).norm() < 1e-3 * apart
    assert loss == pytest.approx(MLP.evaluate(before).loss, rel=0.02)
    assert (lab.received[left] > received[left]).all() and lab.received[2] == received[2]
