"""Every baseline: a lone peer is the bare optimizer, all learn, and communication leaves the mean.

`test_baselines_costs` has their costs.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from simulations.lab.baselines.push_sum import Sgp

from peers.plan.timeline import Link
from simulations.lab.baselines import BASELINES, LocalOnly
from simulations.lab.baselines.synchronous import Sparta
from simulations.lab.core import Lab, play
from tests.simulations.lab.baselines.toy_problems import ADAM, LINE, MLP, SGD, STILL, ran, same

LINK = Link(bandwidth=1000.0, latency=0.25)

# -- alone ----------------------------------------------------------------------------------------------------


OTHERWISE_ALONE = {
    **dict.fromkeys(("diloco", "diloco-4bit", "diloco-overlapped", "diloco-4bit-overlapped"), "an outer optimizer"),
    **dict.fromkeys(("noloco", "gasloc", "sparseloco"), "an outer optimizer"),
    "diloco-decoupled": "an outer optimizer",
    "demo": "an optimizer of its own",
}
"""reasons why a lone peer differs from the bare optimizer, by method"""


@pytest.mark.parametrize("name", [name for name in BASELINES if name not in OTHERWISE_ALONE])
def test_alone_without_outer_momentum_is_the_bare_optimizer(name):
    setting = replace(ADAM, peers=1, rounds=3, link=LINK)
    lab = ran(method := BASELINES[name](), setting, MLP)
    bare = torch.equal(method.model(lab), ran(LocalOnly(), setting, MLP).x[0])
    assert bare, f"{name} alone is not the bare optimizer; if it should not be, say why in OTHERWISE_ALONE"
    if name not in ("server", "server-async"):
        assert lab.seconds == 12.0
        assert not lab.received.any()


# -- communication and the mean -------------------------------------------------------------------------------


CONSERVING = {
    **{name: BASELINES[name] for name in ("swarm", "ad-psgd", "noloco", "gasloc", "local-sgd", "d-psgd-ring")},
    **{name: BASELINES[name] for name in ("d-psgd-ring-local", "d-psgd-exponential", "choco", "choco-local")},
    "sparta": lambda: Sparta(p=0.3),
}


@pytest.mark.parametrize("name", CONSERVING)
@pytest.mark.parametrize("peers", [7, 8])
def test_communication_brings_replicas_together_and_leaves_their_mean(name, peers):
    setting = replace(STILL, peers=peers, rounds=24, every=2, failing=0.2)
    before = ran(LocalOnly(), replace(setting, rounds=0), apart=1.0)
    lab = ran(CONSERVING[name](), setting, apart=1.0)
    assert same(lab.mean, before.mean, 1e-5)
    assert lab.distance() < 0.2 * before.distance()


def test_gossip_that_fails_always_changes_nothing():
    setting = replace(STILL, failing=1.0)
    before = ran(LocalOnly(), replace(setting, rounds=0), apart=1.0)
    for name in ("swarm", "ad-psgd", "noloco", "gasloc"):
        assert same(ran(BASELINES[name](), setting, apart=1.0).x, before.x), name


def test_push_sum_under_loss_keeps_all_mass_and_agrees():
    method = Sgp()
    lab = ran(method, replace(STILL, rounds=20, failing=0.3), apart=1.0)
    before = ran(LocalOnly(), replace(STILL, rounds=0), apart=1.0)
    kept = [
        (message.z.astype(np.float64), message.w)
        for peer in method.peers
        for message in peer.outbox.values()
        if not method.peers[message.receiver].has(message)
    ]
    z = sum(peer.z for peer in method.peers) + sum(z for z, _ in kept)
    w = sum(peer.w for peer in method.peers) + sum(w for _, w in kept)
    assert kept
    assert np.allclose(z, before.x.double().sum(0).numpy(), rtol=0, atol=1e-12)
    assert w == pytest.approx(8.0, abs=1e-12)
    assert lab.distance() < 1e-3
    assert same(lab.mean, before.mean, 1e-3)


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


@pytest.mark.parametrize("name", ["swarm", "ad-psgd", "noloco", "gasloc", "sparta", "sgp"])
def test_another_seed_draws_other_pairs(name):
    labs = [Lab(LINE, replace(STILL, seed=seed, rounds=2, failing=0.3)) for seed in (0, 1)]
    for lab in labs:
        lab.x.copy_(torch.randn(lab.x.shape, generator=torch.Generator().manual_seed(2)))
        method = BASELINES[name]() if name != "sparta" else Sparta(p=0.3)
        method.begin(lab)
        method.round(lab)
    assert not torch.equal(labs[0].x, labs[1].x)
