"""Baselines with all-reduce: exact identities of DDP, DiLoCo and local SGD, and four bits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from peers.plan.timeline import Link
from simulations.lab.baselines import LocalOnly
from simulations.lab.baselines.overlapped import OverlappedDiLoCo, OverlappedFourBitDiLoCo
from simulations.lab.baselines.synchronous import Ddp, DiLoCo, FourBitDiLoCo, LocalSgd, e3m0
from simulations.lab.core import Lab
from tests.simulations.lab.baselines.toy_problems import ADAM, LINE, MLP, SGD, Line, ran, rows_of, same


class OneLarge(Line):
    """Draws the batches of `count` peers as one batch."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def batches(self, peers, steps, seed):
        one = [rows_of(np.arange(self.count), np.full(self.count, step), seed).flatten() for step in steps]
        return self.inputs[torch.stack(one)], self.outputs[torch.stack(one)]


# -- identities -----------------------------------------------------------------------------------------------


def test_ddp_is_sgd_on_one_large_batch():
    one = ran(LocalOnly(), replace(SGD, peers=1), OneLarge(4))
    assert same(ran(Ddp(), SGD).x, one.x.expand(4, -1))


def test_diloco_of_one_step_without_outer_optimizer_is_ddp():
    method = DiLoCo(alpha=1.0, mu=0.0)
    assert same(ran(method, replace(SGD, every=1, rounds=12)).x, ran(Ddp(), replace(SGD, every=1, rounds=12)).x)


def test_diloco_is_nesterov_momentum_on_the_mean_of_the_replicas():
    method, lab = DiLoCo(), Lab(LINE, SGD)
    method.begin(lab)
    before = lab.mean
    for _ in range(5):
        theta, alone = lab.mean, Lab(LINE, SGD)
        alone.x.copy_(lab.x)
        alone.steps[:] = lab.steps
        alone.train(SGD.every)
        method.round(lab)
        y = theta + method.alpha * (alone.mean - theta)
        assert same(method.anchor, y + method.mu * (y - before))
        before = y


@pytest.mark.parametrize("kind", [DiLoCo, FourBitDiLoCo, OverlappedDiLoCo, OverlappedFourBitDiLoCo])
def test_first_outer_step_may_be_plain_and_momentum_begins_with_the_second(kind):
    """Step plainly: theta <- theta - Delta. Plain DiLoCo takes the second step from there."""
    setting = replace(ADAM, rounds=1)
    method, lab = kind(plain_first=True), Lab(MLP, setting)
    method.begin(lab)
    theta, alone = method.anchor, Lab(MLP, setting)
    alone.train(setting.every)
    method.round(lab)
    delta = kind().reduce(Lab(MLP, setting), theta - alone.x)
    assert same(method.anchor, theta - delta) and not method.v.any()
    theta = method.anchor
    method.round(lab)
    assert same(method.anchor, theta - method.alpha * (1.0 + method.mu) * method.v) and method.v.any()


def test_first_step_is_not_plain_by_default():
    method = DiLoCo()
    ran(method, replace(SGD, rounds=1))
    assert method.v.any()


@pytest.mark.parametrize(("late", "waits"), [(OverlappedDiLoCo, DiLoCo), (OverlappedFourBitDiLoCo, FourBitDiLoCo)])
def test_overlapped_diloco_with_instant_links_is_diloco(late, waits):
    method, other = late(mu=0.6), waits(mu=0.6)
    ran(method, ADAM, MLP), ran(other, ADAM, MLP)
    assert same(method.anchor, other.anchor, 1e-5)


def test_overlapped_diloco_keeps_the_steps_made_before_its_mean_lands():
    """x_i is theta plus the progress since the snapshot once the mean landed, and the drift before."""
    setting = replace(SGD, link=Link(latency=0.7), rounds=1)  # lands 2.8 s into a round of 3 s: at its end
    method, lab = OverlappedDiLoCo(mu=0.5), Lab(LINE, setting)
    method.begin(lab)
    method.round(lab)
    theta, snapshot, alone = method.anchor, lab.x.clone(), Lab(LINE, setting)
    assert not same(theta, lab.mean, 1e-3) and lab.seconds == 3.0
    alone.x.copy_(lab.x)
    alone.steps[:] = lab.steps
    alone.train(SGD.every)
    method.round(lab)
    assert same(lab.x, theta + alone.x - snapshot)
    assert lab.seconds == 6.0


