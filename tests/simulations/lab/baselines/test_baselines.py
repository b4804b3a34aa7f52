"""Every baseline: a lone peer is the bare optimizer, all learn, and bytes and seconds are as their docstrings state."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from peers.plan.timeline import Link
from simulations.lab.baselines import BASELINES, LocalOnly
from simulations.lab.core import play
from simulations.lab.runs.runs import OWN_PACE
from tests.simulations.lab.baselines.toy_problems import ADAM, LINE, MLP, SGD, ran

LINK = Link(bandwidth=1000.0, latency=0.25)

# -- alone ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["local-only", "ddp", "local-sgd"])
def test_alone_without_outer_optimizer_is_the_bare_optimizer(name):
    setting = replace(ADAM, peers=1, rounds=3, link=LINK)
    lab = ran(method := BASELINES[name](), setting, MLP)
    assert torch.equal(method.model(lab), ran(LocalOnly(), setting, MLP).x[0])
    assert lab.seconds == 12.0 and not lab.received.any()


# -- all of them ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BASELINES)
def test_learns_and_the_same_seed_gives_the_same_curve(name):
    setting = replace(ADAM, rounds=8, evaluate_every=4, speeds=(1.0, 2.0), failing=0.1, link=LINK, seed=1)
    curve, again = (play(MLP, BASELINES[name](), setting) for _ in range(2))
    assert curve == again
    assert curve.method == name
    assert curve.last.loss < 0.9 * curve.points[0].loss
    assert np.isfinite(curve.last).all()


@pytest.mark.parametrize("name", BASELINES)
def test_a_run_that_diverges_ends_with_a_loss_that_says_so(name):
    assert not play(LINE, BASELINES[name](), replace(SGD, lr=1e8, rounds=6, evaluate_every=6)).last.loss < 1e6


@pytest.mark.parametrize("name", BASELINES)
def test_methods_that_wait_make_the_steps_of_the_slowest(name):
    lab = ran(BASELINES[name](), replace(ADAM, speeds=(1.0, 2.0, 4.0)), MLP)
    own = 24 * lab.setting.all_speeds
    assert lab.steps.tolist() == (own.tolist() if name in OWN_PACE else [24] * 8)
    assert lab.seconds == pytest.approx(24.0)


# -- costs ----------------------------------------------------------------------------------------------------


N, H, P = ADAM.peers, ADAM.every, MLP.parameters
SHARE = 2 * (1 - 1 / N)
"""what a peer receives in an all-reduce, of a vector"""


def took(size, turns):
    return size / LINK.bandwidth + turns * LINK.latency


COSTS = {
    "local-only": (0, H),
    "ddp": (H * SHARE * 4 * P, H * (1 / 3 + took(SHARE * 4 * P, 6))),
    "local-sgd": (SHARE * 4 * P, H + took(SHARE * 4 * P, 6)),
    "diloco": (SHARE * 4 * P, H + took(SHARE * 4 * P, 6)),
    "diloco-4bit": (SHARE * (P / 2 + 4), H + took(SHARE * (P / 2 + 4), 2)),
    "diloco-4bit-overlapped": (SHARE * (P / 2 + 4), H),
}
"""bytes that a peer receives and seconds of a round, at equal speeds"""


@pytest.mark.parametrize("name", COSTS)
def test_bytes_and_seconds_are_as_stated(name):
    lab = ran(BASELINES[name](), replace(ADAM, link=LINK), MLP)
    received, seconds = COSTS[name]
    assert lab.received.tolist() == pytest.approx([6 * received] * N)
    assert lab.seconds == pytest.approx(6 * seconds)


def test_overlapped_diloco_waits_only_for_a_collective_longer_than_a_round():
    lab = ran(BASELINES["diloco-overlapped"](), replace(ADAM, link=LINK), MLP)
    assert lab.received.tolist() == pytest.approx([6 * SHARE * 4 * P] * N)
    # The first round lands nothing. In the others the mean comes 0.38 s after the last step.
    assert lab.seconds == pytest.approx(H + 5 * took(SHARE * 4 * P, 6)) and took(SHARE * 4 * P, 6) > H


@pytest.mark.parametrize("name", ["diloco", "diloco-4bit", "diloco-overlapped", "diloco-4bit-overlapped"])
def test_diloco_at_its_own_pace_takes_no_longer(name):
    setting = replace(ADAM, link=LINK, speeds=(1.0, 2.0, 4.0))
    labs = [ran(BASELINES[name](own_pace=paced), setting, MLP) for paced in (False, True)]
    assert labs[0].seconds == labs[1].seconds and labs[0].received.tolist() == labs[1].received.tolist()
    assert labs[1].steps.tolist() == (24 * labs[1].setting.all_speeds).tolist()


@pytest.mark.parametrize("name", ["ddp", "local-sgd", "diloco", "diloco-4bit", "sparseloco"])
def test_collective_that_fails_is_repeated_and_costs_only_time_and_bytes(name):
    calm, rough = (ran(BASELINES[name](), replace(ADAM, link=LINK, failing=share), MLP) for share in (0.0, 0.4))
    assert torch.equal(rough.x, calm.x)
    assert rough.seconds > calm.seconds and rough.received.mean() > calm.received.mean()


def test_all_reduce_that_fits_behind_the_backward_pass_costs_ddp_nothing():
    assert ran(BASELINES["ddp"](), replace(ADAM, link=Link(bandwidth=1e6)), MLP).seconds == 24.0
