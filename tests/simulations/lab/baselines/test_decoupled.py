"""Decoupled DiLoCo: what a merge is, whom it waits for, what its links carry, and DiLoCo as its simplest case."""

from dataclasses import replace

import pytest
import torch

from peers.plan.timeline import Link
from simulations.lab.baselines.decoupled import DecoupledDiLoCo, merged
from simulations.lab.baselines.synchronous import DiLoCo, FourBitDiLoCo
from tests.simulations.lab.baselines.toy_problems import ADAM, LINE, MLP, SGD, ran, same

UNEQUAL = replace(ADAM, peers=3, speeds=(1.0, 2.0, 4.0), every=8, rounds=1)


class Watched(DecoupledDiLoCo):
    """Keeps which learners each merge had, with which weights and learners' fragments."""

    def begin(self, lab):
        self.seen = []
        super().begin(lab)

    def _step(self, lab, merge):
        span = self._spans[merge.fragment]
        self.seen.append((merge.at, merge.fragment, tuple(merge.members), merge.weights, merge.pulled, span))
        super()._step(lab, merge)


def watched(setting, **options):
    method = Watched(radial=False, **options)
    lab = ran(method, setting, MLP)
    return method, lab


# -- what a merge is ------------------------------------------------------------------------------------------


def test_a_radial_merge_keeps_the_length_of_differences_of_any_direction():
    drifts = 3.0 * torch.eye(4, 10)
    even = torch.full((4,), 0.25)
    assert float(merged(drifts, even, direct=True).norm()) == pytest.approx(1.5)
    assert float(merged(drifts, even, direct=False).norm()) == pytest.approx(3.0)
    uneven = torch.tensor([0.75, 0.25, 0.0, 0.0])
    found = merged(drifts, uneven, direct=False)
    assert float(found[0] / found[1]) == pytest.approx(3.0) and float(found.norm()) == pytest.approx(3.0)


def test_a_radial_merge_of_one_or_of_equal_differences_is_that_difference():
    one = torch.randn(1, 10, generator=torch.Generator().manual_seed(0))
    assert same(merged(one, torch.ones(1), direct=False), one[0])
    assert same(merged(one.expand(4, -1), torch.full((4,), 0.25), direct=False), one[0])


def test_differences_that_cancel_merge_to_their_mean():
    assert not merged(torch.tensor([[1.0], [-1.0]]), torch.full((2,), 0.5), direct=False).any()


def test_embeddings_are_merged_directly_and_every_other_tensor_by_itself():
    class Embedded(type(MLP)):
        embeddings = (1,)

    problem = Embedded()
    method = Watched(fragments=1)
    ran(method, replace(ADAM, rounds=1), problem)
    [(_, _, _, weights, pulled, _)] = method.seen
    drifts = problem.start(0) - pulled
    begin = 0
    for number, size in enumerate(problem.sizes):
        delta = merged(drifts[:, begin : begin + size], weights, direct=number == 1)
        step = problem.start(0)[begin : begin + size] - method.theta[begin : begin + size]
        assert same(step, 0.7 * 1.9 * delta, 1e-5), number
        begin += size


# -- DiLoCo is its simplest case ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"plain_first": True}, {"plain_first": True, "warmup_steps": 10}])
@pytest.mark.parametrize("quorum", [1, 8])
def test_with_one_fragment_equal_learners_and_a_free_link_it_is_diloco(options, quorum):
    method, twin = DecoupledDiLoCo(fragments=1, radial=False, quorum=quorum, **options), DiLoCo(**options)
    lab, other = ran(method, ADAM, MLP), ran(twin, ADAM, MLP)
    assert same(method.theta, twin.anchor) and same(lab.x, other.x) and same(method.v, twin.v)
    assert lab.seconds == other.seconds and lab.steps.tolist() == other.steps.tolist()


def test_with_four_bits_its_first_plain_step_is_that_of_four_bit_diloco():
    method, twin = DecoupledDiLoCo(fragments=1, radial=False, bits=4, plain_first=True), FourBitDiLoCo(plain_first=True)
    for one in (method, twin):
        ran(one, replace(ADAM, rounds=1), MLP)
    assert same(method.theta, twin.anchor) and not same(method.theta, MLP.start(0))