def test_diloco_at_its_own_pace_weighs_all_peers_equally():
    setting = replace(SGD, speeds=(1.0, 2.0, 4.0), rounds=1)
    method, alone = DiLoCo(alpha=1.0, mu=0.0, own_pace=True), Lab(LINE, setting)
    alone.train(np.array([3, 6, 12, 3]))
    lab = ran(method, replace(setting, decay=False), LINE)
    assert lab.steps.tolist() == [3, 6, 12, 3] and lab.seconds == 3.0
    assert same(method.anchor, alone.mean)


@pytest.mark.parametrize("made", [DiLoCo, OverlappedDiLoCo])
def test_warm_start_of_diloco_is_short_rounds_of_plain_averaging(made):
    setting, rounds = replace(SGD, decay=False, every=12), []
    method, lab = made(mu=0.9, warmup_steps=12), Lab(LINE, setting)
    method.outer = lambda lab, outer=method.outer: (rounds.append(int(lab.steps[0])), outer(lab))
    method.begin(lab)
    assert rounds == [5, 10, 12] and not method.v.any() and lab.seconds == 12.0
    if made is DiLoCo:
        plain = Lab(LINE, replace(setting, every=5))
        for every in (5, 5, 2):
            plain.train(every)
            plain.x.copy_(plain.mean.expand_as(plain.x))
        assert same(lab.x, plain.x)


def test_warm_start_of_diloco_has_rounds_as_long_as_their_collective():
    setting = replace(SGD, every=50, link=Link(latency=8.0))
    method, lab = DiLoCo(warmup_steps=40), Lab(LINE, setting)
    method.begin(lab)
    assert lab.seconds == 40.0 + 3 * 32.0, "5 steps, then 32, then the last 3, each with four turns"


def test_gradients_in_two_bytes_are_rounded_both_ways():
    whole, half = (ran(Ddp(half=half), replace(SGD, every=1, rounds=1), LINE) for half in (False, True))
    assert half.received.tolist() == (whole.received / 2.0).tolist()
    rounded = Lab(LINE, replace(SGD, every=1, rounds=1))
    rounded.update(rounded.gradients().bfloat16().float().mean(0, keepdim=True).bfloat16().float())
    assert torch.equal(half.x, rounded.x) and same(half.x, whole.x, 1e-2) and not torch.equal(half.x, whole.x)


def test_local_sgd_of_one_step_is_ddp():
    setting = replace(SGD, every=1, rounds=12)
    assert same(ran(LocalSgd(), setting).x, ran(Ddp(), setting).x)


# -- four bits ------------------------------------------------------------------------------------------------


def test_four_bits_are_a_sign_and_one_of_seven_powers_or_zero():
    rows = torch.randn(3, 700, generator=torch.Generator().manual_seed(1)) * torch.tensor([[1.0], [1e-4], [1e5]])
    coded = e3m0(rows)
    for begin in (0, 256, 512):
        block, code = rows[:, begin : begin + 256], coded[:, begin : begin + 256]
        scale = code.abs().amax(1, keepdim=True)
        assert torch.allclose(scale, block.abs().amax(1, keepdim=True), rtol=2.0**-8)
        powers = torch.log2(scale / code.abs())
        assert set(powers[powers.isfinite()].unique().tolist()) <= {0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0}
        assert ((block - code).abs() <= block.abs() / 3 * 1.01 + scale / 128).all()
    assert torch.equal(e3m0(coded), coded)
    assert torch.equal(e3m0(torch.zeros(1, 300)), torch.zeros(1, 300))


def test_four_bit_all_reduce_rounds_the_rows_and_then_the_mean():
    drifts = torch.zeros(4, 20)
    drifts[:, 0] = 1.0
    drifts[:, 1] = torch.tensor([0.74, 0.74, 0.74, 1.0])
    # 0.5, 0.5, 0.5 and 1 arrive, so 0.625 is sent on.
    assert FourBitDiLoCo().reduce(Lab(LINE, SGD), drifts).tolist() == [1.0, 0.5] + [0.0] * 18


def test_four_bit_diloco_stays_near_that_of_32_bits():
    coarse, fine, start = ran(FourBitDiLoCo(), ADAM, MLP), ran(DiLoCo(), ADAM, MLP), MLP.start(0)
    assert (coarse.x - fine.x).norm() < 0.5 * (fine.x - start).norm()
    assert torch.equal(coarse.x, coarse.x[:1].expand_as(coarse.x))
