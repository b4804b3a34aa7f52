"""Baselines: exact identities, and that all of them learn. `test_baselines_costs` has their costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from gossipdp.codecs import COMPRESSORS
from simulations.lab.baselines import BASELINES, LocalOnly
from simulations.lab.baselines.costs import matching
from simulations.lab.baselines.decoupled_momentum import DeMo
from simulations.lab.baselines.gossip import (
    Choco,
    DPsgd,
    Gasloc,
    NoLoCo,
    PairAveraging,
    complete,
    exponential,
    ring,
)
from simulations.lab.baselines.overlapped import OverlappedDiLoCo, OverlappedFourBitDiLoCo
from simulations.lab.baselines.push_sum import Sgp
from simulations.lab.baselines.synchronous import Ddp, DiLoCo, FourBitDiLoCo, LocalSgd, SparseLoCo, Sparta, e3m0
from simulations.lab.core import Lab, Link, Score, Setting, play

ROWS, BATCH = 512, 8


def rows_of(peers, steps, seed):
    """The examples that these peers draw, shape (peers, BATCH)."""
    first = 7919 * seed + 977 * np.asarray(peers) + 131 * np.asarray(steps)
    return torch.from_numpy((first[:, None] + 37 * np.arange(BATCH)) % ROWS)


class Line:
    """Least squares."""

    name, embeddings, parameters = "line", (), 20
    shapes = ((20,),)

    def __init__(self):
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(ROWS, 20, generator=generator)
        self.outputs = self.inputs @ torch.randn(20, generator=generator)

    def start(self, seed):
        return torch.zeros(20)

    def batches(self, peers, steps, seed):
        rows = rows_of(peers, steps, seed)
        return self.inputs[rows], self.outputs[rows]

    def loss(self, x, inputs, outputs):
        return (inputs @ x - outputs).square().mean() / 2

    def evaluate(self, x):
        return Score(float(self.loss(x, self.inputs, self.outputs)), float("nan"))


class OneLarge(Line):
    """Draws the batches of `count` peers as one batch."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def batches(self, peers, steps, seed):
        one = [rows_of(np.arange(self.count), np.full(self.count, step), seed).flatten() for step in steps]
        return self.inputs[torch.stack(one)], self.outputs[torch.stack(one)]


class Mlp:
    """Two layers on random inputs, labelled by another such model."""

    name, embeddings = "mlp", ()
    shapes = ((12, 24), (24,), (24, 4), (4,))
    sizes = (288, 24, 96, 4)
    parameters = 412

    def __init__(self):
        generator = torch.Generator().manual_seed(6)
        self.inputs = torch.randn(ROWS, 12, generator=generator)
        self.labels = self.outputs(torch.randn(self.parameters, generator=generator), self.inputs).argmax(1)

    def outputs(self, x, inputs):
        first, bias, second, other = (
            part.view(shape) for part, shape in zip(x.split(self.sizes), self.shapes, strict=True)
        )
        return torch.tanh(inputs @ first + bias) @ second + other

    def start(self, seed):
        return 0.2 * torch.randn(self.parameters, generator=torch.Generator().manual_seed(seed))

    def batches(self, peers, steps, seed):
        rows = rows_of(peers, steps, seed)
        return self.inputs[rows], self.labels[rows]

    def loss(self, x, inputs, labels):
        return cross_entropy(self.outputs(x, inputs), labels)

    def evaluate(self, x):
        outputs = self.outputs(x, self.inputs)
        return Score(
            float(cross_entropy(outputs, self.labels)), float((outputs.argmax(1) == self.labels).float().mean())
        )


LINE, MLP = Line(), Mlp()
LINK = Link(bandwidth=1000.0, latency=0.25)
SGD = Setting(peers=4, every=3, rounds=4, inner="sgd", lr=0.05)
ADAM = Setting(peers=8, every=4, rounds=6, lr=0.03)
STILL = replace(SGD, peers=8, lr=0.0)
"""no training, so only communication moves a replica"""


def ran(method, setting, problem=LINE, apart=0.0):
    """The lab after the run. `apart` is the initial distance of the replicas."""
    lab = Lab(problem, setting)
    lab.x += apart * torch.from_numpy(np.random.default_rng(3).normal(size=lab.x.shape)).float()
    method.begin(lab)
    lab.start()
    for _ in range(setting.rounds):
        method.round(lab)
    return lab


def same(one, other, within=1e-6):
    return torch.allclose(one, other, rtol=0.0, atol=within)


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


OTHERWISE_ALONE = {
    **dict.fromkeys(("diloco", "diloco-4bit", "diloco-overlapped", "diloco-4bit-overlapped"), "an outer optimizer"),
    **dict.fromkeys(("noloco", "gasloc", "sparseloco"), "an outer optimizer"),
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