def test_a_plain_step_is_the_mean_of_what_was_pulled_weighted_by_steps():
    method, _ = watched(UNEQUAL, plain_first=True, fragments=1, quorum=3)
    [(_, _, members, weights, pulled, _)] = method.seen
    assert members == (0, 1, 2) and weights.tolist() == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    assert same(method.theta, weights @ pulled)


# -- whom a merge waits for -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quorum", "gamma", "wanted"),
    [(1, 0.0, (2,)), (2, 0.0, (1, 2)), (3, 0.0, (0, 1, 2)), (1, 0.9, (0, 1, 2)), (1, 0.1, (2,)), (1, 0.3, (1, 2))],
)
def test_quorum_and_grace_window_decide_who_is_merged(quorum, gamma, wanted):
    # The fragment is due at 3.1 s. The learners' next steps end at 4, 3.5 and 3.25 s. The window is gamma times
    # 2 s less what the quorum took: 0.15 s.
    method, _ = watched(replace(UNEQUAL, every=31), fragments=10, quorum=quorum, gamma=gamma)
    assert tuple(sorted(method.seen[0][2])) == wanted


def test_the_window_ends_when_all_have_reported():
    for gamma in (0.0, 0.9):
        method, _ = watched(replace(ADAM, rounds=2), gamma=gamma, fragments=2)
        assert [at for at, *_ in method.seen] == [2.0, 4.0, 6.0, 8.0]


def test_no_learner_waits_and_a_slow_link_only_lengthens_the_time_between_merges():
    setting = replace(UNEQUAL, rounds=4)
    free, narrow = (watched(replace(setting, link=link), fragments=4) for link in (Link(), Link(bandwidth=150.0)))
    for _, lab in (free, narrow):
        assert lab.seconds == 32.0 and lab.steps.tolist() == [32, 64, 128]
    assert len(free[0].seen) == 16 > len(narrow[0].seen) > 2
    assert {number for _, number, *_ in narrow[0].seen} == {0, 1, 2, 3}


# -- links ----------------------------------------------------------------------------------------------------


def test_the_syncers_link_carries_the_fragments_of_all():
    setting = replace(ADAM, peers=4, every=4, rounds=8, link=Link(bandwidth=412.0))
    method, lab = watched(setting, fragments=1)
    # A model has 1,648 bytes: 16 s to the syncer for four of them, and 16 s back. Due at 4, arrived at 20 and 36.
    assert [at for at, *_ in method.seen] == [20.0]
    assert lab.received.tolist() == [1648.0] * 4 and method.moved == 4 * 1648.0
    split, lab = watched(replace(setting, rounds=5), fragments=1, syncers=4)
    # The learners have it at 12 s, and report after their next step.
    assert [at for at, *_ in split.seen] == [8.0, 17.0] and split.moved == 2 * 4 * 1648.0


def test_four_bits_send_an_eighth_and_a_scale_for_256():
    method, lab = watched(replace(ADAM, rounds=2), fragments=1, bits=4)
    assert lab.received.tolist() == [2 * (412 / 2 + 2 * 2)] * 8 and method.moved == 8 * lab.received[0]


def test_an_arriving_fragment_replaces_the_learners_own_but_for_the_share_it_keeps():
    setting = replace(ADAM, peers=2, every=4, rounds=1, lr=0.0, link=Link(bandwidth=1648.0))
    for keep, wanted in ((0.0, 0.0), (0.25, 0.25)):
        method = DecoupledDiLoCo(fragments=1, radial=False, keep=keep, plain_first=True)
        lab = ran(method, replace(setting, rounds=2), MLP, apart=1.0)
        off = (lab.x - method.theta).norm(dim=1)
        other = ran(DecoupledDiLoCo(fragments=1, radial=False), replace(setting, rounds=0), MLP, apart=1.0)
        assert off.tolist() == pytest.approx((wanted * (other.x - other.mean).norm(dim=1)).tolist(), abs=1e-4)


def test_fragments_that_fail_are_left_out_and_broadcasts_are_sent_again():
    setting = replace(SGD, rounds=40, failing=0.4, seed=1)
    method = Watched(radial=False, fragments=2)
    lab = ran(method, setting, LINE)
    counts = [len(members) for _, _, members, *_ in method.seen]
    assert min(counts) < 4 and sum(counts) / len(counts) == pytest.approx(2.4, abs=0.5)
    assert lab.received.mean() > 1.3 * 80.0 * len(counts) / 2
