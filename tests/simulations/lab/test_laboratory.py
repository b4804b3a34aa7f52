"""The laboratory's core: rows step as torch's optimizers do, and clocks, curves and warm starts add up."""

import numpy as np
import pytest
import torch

from peers.plan.timeline import Link
from simulations.lab.baselines.synchronous import Ddp
from simulations.lab.core import Lab, Setting, play
from simulations.lab.inner import INNER
from simulations.lab.problems import Consensus, DigitsMlp, Quadratic
from simulations.lab.runs.runs import METHODS

PROBLEM = DigitsMlp(hidden=12, batch=8)


def setting(**changes):
    return Setting(**({"peers": 3, "every": 4, "rounds": 2, "lr": 0.02, "weight_decay": 0.1, "decay": False} | changes))


def alone(lab, peer, steps, optimizer):
    """The result of torch's optimizer on one replica with shaped parameters."""
    sizes = [int(np.prod(shape)) for shape in PROBLEM.shapes]
    parts = PROBLEM.start(lab.setting.seed).split(sizes)
    tensors = [torch.nn.Parameter(part.clone().view(shape)) for part, shape in zip(parts, PROBLEM.shapes, strict=True)]
    steps_of = optimizer(tensors)
    for step in range(steps):
        batch = PROBLEM.batches(np.array([peer]), np.array([step]), lab.setting.seed)
        x = torch.cat([tensor.flatten() for tensor in tensors])
        PROBLEM.loss(x, *[rows[0] for rows in batch]).backward()
        for one in steps_of:
            one.step()
            one.zero_grad()
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def adamw(tensors):
    return [torch.optim.AdamW(tensors, lr=0.02, betas=(0.9, 0.99), weight_decay=0.1)]


def sgd(tensors):
    return [torch.optim.SGD(tensors, lr=0.02, weight_decay=0.1)]


@pytest.mark.parametrize(("inner", "optimizer"), [("adamw", adamw), ("sgd", sgd)])
def test_rows_step_as_torch_does_with_unequal_step_counts(inner, optimizer):
    lab = Lab(PROBLEM, setting(inner=inner))
    counts = np.array([7, 3, 5])
    lab.train(counts)
    for peer, steps in enumerate(counts):
        torch.testing.assert_close(lab.x[peer], alone(lab, peer, int(steps), optimizer), atol=1e-6, rtol=1e-6)
    assert lab.steps.tolist() == counts.tolist()


@pytest.mark.parametrize("inner", sorted(INNER))
def test_replicas_do_not_see_each_other(inner):
    together, single = Lab(PROBLEM, setting(inner=inner)), Lab(PROBLEM, setting(inner=inner, peers=1))
    together.train(5)
    single.train(5)
    torch.testing.assert_close(together.x[0], single.x[0], atol=1e-5, rtol=1e-5)
    assert together.distance() > 0.01


@pytest.mark.parametrize(("inner", "lr"), [("adamw", 0.01), ("sgd", 0.3)])
def test_every_inner_optimizer_learns(inner, lr):
    lab = Lab(PROBLEM, setting(peers=1, inner=inner, lr=lr, weight_decay=0.0))
    before = PROBLEM.evaluate(lab.x[0]).loss
    lab.train(60)
    assert PROBLEM.evaluate(lab.x[0]).loss < 0.8 * before


def test_rate_falls_along_a_cosine_to_a_tenth():
    lab = Lab(PROBLEM, setting(decay=True))
    rates = []
    for lab.progress in (0.0, 0.5, 1.0):
        rates.append(lab.lr)
    assert rates == pytest.approx([0.02, 0.011, 0.002])


