"""How far rounds swing or grow: what is measured, and that training stays stable."""

from itertools import pairwise as pairs

import numpy as np
import pytest
import torch

from gossipdp.algorithms.swings import MOST, SAMPLE, Swings
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
    """Rounds of one training process, whose D the test chooses."""

    def __init__(self, size=SIZE):
        self.swings, self.a = Swings([slice(0, size)]), normal(99, size)

    def round(self, d, late=(), part=1.0):
        """g after a round with this D, `part` of a usual one. The snapshot lacks the corrections `late`."""
        late = np.asarray(late, np.float32)
        x = self.a - d - late if len(late) else self.a - d
        return self.swings.measure(0, x, late, self.a, part)


def last(ds):
    training = Training()
    return [training.round(d) for d in ds][-1]


@pytest.mark.parametrize("share", [0.6, 1.0])
def test_rounds_that_undo_the_one_before_swing(share):
    way = normal(1)
    assert last((-1.0) ** n * share * way + (1.0 - share) * normal(2 + n) for n in range(8)) == MOST


def test_rounds_that_undo_the_one_before_last_swing_too():
    """D turns by a right angle each round."""
    ways = [normal(1), normal(2)]
    assert last((1, 1, -1, -1)[n % 4] * ways[n % 2] for n in range(12)) == MOST


def test_steady_progress_does_not_swing_whatever_its_noise():
    way = normal(1)
    assert last(way for _ in range(8)) == 0.0
    assert last(0.1 * way + normal(2 + n) for n in range(8)) == 0.0


def test_noise_that_a_round_brings_and_the_next_one_loses_in_part_does_not_swing():
    """As in healthy training: cosines of -0.1 on some chunks."""
    noise = [normal(n) for n in range(13)]
    assert last(now - 0.12 * before for before, now in pairs(noise)) == 0.0


def test_a_round_that_repeats_the_one_before_and_grows_counts_too():
    assert last(1.8**n * normal(1) for n in range(8)) == MOST


def test_one_jump_is_no_growth():
    """A rate that was raised tenfold."""
    assert max(Training().round(d) for d in [normal(1)] * 4 + [10.0 * normal(1)] * 4) == 0.0


def test_training_that_sets_off_from_noise_does_not_swing_any_more():
    training, noise = Training(), [normal(n) for n in range(13)]
    swinging = [training.round(now - before) for before, now in pairs(noise)][-1]
    assert swinging > 1.0 and training.round(16.0 * normal(99)) == 0.0


def test_rounds_of_a_far_slower_host_show_nothing():
    training, way = Training(), normal(1)
    assert max(training.round((-1.0) ** number * way, part=1 / 30) for number in range(8)) == 0.0


def test_g_falls_once_rounds_go_on_again():
    training, way = Training(), normal(1)
    for number in range(6):
        swinging = training.round((-1.0) ** number * way)
    found = [training.round(way) for _ in range(4)]
    assert swinging == MOST and sorted(found, reverse=True) == found and found[-1] == 0.0


def test_corrections_outside_the_snapshot_are_no_part_of_d():
    training, way = Training(), normal(1)
    assert max(training.round(way, late=(-1.0) ** number * 5.0 * normal(2)) for number in range(8)) == 0.0


@pytest.mark.parametrize("place", [0, SIZE - 1])
def test_fast_scalar_does_not_decide_for_its_chunk(place):
    def rounds():
        for number in range(8):
            d = normal(1) + 0.1 * normal(2 + number)
            d[place] = (-1.0) ** number * 1000.0
            yield d

    assert last(rounds()) == 0.0


@pytest.mark.parametrize("d", [np.zeros(SIZE, np.float32), np.full(SIZE, np.float32(1e38)), np.full(SIZE, np.nan)])
def test_rounds_without_movement_or_without_sense_show_nothing(d):
    assert last([d.astype(np.float32)] * 4) == 0.0


def test_another_training_process_begins_with_nothing():
    training, way = Training(), normal(1)
    for number in range(6):
        training.round((-1.0) ** number * way)
    training.swings.begin()
    assert training.round(way) == 0.0


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
    """With g 0 the error grows beyond all bounds from 0.6 on; a host alone reaches 1e-6."""
    assert least_squares(late, every, lr=0.5) < 1e-6
