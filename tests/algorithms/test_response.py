"""The share of a correction that the inner optimizer takes back: what is measured, and that training stays stable."""

import numpy as np
import pytest
import torch

from gossipdp.algorithms.response import SAMPLE, Response
from gossipdp.protocol import jobs
from gossipdp.protocol.rounds.rounds import damped
from peers.plan.frames import average_chunk
from simulations.lab.methods.replica import Replica
from simulations.simulator.settings import pairwise

SIZE = SAMPLE * 256
MU, BATCH, WIDTH = 0.8, 16, 64


def normal(seed, size=SIZE):
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


class Training:
    """Rounds of one training process, whose D the test chooses. Each round one slot lands."""

    def __init__(self, size=SIZE):
        self.response, self.slot, self.a = Response([slice(0, size)]), 0, np.zeros(size, np.float32)

    def round(self, d, correction=None, *, warm=False):
        """g after a round with this D, in which `correction` has landed."""
        if correction is not None:
            self.slot += 1
            self.response.sealed(self.slot, {0: correction})
        gain = self.response.measure(0, self.slot, self.a - d, np.empty(0, np.float32), self.a, 1.0, warm)
        return gain


def answers(share, progress=0.1, rounds=8):
    """g of a training process that takes back `share` of the corrections of the round before, beside some progress."""
    training, before, gain = Training(), np.zeros(SIZE, np.float32), 0.0
    for number in range(rounds):
        correction = normal(number)
        d = share * before + progress * (normal(1000) + normal(2000 + number))
        gain = training.round(d, correction)
        before = correction
    return gain


@pytest.mark.parametrize("share", [-0.8, 0.3, 1.0, 1.5])
def test_what_is_taken_back_is_found_whatever_its_sign(share):
    assert answers(share) == pytest.approx(abs(share), rel=0.2)


def test_progress_that_has_nothing_to_do_with_corrections_is_no_answer():
    assert answers(0.0, progress=1.0) < 0.01


def test_corrections_along_a_fast_hosts_own_progress_are_no_answer():
    """It moves the others its own way, and goes on so."""
    training, way = Training(), normal(5)
    assert max(training.round(way + 0.1 * normal(number), 0.5 * way) for number in range(8)) < 0.01


def test_quotient_that_no_training_process_can_reach_is_noise():
    assert answers(30.0) == 0.0


def test_gain_rises_at_once_and_falls_slowly():
    training, correction = Training(), normal(3)
    for number in range(3):
        training.round(normal(10 + number), correction)
    risen = training.round(correction, correction)
    assert risen > 0.9
    assert training.round(normal(20), correction) == pytest.approx(0.5 * risen, abs=0.05)


def test_short_rounds_of_the_warm_start_show_nothing_nor_does_the_first_one_after_them():
    training, before = Training(), normal(0)
    for number in range(1, 5):
        correction = normal(number)
        assert training.round(before, correction, warm=True) == 0.0
        before = correction
    assert training.round(4.0 * normal(9) + before, normal(6)) == 0.0


def test_slot_counts_in_the_round_after_that_of_the_snapshot_that_contains_it():
    response, empty, a = Response([slice(0, SIZE)]), np.empty(0, np.float32), np.zeros(SIZE, np.float32)
    early, late = normal(1), normal(2)
    response.measure(0, 0, -normal(7), empty, a, 1.0)
    response.sealed(1, {0: early})
    response.sealed(2, {0: late})
    response.measure(0, 1, -normal(8) - late, late, a, 1.0)
    assert response.measure(0, 2, -late, empty, a, 1.0) < 0.1
    assert response.measure(0, 2, -late, empty, a, 1.0) > 0.9


@pytest.mark.parametrize("place", [0, SIZE - 1])
def test_fast_scalar_does_not_decide_for_its_chunk(place):
    training, before, gain = Training(), np.zeros(SIZE, np.float32), 0.0
    for number in range(8):
        correction, d = normal(number), normal(100 + number)
        correction[place] *= 1000.0
        d[place] = before[place]
        gain, before = training.round(d, correction), correction
    assert gain < 0.2


def test_another_training_process_begins_with_nothing():
    training = Training()
    for number in range(4):
        training.round(normal(number), normal(9))
    training.response.begin()
    assert training.response.gain == [0.0]


def least_squares(late, every, lr, rounds=40, seed=0):
    """Squared error of two replicas that exchange once a round, `late` rounds after its begin. SGD, momentum 0.9."""
    random = np.random.default_rng(seed)
    goal = np.random.default_rng(7).standard_normal((WIDTH, WIDTH)) / 8
    x = torch.zeros(2, WIDTH * WIDTH)
    weights = x.numpy().reshape(2, WIDTH, WIDTH)
    momenta = np.zeros_like(weights)
    pair = [Replica(number, x[number], pairwise(), alone=0) for number in range(2)]
    chunks, due = range(pair[0].ledger.chunks), []
    for step in range(rounds * every):
        for begun in [each for each in due if each <= step / every]:
            due.remove(begun)
            weight = 0.5 * damped(max(each.gain for each in pair))
            for chunk in chunks:
                average_chunk(*pair, (1 << 32) + step, "modulo8", weight, 0.3, chunk)
            for each in pair:
                each.drain()
        for number in range(2):
            inputs = random.standard_normal((BATCH, WIDTH))
            error = inputs @ (weights[number] - goal).T
            momenta[number] = 0.9 * momenta[number] + 2 * error.T @ inputs / BATCH / WIDTH
            weights[number] -= lr * momenta[number]
        if (step + 1) % every == 0:
            for each in pair:
                each.buffers.submit()
                steps = [each.algorithm.run(jobs.OuterStep(c, 1.0, MU, each.buffers.applied)) for c in chunks]
                each.gain = max(made.gain for made in steps)
                each.drain()
            due.append((step + 1) / every + late)
    return float(((weights[0] - goal) ** 2).sum(1).mean())


@pytest.mark.parametrize("late", [0.3, 0.6, 0.9, 1.5])
@pytest.mark.parametrize("every", [10, 20])
def test_training_that_undoes_corrections_stays_as_good_as_alone(late, every):
    """Without a measured g the error grows beyond all bounds from 0.6 on; a host alone reaches 1e-6."""
    assert least_squares(late, every, lr=0.5) < 1e-6
