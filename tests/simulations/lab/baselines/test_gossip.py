"""Baselines that gossip: exact identities of graphs, push-sum, outer momentum and compression."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from simulations.lab.baselines import LocalOnly
from simulations.lab.baselines.costs import matching
from simulations.lab.baselines.decoupled_momentum import DeMo
from simulations.lab.baselines.gossip import Choco, DPsgd, Gasloc, NoLoCo, PairAveraging, complete, exponential, ring
from simulations.lab.baselines.push_sum import Sgp
from simulations.lab.baselines.synchronous import SparseLoCo, Sparta
from simulations.lab.compressors import COMPRESSORS
from simulations.lab.core import Lab
from tests.simulations.lab.baselines.toy_problems import ADAM, LINE, MLP, SGD, STILL, ran, same


def test_d_psgd_on_the_complete_graph_averages_all_and_adds_the_steps():
    lab = ran(DPsgd(complete, "complete"), replace(STILL, every=1, rounds=1), apart=1.0)
    assert lab.distance() < 1e-6
    before = ran(LocalOnly(), replace(SGD, rounds=0), apart=1.0)
    after = ran(DPsgd(complete, "complete"), replace(SGD, every=1, rounds=1), apart=1.0)
    assert same(after.x, before.mean - SGD.lr * before.gradients())


def test_d_psgd_with_local_steps_mixes_their_results():
    """x_i <- inner^H(x_i), then W x (Koloskova et al. 2020): all replicas become the mean of their local results."""
    setting = replace(SGD, rounds=1, decay=False)
    alone, lab = Lab(LINE, setting), ran(DPsgd(complete, "complete", local=True), setting)
    alone.train(setting.every)
    assert same(lab.x, alone.mean.expand(4, -1)) and lab.distance() < 1e-6


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_one_peer_exponential_graph_is_exact_after_log2_n_exchanges(count):
    turns = count.bit_length() - 1
    setting = replace(STILL, peers=count, every=1)
    assert ran(DPsgd(exponential, ""), replace(setting, rounds=turns), apart=1.0).distance() < 1e-6
    assert ran(DPsgd(exponential, ""), replace(setting, rounds=turns - 1), apart=1.0).distance() > 0.1


@pytest.mark.parametrize("count", [2, 4, 8])
def test_push_sum_is_exact_after_log2_n_exchanges(count):
    turns = count.bit_length() - 1
    assert ran(Sgp(), replace(STILL, peers=count, every=1, rounds=turns), apart=1.0).distance() < 1e-6


@pytest.mark.parametrize("graph", [ring, exponential, complete])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 7])
def test_graphs_are_doubly_stochastic(graph, count):
    for exchange in range(4):
        heard = graph(count, exchange)
        assert all(len({peer, *row}) == heard.shape[1] + 1 for peer, row in enumerate(heard.tolist()))
        assert (np.bincount(heard.flatten(), minlength=count) == heard.shape[1]).all()


@pytest.mark.parametrize("count", [1, 2, 7, 8])
def test_matching_pairs_all_peers_but_one_of_an_odd_number(count):
    partner = matching(Lab(LINE, replace(SGD, peers=count)))
    assert (partner[partner] == np.arange(count)).all()
    assert (partner == np.arange(count)).sum() == count % 2


@pytest.mark.parametrize("method", [Gasloc(1.0, 1.0, 0.0), NoLoCo(0.0, 1.0, 1.0)], ids=lambda method: method.name)
def test_without_momentum_it_is_pair_averaging(method):
    setting = replace(SGD, peers=8, failing=0.3)
    assert same(ran(method, setting).x, ran(PairAveraging(), setting).x)


def test_noloco_moves_the_mean_by_heavy_ball_momentum_on_the_mean_drift():
    method, lab = NoLoCo(), Lab(MLP, replace(ADAM, peers=7, failing=0.2))
    method.begin(lab)
    velocity = torch.zeros(MLP.parameters)
    for _ in range(6):
        start, alone = lab.mean, Lab(MLP, lab.setting)
        alone.x.copy_(lab.x)
        alone.steps[:] = lab.steps
        alone.inner.__dict__.update({key: _copied(value) for key, value in vars(lab.inner).items()})
        alone.train(lab.setting.every)
        method.round(lab)
        velocity = method.alpha * velocity + method.beta * (alone.mean - start)
        assert same(lab.mean, start + velocity, 1e-5)


def _copied(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


def test_gasloc_moves_the_mean_as_nesterov_for_any_matching():
    method, lab = Gasloc(), Lab(LINE, replace(SGD, peers=7, failing=0.2))
    method.begin(lab)
    before = lab.mean
    for _ in range(6):
        theta = method.theta.mean(0)
        alone = Lab(LINE, lab.setting)
        alone.x.copy_(lab.x)
        alone.steps[:] = lab.steps
        alone.train(lab.setting.every)
        method.round(lab)
        y = theta + method.eta * (alone.mean - theta)
        assert same(lab.mean, y + method.gamma * (y - before), 1e-5)
        before = y


class Exact:
    """A compressor that sends everything."""

    name, contraction = "exact", 1.0

    def most_bytes(self, size):
        return 4 * size

    def encode(self, values, *, seed):
        return values.tobytes()

    def decode(self, payload, size):
        return np.frombuffer(payload, np.float32).copy()


def test_choco_with_an_exact_codec_and_gamma_1_is_averaging_on_the_ring():
    choco = ran(Choco(Exact(), gamma=1.0), replace(STILL, rounds=1, every=2), apart=1.0)
    assert same(choco.x, ran(DPsgd(ring, "ring"), replace(STILL, rounds=1, every=2), apart=1.0).x)


def test_choco_neighbours_agree_about_their_states():
    method = Choco(COMPRESSORS["sign"])
    lab = ran(method, replace(ADAM, failing=0.3), MLP)
    heard = torch.from_numpy(ring(8, 0))
    assert same(method.s, (method.xhat + method.xhat[heard].sum(1)) / 3, 1e-5)
    assert (lab.x - method.xhat).norm() < 0.3 * (lab.x - MLP.start(0)).norm()


def test_sparse_error_feedback_loses_nothing():
    method = SparseLoCo(COMPRESSORS["topk128"], alpha=0.5, beta=1.0)
    lab = Lab(MLP, ADAM)
    method.begin(lab)
    drifts = torch.zeros(MLP.parameters)
    for _ in range(4):
        alone = Lab(MLP, ADAM)
        alone.x.copy_(lab.x)
        alone.steps[:] = lab.steps
        alone.inner.__dict__.update({key: _copied(value) for key, value in vars(lab.inner).items()})
        alone.train(ADAM.every)
        drifts += (method.anchor - alone.x).mean(0)
        method.round(lab)
        left = torch.from_numpy(np.mean([sender.residual for sender in method.senders], 0))
        assert same(method.anchor - 0.5 * left, MLP.start(0) - 0.5 * drifts, 1e-5)
        assert left.norm() > 0


def test_demo_moves_every_parameter_by_a_sign_on_all_replicas():
    setting = replace(ADAM, rounds=1, every=1)
    lab = ran(DeMo(), setting, MLP)
    assert torch.equal(lab.x, lab.x[:1].expand_as(lab.x))
    moved = (lab.x[0] - MLP.start(0)).abs()
    assert same(moved[moved > 0], torch.full((int((moved > 0).sum()),), setting.lr))
    assert (moved > 0).float().mean() > 0.9


def test_sparta_averages_the_chosen_parameters_only():
    lab = ran(Sparta(p=0.3), replace(STILL, rounds=1, every=1), apart=1.0)
    spread = lab.x.std(0)
    assert 1 <= (spread < 1e-6).sum() < 20
    assert (lab.received == 2 * 7 / 8 * 4 * int((spread < 1e-6).sum())).all()
