"""Adam's moments in 2 bytes a parameter: the update must survive, and a payload is checked (`codecs.moments`)."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.codecs.blocks import BLOCK
from gossipdp.codecs.moments import MOST_RATIO, check, payload_bytes, places, shared
from tests.codecs.moments_reference import decoded, encoded


def both(m, v):
    payload = encoded(m, v)
    return payload, *decoded(payload, len(m))


def adam(size=5000, steps=60, betas=(0.9, 0.999), seed=0, spread=4.0):
    """Moments from Adam, with gradients that differ by `spread` powers of ten within a block."""
    random = np.random.default_rng(seed)
    sizes = 10.0 ** random.uniform(-spread, 0.0, size)
    drift = random.uniform(-1.0, 1.0, size)
    m, v = np.zeros(size), np.zeros(size)
    for _ in range(steps):
        gradient = sizes * (drift + random.standard_normal(size))
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
    return m.astype(np.float32), v.astype(np.float32)


def allowed(m, v):
    """The bound of the module's docstring, for each block."""
    update = m / np.sqrt(v)
    blocks = np.abs(update) * 2 ** (1 / 24)
    most = np.repeat(np.maximum.reduceat(blocks, np.arange(0, len(m), BLOCK)), BLOCK)[: len(m)]
    return most / 254 + (2 ** (1 / 24) - 1) * np.abs(update) * 1.001 + 1e-6


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.95), (0.5, 0.99)])
@pytest.mark.parametrize("spread", [0.5, 2.5])
def test_update_is_within_its_bound(betas, spread):
    m, v = adam(betas=betas, spread=spread)
    _, first, second = both(m, v)
    error = np.abs(first / np.sqrt(second) - m / np.sqrt(v))
    assert (error <= allowed(m, v)).all()
    assert np.sqrt(np.mean(error**2)) < 0.02 * np.sqrt(np.mean((m / np.sqrt(v)) ** 2))


def test_plain_block_wise_int8_of_the_moments_would_break_the_update():
    """With an absolute grid small second moments become zero, and updates explode."""
    m, v = adam(spread=4.0)
    blocks = -(-len(m) // BLOCK)
    grid_v = np.repeat([v[BLOCK * i : BLOCK * (i + 1)].max() / 255 for i in range(blocks)], BLOCK)[: len(v)]
    plain = np.rint(v / grid_v) * grid_v
    assert np.mean(plain == 0.0) > 0.3
    _, first, second = both(m, v)
    assert (second > 0.0).all() and np.abs(first / np.sqrt(second)).max() < 1.1 * np.abs(m / np.sqrt(v)).max()


def test_parameter_below_a_blocks_range_gets_a_smaller_update():
    m, v = adam(size=BLOCK, spread=12.0)
    _, first, second = both(m, v)
    grid = np.abs(m / np.sqrt(v)).max() / 127
    assert (np.abs(first / np.sqrt(second)) <= 1.03 * np.abs(m / np.sqrt(v)) + grid).all()
    assert (second > 0.0).all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-(2.0**60), 2.0**60, width=32), st.floats(0.0, 2.0**120, width=32)),
        min_size=1,
        max_size=700,
    )
)
def test_any_moments_decode_to_finite_ones_and_no_second_is_zero_where_the_first_is_not(values):
    m, v = (np.array(column, np.float32) for column in zip(*values, strict=True))
    payload, first, second = both(m, v)
    assert len(payload) == payload_bytes(len(m)) and check(payload, len(m))
    assert np.isfinite(first).all() and np.isfinite(second).all() and (second >= 0.0).all()
    assert ((v > 0.0) == (second > 0.0)).all() and not first[second == 0.0].any()
    assert (np.abs(first.astype(np.float64)) <= 1.001 * MOST_RATIO * np.sqrt(second.astype(np.float64))).all()


@pytest.mark.parametrize("size", [1, 255, 256, 257, 1000])
def test_places_of_all_blocks_cover_a_payload_once(size):
    found = [at for first in range(0, size, BLOCK) for at in places(size, first, min(first + BLOCK, size), 40)]
    taken = np.zeros(40 + payload_bytes(size), int)
    for at in found:
        taken[at] += 1
    assert (taken[40:] == 1).all() and not taken[:40].any()


def test_payload_stands_where_its_chunk_does_and_reaches_no_other():
    """A last chunk of up to 3 parameters takes more than their fp32 values, which the rest of the page has."""
    for size in (1, 3, 4, 256, 8192):
        at = shared(5, 8192, size)
        assert at.start == 4 * 5 * 8192 and at.stop - at.start == payload_bytes(size)
        assert at.stop <= max(at.start + 4 * size, -(-(at.start + 1) // 1024) * 1024)


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0, 1e30])
def test_hostile_scales_are_refused(half, scale):
    m, v = adam(size=300)
    payload, _, _ = both(m, v)
    at = half * len(payload) // 2 + 300
    payload[at : at + 4] = np.frombuffer(struct.pack("<f", scale), np.uint8)
    assert not check(payload, 300)


@pytest.mark.parametrize("length", [0, 1, -1, 4000])
def test_wrong_lengths_are_refused(length):
    payload, _, _ = both(*adam(size=300))
    assert not check(bytes(payload[:length] if length <= 0 else bytes(payload) + bytes(length)), 300)


def test_any_codes_are_bounded():
    """Any bytes give a first update of at most 8 learning rates."""
    random = np.random.default_rng(1)
    payload, _, _ = both(*adam(size=300))
    payload[:300] = random.integers(0, 256, 300)
    payload[len(payload) // 2 : len(payload) // 2 + 300] = 128
    first, second = decoded(payload, 300)
    assert (np.abs(first) <= 1.001 * MOST_RATIO * np.sqrt(second)).all()


def test_receiver_cuts_a_ratio_within_the_tolerance_of_the_scale():
    payload, _, _ = both(*adam(size=300))
    half = len(payload) // 2
    payload[half : half + 300] = 128
    payload[half + 300 :] = np.full(2, 1.0005 * MOST_RATIO / 127.0, "<f4").view(np.uint8)
    assert check(payload, 300)
    first, second = decoded(payload, 300)
    assert first / np.sqrt(second) == pytest.approx(np.full(300, -MOST_RATIO), rel=1e-6)