def test_rate_falls_step_by_step_for_any_length_of_rounds():
    curves = [play(PROBLEM, Ddp(), setting(every=every, rounds=14 // every, decay=True)) for every in (14, 7, 1)]
    assert len({curve.last.loss for curve in curves}) == 1


@pytest.mark.parametrize("name", ["ddp", "pairwise", "diloco", "diloco-overlapped", "diloco-decoupled", "sparseloco"])
def test_rate_has_fallen_at_the_end_of_every_method(name, monkeypatch):
    rates, lr = [], Lab.lr.fget
    monkeypatch.setattr(Lab, "lr", property(lambda lab: rates.append(lr(lab)) or rates[-1]))
    play(PROBLEM, METHODS[name](), setting(every=10, decay=True, speeds=(1.0, 2.0), warmup=3))
    assert rates[:4] == pytest.approx([0.02] * 4) and sorted(rates, reverse=True) == rates
    assert rates[-1] == pytest.approx(0.002, rel=0.1)


def test_steps_of_unequal_peers_spread_over_the_same_time():
    lab = Lab(PROBLEM, setting())
    told = [(share, [0, 1, 2] if due is None else due.tolist()) for share, due in lab.ticks(np.array([1, 2, 4]))]
    assert told == [(0.0, [2]), (0.25, [1, 2]), (0.5, [2]), (0.75, [0, 1, 2])]
    assert not list(lab.ticks(0))


def test_replicas_may_begin_apart_and_never_alias_the_problems_tensor():
    lab = Lab(Consensus(peers=3, size=8), setting())
    assert lab.x.shape == (3, 8) and lab.distance() > 0.5
    start = PROBLEM.start(0)

    class Kept(DigitsMlp):
        def start(self, seed):
            return start

    Lab(Kept(hidden=12, batch=8), setting(peers=1)).train(1)
    torch.testing.assert_close(start, PROBLEM.start(0), atol=0, rtol=0)


class Rest:
    """A method that only trains."""

    name = "rest"

    def begin(self, lab):
        assert lab.distance() < 1e-4

    def round(self, lab):
        lab.train(np.round(lab.setting.every * lab.setting.all_speeds).astype(np.int64))
        lab.seconds += lab.setting.every * lab.setting.step_seconds

    def model(self, lab):
        return lab.mean


def test_curve_begins_warm_and_counts_steps_seconds_and_bytes():
    link = Link(bandwidth=1e5, latency=0.01)
    conditions = setting(warmup=5, speeds=(1.0, 2.0), link=link, step_seconds=0.5, rounds=3, evaluate_every=2)
    curve = play(PROBLEM, Rest(), conditions)
    assert [point.round for point in curve.points] == [0, 2, 3]
    first, *_, last = curve.points
    reduced = 2 * (1 - 1 / 3) * 4 * PROBLEM.parameters
    assert first.bytes == pytest.approx(5 * reduced / PROBLEM.parameters)
    assert first.seconds == pytest.approx(5 * (0.5 + reduced / 1e5 + 4 * 0.01))
    # Speeds repeat: 1, 2, 1.
    assert first.steps == 5 and last.steps == pytest.approx(5 + 12 * 4 / 3)
    assert last.seconds == pytest.approx(first.seconds + 3 * 4 * 0.5)
    assert last.loss < first.loss and last.distance > 0.01 and 0 <= last.accuracy <= 1
    assert play(PROBLEM, Rest(), conditions) == curve


def test_warm_start_is_training_on_all_batches_at_once():
    """With SGD, a warm start equals one replica with the mean gradient over peers."""
    lab = Lab(PROBLEM, setting(inner="sgd"))
    x = PROBLEM.start(0)
    for _ in range(3):
        mean = torch.stack(list(lab.gradients())).mean(0)
        x = x * (1 - 0.02 * 0.1) - 0.02 * mean
        lab.update(mean.expand(3, -1))
    torch.testing.assert_close(lab.x, x.expand(3, -1), atol=1e-6, rtol=1e-6)


def test_link_counts_bytes_and_turns():
    assert Link().seconds(1e12) == 0.0
    assert Link(bandwidth=1e6, latency=0.1).seconds(5e5, 3) == pytest.approx(0.8)


def test_noise_of_a_quadratic_has_the_stated_size():
    lab = Lab(Quadratic(size=4096, noise=3.0), setting(peers=16, inner="sgd"))
    assert float(lab.gradients().square().sum(1).mean()) == pytest.approx(9.0, rel=0.03)
