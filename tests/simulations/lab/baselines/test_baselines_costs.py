"""Costs of baselines: bytes and simulated seconds as their docstrings state, and which peers wait."""

from dataclasses import replace

import pytest
import torch

from peers.plan.timeline import Link
from simulations.lab.baselines import BASELINES
from simulations.lab.baselines.gossip import AdPsgd
from simulations.lab.baselines.parameter_server import AsynchronousServer
from simulations.lab.baselines.synchronous import Ddp
from simulations.lab.compressors import COMPRESSORS
from simulations.lab.core import Lab, Score, Setting


class Slope:
    """A problem whose gradient is 1 everywhere."""

    name, embeddings, parameters = "slope", (), 412
    shapes = ((412,),)

    def start(self, seed):
        return torch.zeros(412)

    def batches(self, peers, steps, seed):
        return (torch.ones(len(peers), 1),)

    def loss(self, x, ones):
        return x.sum() * ones[0]

    def evaluate(self, x):
        return Score(float(x.sum()), float("nan"))


N, H, P = 8, 4, Slope.parameters
LINK = Link(bandwidth=1000.0, latency=0.25)
SETTING = Setting(peers=N, every=H, rounds=2, lr=0.03)


def ran(method, setting):
    """The lab after the run."""
    lab = Lab(Slope(), setting)
    method.begin(lab)
    for _ in range(setting.rounds):
        method.round(lab)
    return lab


REDUCE = 2 * (1 - 1 / N)
TOPK, DCT, SIGN = (COMPRESSORS[name].most_bytes(P) for name in ("topk64", "dct64", "sign"))


def took(size, turns=1):
    return size / LINK.bandwidth + turns * LINK.latency


COSTS = {
    "local-only": (0, H),
    "ddp": (H * REDUCE * 4 * P, H * (1 / 3 + took(REDUCE * 4 * P, 6))),
    "server": (H * 4 * P, H * (1 + 2 * took(N * 4 * P))),
    "local-sgd": (REDUCE * 4 * P, H + took(REDUCE * 4 * P, 6)),
    "diloco": (REDUCE * 4 * P, H + took(REDUCE * 4 * P, 6)),
    "diloco-4bit": (REDUCE * (P / 2 + 4), H + took(REDUCE * (P / 2 + 4), 2)),
    "diloco-4bit-overlapped": (REDUCE * (P / 2 + 4), H),
    "sparseloco": (7 * TOPK, H + took(7 * TOPK)),
    "demo": (H * 7 * DCT, H * (1 + took(7 * DCT))),
    "noloco": (8 * P, H + took(8 * P)),
    "gasloc": (4 * P, H + took(4 * P)),
    "swarm": (4 * P, H + took(4 * P)),
    "ad-psgd": (H * 8 * P, H * took(8 * P, 2)),
    "d-psgd-ring": (H * 8 * P, H * took(8 * P)),
    "d-psgd-ring-local": (8 * P, H + took(8 * P)),
    "d-psgd-exponential": (H * 4 * P, H * took(4 * P)),
    "d-psgd-exponential-local": (4 * P, H + took(4 * P)),
    "sgp": (H * (4 * P + 8), H * (1 + took(4 * P + 8))),
    "sgp-local": (4 * P + 8, H + took(4 * P + 8)),
    "choco": (H * 2 * SIGN, H * (1 + took(2 * SIGN))),
    "choco-local": (2 * SIGN, H + took(2 * SIGN)),
}
"""bytes that a peer receives and seconds of a round, at equal speeds"""


def test_costs_of_all_are_stated():
    assert set(BASELINES) - set(COSTS) == {"sparta", "server-async", "diloco-overlapped", "diloco-decoupled"}


@pytest.mark.parametrize("name", COSTS)
def test_bytes_and_seconds_are_as_stated(name):
    lab = ran(BASELINES[name](), replace(SETTING, link=LINK))
    received, seconds = COSTS[name]
    assert lab.received.mean() == pytest.approx(2 * received)
    assert lab.seconds == pytest.approx(2 * seconds)
    assert (lab.steps == 2 * H).all()


