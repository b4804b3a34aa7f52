"""Decoupled DiLoCo with learners, and a syncer, that die, pause and slow down."""

from dataclasses import replace

import pytest
import torch

from peers.plan.timeline import Link
from simulations.lab.failures.decoupled import CHECKPOINT, FailingDecoupled
from simulations.lab.failures.lab import HostLab
from tests.simulations.lab.baselines.toy_problems import LINE, same
from tests.simulations.lab.failures.runs_of_events import SETTING, gone, paused, ran, slow


def made(*at_syncer, **options):
    return FailingDecoupled(radial=False, fragments=2, at_syncer=at_syncer, **options)


class Watched(FailingDecoupled):
    """Keeps who was in each merge, and when."""

    def begin(self, lab):
        self.seen = []
        super().begin(lab)

    def _step(self, lab, merge):
        self.seen.append((merge.at, list(merge.members)))
        super()._step(lab, merge)


def watched(*events, at_syncer=(), **changed):
    method = Watched(radial=False, fragments=2, at_syncer=at_syncer)
    lab = ran(method, *events, **changed)
    return method, lab


def until(method, seconds, *events, **changed):
    """The lab of a run that goes on until then, in rounds of ten steps."""
    lab = HostLab(LINE, replace(SETTING, events=events, **changed))
    method.begin(lab)
    lab.start()
    while lab.seconds < seconds:
        method.round(lab)
    return lab


# -- learners -------------------------------------------------------------------------------------------------


def test_without_events_all_learners_train_all_the_time_and_every_merge_has_all():
    method, lab = watched()
    assert lab.steps.tolist() == [300] * 4 and not lab.idle_shares().any() and not lab.lost.any()
    assert [members for _, members in method.seen] == [[0, 1, 2, 3]] * 60
    assert lab.received.tolist() == [30 * 80.0] * 4


def test_a_dead_learner_is_left_out_and_nobody_waits():
    method, lab = watched(gone(2, 102.0))
    assert lab.steps.tolist() == [300, 300, 102, 300] and not lab.idle_shares().any()
    assert all((2 in members) is (at < 102.0) for at, members in method.seen) and len(method.seen) == 60
    assert method.holders(lab) == [0, 1, 3]


def test_a_learner_that_starts_again_copies_another_and_is_merged_again():
    method, lab = watched(gone(2, 102.0, 137.0), link=Link(bandwidth=40.0))
    # 240 bytes: model and two moments, in 6 s.
    assert lab.steps.tolist() == [300, 300, 102 + 300 - 143, 300]
    assert next(at for at, members in method.seen if 2 in members and at > 102.0) < 155.0
    assert lab.idle_shares() == pytest.approx([0.0, 0.0, 6.0 / 265.0, 0.0])


def test_a_paused_learner_gets_what_it_missed_when_it_is_back():
    events = (paused(2, 104.0, 157.0),)
    method = made()
    lab = until(method, 150.0, *events)
    assert (lab.x[2] - method.theta).norm() > 1.5 * (lab.x[1] - method.theta).norm()
    method.round(lab)
    assert lab.seconds == 160.0 and (lab.x[2] - method.theta).norm() < 2.0 * (lab.x[1] - method.theta).norm() + 1e-4
    assert lab.steps[2] == 160 - 53


def test_a_learner_on_a_slow_link_is_waited_for_no_longer_than_a_merge_may_last():
    # A fragment has 40 bytes: 0.4 s for four to the syncer, 1 s from the slow learner; then 4 s, 2 s more than tau.
    for bandwidth, there in ((400.0, True), (100.0, False)):
        method, lab = watched(slow(2, 0.0), link=Link(bandwidth=bandwidth))
        assert all((2 in members) is there for _, members in method.seen) and len(method.seen) > 40
        assert lab.steps.tolist() == [300] * 4


# -- the syncer -----------------------------------------------------------------------------------------------


def test_learners_of_a_dead_syncer_train_alone_and_their_mean_is_the_model():
    method = made(gone(0, 95.0))
    lab = until(method, 100.0)
    alone = lab.x.clone()
    method.round(lab)
    twin = HostLab(LINE, SETTING)
    twin.x.copy_(alone)
    twin.steps += 100
    twin.progress = lab.progress
    assert lab.steps.tolist() == [110] * 4 and not lab.idle_shares().any()
    twin._began = 0.0
    for second in range(10):
        twin.set_clock(100.0 + second)
        twin.step(range(4))
    assert torch.equal(lab.x, twin.x), "nothing but their own steps changed the learners"
    assert torch.equal(method.model(lab), lab.x.mean(0)) and not same(lab.x[0], lab.x[1], 1e-4)


def test_merges_under_way_are_lost_with_the_syncer():
    # 160 bytes from four learners take 4 s.
    method, _ = watched(at_syncer=(gone(0, 17.0),), link=Link(bandwidth=40.0))
    assert [at for at, _ in method.seen] == [9.0, 14.0]


def test_a_syncer_that_starts_again_has_the_last_checkpoint_and_takes_the_learners_mean():
    method = made(gone(0, 95.0, 125.0), plain_first=False)
    lab = until(method, 100.0)
    kept = method._kept
    assert kept is not None and 95.0 - CHECKPOINT <= kept[0] <= 95.0
    while lab.seconds < 120.0:
        method.round(lab)
    assert torch.equal(method.theta, kept[1]) and torch.equal(method.v, kept[2])
    alone = lab.received.copy()
    method.round(lab)
    assert lab.seconds == 130.0 and torch.equal(method.v, kept[2]), "no outer step"
    off, before = ((theta - lab.x.mean(0)).norm() for theta in (method.theta, kept[1]))
    assert off < 0.3 * before
    assert (lab.received - alone).tolist() == [80.0] * 4, "both fragments, in fp32"


def test_a_paused_syncer_goes_on_where_it_was():
    method, lab = watched(at_syncer=(paused(0, 102.0, 162.0),))
    assert not [at for at, _ in method.seen if 102.0 < at < 162.0] and [at for at, _ in method.seen if at >= 162.0]
    assert lab.steps.tolist() == [300] * 4


def test_a_slow_link_of_the_syncer_lengthens_the_time_between_merges():
    calm, slowed = (watched(at_syncer=events, link=Link(bandwidth=80.0)) for events in ((), (slow(0, 100.0),)))
    assert len(calm[0].seen) > 1.5 * len(slowed[0].seen) > 20
    assert slowed[1].steps.tolist() == [300] * 4
