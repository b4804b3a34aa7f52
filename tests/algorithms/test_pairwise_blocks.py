"""Blocks that know tensors: a fast scalar and its neighbours, a partner of an older version, and buffers."""

import numpy as np
import pytest

from gossipdp.codecs import CODECS
from tests.algorithms.replicas import exchange, replicas

SIZE, PLACE, WIDTH = 2000, 700, 1024
TENSORS = (0, PLACE, PLACE + 1)
NEIGHBOURS = np.arange(SIZE) != PLACE
STEP = np.float32(1e-3)


def trained(speed, rounds=6, within=True, codec="modulo3"):
    """Two replicas after some rounds in which the parameter at PLACE makes `speed` times the step of the others.

    Returns:
        The largest error of a neighbour's mix in the last round, in steps, and the replicas.
    """
    pair = replicas(2, SIZE, tensors=TENSORS, width=WIDTH)
    rng = np.random.default_rng(4)
    for each in pair:
        each.ledger.a[:] = each.x[:] = pair[0].ledger.a
        each.algorithm.range[:] = 0.0
    error = 0.0
    for _ in range(rounds):
        for each in pair:
            step = STEP * rng.choice([-1.0, 1.0], SIZE).astype(np.float32)
            step[PLACE] *= speed
            each.settle()
            each.x += step
            each.outer(1.0, 0.0)
        mean = (pair[0].a + pair[1].a) / 2
        exchange(*pair, codec, within=within)
        error = max(float(np.abs(each.a - mean)[NEIGHBOURS].max()) for each in pair) / float(STEP)
    return error, pair


def test_parameter_a_hundred_times_faster_leaves_the_ranges_of_its_neighbours_alone():
    usual, fast = (trained(speed) for speed in (1, 100))
    assert abs(fast[0] - usual[0]) <= 0.1
    blocks = fast[1][0].ledger.blocks[0]
    scalar = int(np.searchsorted(blocks.starts, PLACE))
    ranges = fast[1][0].algorithm.range[: len(blocks)]
    assert ranges[scalar] > 10 * STEP and np.delete(ranges, scalar).max() < 4 * STEP


def test_partner_of_an_older_version_gets_the_old_blocks__and_the_ranges_stay_those_of_tensors():
    """Its grid harms the neighbours as it always did. Only what was mixed into a block widens the block's range."""
    error, (one, _) = trained(100, within=False)
    assert error > 1.0
    blocks = one.ledger.blocks[0]
    scalar = int(np.searchsorted(blocks.starts, PLACE))
    assert one.algorithm.range[scalar - 2] < 4 * STEP, "a block that shares no old block with the scalar"
    assert one.algorithm.range[scalar] > 10 * STEP


@pytest.mark.parametrize("codec", CODECS)
def test_old_and_new_blocks_may_follow_each_other(codec):
    one, other = replicas(2, SIZE, tensors=TENSORS, width=WIDTH)
    total, apart = one.a + other.a, np.abs(one.a - other.a).mean()
    for number in range(6):
        exchange(one, other, codec, within=bool(number % 2))
        np.testing.assert_allclose(one.a + other.a, total, atol=1e-5)
    assert np.abs(one.a - other.a).mean() < 0.6 * apart
    assert len(one.algorithm.range) == sum(len(blocks) for blocks in one.ledger.blocks)


def buffers_of(count, size, codec, seed=1):
    """Two replicas with `count` buffers, each of a decade of its own, after one exchange; and the buffers before it."""
    trainable = size - count
    made = replicas(2, size, trainable=trainable, tensors=(0, trainable), width=8192)
    rng = np.random.default_rng(seed)
    decades = 10.0 ** rng.uniform(-6, 8, count)
    for each in made:
        each.ledger.a[trainable:] = decades * rng.uniform(0.5, 2.0, count)
    before = [each.a[trainable:] for each in made]
    exchange(*made, codec)
    return before, [each.a[trainable:] for each in made]


@pytest.mark.parametrize(
    ("count", "codec", "precision"),
    [(20, "modulo3", 2.0**-22), (256, "modulo3", 2.0**-8), (256, "modulo16", 2.0**-22), (256, "fp32", 2.0**-22)],
    ids=["few", "many", "many, closing", "many, exact"],
)
def test_buffers_of_many_decades_become_their_mean_to_a_share_of_each(count, codec, precision):
    (one, other), after = buffers_of(count, 20 * 256, codec)
    for found in after:
        assert (np.abs(found - (one + other) / 2) <= precision * (one + other)).all()


def test_buffers_with_an_older_partner_use_its_codec():
    one, other = replicas(2, 512, trainable=256, tensors=(0, 256))
    exchange(one, other, "modulo3", within=False)
    assert np.abs(one.a - other.a)[256:].max() > 1e-3, "the grid of three bits"