def test_overlapped_diloco_waits_only_for_a_collective_longer_than_a_round():
    setting = replace(SETTING, link=LINK, rounds=3)
    lab = ran(BASELINES["diloco-overlapped"](), setting)
    assert lab.received.mean() == pytest.approx(3 * REDUCE * 4 * P)
    # The first round lands nothing. In the next two the mean comes 0.38 s after the last step.
    assert lab.seconds == pytest.approx(H + 2 * took(REDUCE * 4 * P, 6)) and took(REDUCE * 4 * P, 6) > H


@pytest.mark.parametrize("name", ["diloco", "diloco-4bit", "diloco-overlapped", "diloco-4bit-overlapped"])
def test_diloco_at_its_own_pace_takes_no_longer(name):
    setting = replace(SETTING, link=LINK, speeds=(1.0, 2.0, 4.0))
    labs = [ran(replace(BASELINES[name](), own_pace=paced), setting) for paced in (False, True)]
    assert labs[0].seconds == labs[1].seconds and labs[0].received.tolist() == labs[1].received.tolist()
    assert labs[1].steps.tolist() == (2 * H * labs[1].setting.all_speeds).tolist()


OWN_PACE = {"local-only", "server-async", "gasloc", "swarm", "ad-psgd", "diloco-decoupled"}


@pytest.mark.parametrize("name", BASELINES)
def test_methods_that_wait_make_the_steps_of_the_slowest(name):
    lab = ran(BASELINES[name](), replace(SETTING, speeds=(1.0, 2.0, 4.0)))
    own = 2 * H * lab.setting.all_speeds
    assert lab.steps.tolist() == (own.tolist() if name in OWN_PACE else [2 * H] * N)
    assert lab.seconds == pytest.approx(2 * H)


SYNCHRONOUS = [
    "ddp",
    "server",
    "local-sgd",
    "diloco",
    "diloco-4bit",
    "sparseloco",
    "demo",
    "d-psgd-ring",
    "choco-local",
]


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_collective_that_fails_is_repeated_and_costs_only_time_and_bytes(name):
    calm = ran(BASELINES[name](), replace(SETTING, rounds=12, link=LINK))
    rough = ran(BASELINES[name](), replace(SETTING, rounds=12, link=LINK, failing=0.4))
    assert torch.equal(rough.x, calm.x)
    assert rough.seconds > calm.seconds
    assert rough.received.mean() > calm.received.mean()


def test_all_reduce_that_fits_behind_the_backward_pass_costs_ddp_nothing():
    assert ran(Ddp(), replace(SETTING, link=Link(bandwidth=1e6))).seconds == 2 * H


@pytest.mark.parametrize("peers", [4, 8])
def test_asynchronous_server_is_bound_by_its_link(peers):
    setting = replace(SETTING, peers=peers, link=Link(bandwidth=4 * P / 2.0), rounds=4)
    lab = ran(AsynchronousServer(), setting)
    pushes = peers * H * 4
    assert lab.seconds == pytest.approx(1.0 + 2.0 * pushes)
    assert lab.received.sum() == pushes * 4 * P


def test_asynchronous_server_divides_the_rate_by_the_staleness():
    setting = Setting(peers=4, every=2, rounds=1, inner="sgd", lr=0.5, decay=False)
    method = AsynchronousServer()
    lab = ran(method, setting)
    # All pulled version 0. Updates 1 to 4 find it 0 to 3 old, and all later pulls are 3 old.
    wanted = torch.full((P,), -0.5 * (1 + 1 + 1 / 2 + 1 / 3 + 4 / 3))
    assert torch.allclose(method.model(lab), wanted, rtol=0.0, atol=1e-6)


def test_ad_psgd_transfers_beside_the_gradient_until_the_link_is_full():
    free = ran(AdPsgd(), replace(SETTING, link=Link(bandwidth=8 * P / 0.9), speeds=(1.0,)))
    assert free.seconds == 2 * H
    full = ran(AdPsgd(), replace(SETTING, link=Link(bandwidth=8 * P / 0.5), speeds=(1.0, 4.0)))
    assert full.steps.tolist() == [2 * H, 4 * H] * 4
