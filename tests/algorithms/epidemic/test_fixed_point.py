"""The ledger in fixed point (algorithms section 4): integers commute, so the order of additions leaves no trace."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.algorithms.epidemic.fixed_point import (
    FixedLedger,
    fingerprint,
    fixed_hash,
    magnitude,
    pack,
    to_fixed,
    to_float,
    unpack,
)
from gossipdp.algorithms.ledger import in_memory

SIZE, TRAINABLE, WIDTH = 700, 512, 256
CHUNKS = 3


def ledger(seed=0, keep=in_memory):
    made = FixedLedger(SIZE, TRAINABLE, WIDTH, keep)
    made.a[:] = np.random.default_rng(seed).standard_normal(SIZE)
    return made


def bind(one):
    region = np.zeros((2, SIZE), np.float32)
    one.bind((region[0], region[1]))
    for chunk in range(CHUNKS):
        one.attach(chunk)
    return region


def additions(count=40, seed=3, most=2.0**20):
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        chunk = int(random.integers(CHUNKS))
        length = min(WIDTH, SIZE - chunk * WIDTH)
        where = np.sort(random.choice(length, int(random.integers(1, length)), replace=False))
        scale = most * 2.0 ** -random.uniform(0, 50)
        made.append((chunk, where, to_fixed(random.uniform(-scale, scale, len(where)), most)))
    return made


# -- integers --------------------------------------------------------------------------------------------------


def test_fixed_point_is_the_nearest_multiple_and_fp32_shows_it():
    values = np.array([0.0, 1.0, -0.5, 2.0**-33, 3 * 2.0**-33, 1e-12, 2.0**29, 1e30, -1e30], np.float64)
    fixed = to_fixed(values)
    assert fixed.tolist() == [0, 1 << 32, -1 << 31, 0, 2, 0, 1 << 61, 1 << 62, -1 << 62]
    assert to_float(fixed).tolist() == [0.0, 1.0, -0.5, 0.0, 2.0**-31, 0.0, 2.0**29, 2.0**30, -(2.0**30)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3000), st.integers(0, 62))
def test_magnitude_is_never_below_the_norm_and_hardly_above_in_any_order(seed, count, bits):
    random = np.random.default_rng(seed)
    terms = random.integers(-(1 << bits), (1 << bits) + 1, count)
    norm = np.linalg.norm(terms.astype(np.float64)) * 2.0**-32
    assert norm <= magnitude(terms) * (1 + 1e-12) and magnitude(terms) <= norm * 1.001
    assert magnitude(random.permutation(terms)) == magnitude(-terms) == magnitude(terms)


def test_magnitude_of_nothing_is_zero():
    assert magnitude(np.zeros(0, np.int64)) == magnitude(np.zeros(5, np.int64)) == 0.0


# -- order -----------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(40)))
def test_any_order_of_additions_gives_the_same_bits_even_past_the_range(order):
    """With 2^30 each, sums wrap. Saturating sums would not agree."""
    for most in (1.0, 2.0**30):
        one, other = ledger(), ledger()
        moves = additions(most=most)
        for number, place in enumerate(order):
            one.add(*moves[number])
            other.add(*moves[place])
        assert (one.fixed == other.fixed).all() and (one.a == other.a).all() and np.isfinite(one.a).all()
        assert [one.digest(c) for c in range(CHUNKS)] == [other.digest(c) for c in range(CHUNKS)]


def test_addition_moves_pending_by_what_the_anchor_moves():
    one = ledger()
    region = bind(one)
    start = one.a.copy()
    for move in additions(most=1.0):
        one.add(*move)
    outstanding = np.concatenate([one.outstanding(chunk, 0) for chunk in range(CHUNKS)])
    assert np.abs(outstanding).max() > 0.1
    assert np.abs(region[0] + outstanding - one.a).max() < 1e-6
    exact = start.astype(np.float64)
    for chunk, where, terms in additions(most=1.0):
        exact[chunk * WIDTH + where] += terms * 2.0**-32
    assert np.abs(one.a - exact).max() < 1e-6


def test_many_additions_below_the_resolution_of_fp32_add_up():
    one = ledger()
    one.a[:] = 1.0
    step = to_fixed(np.full(WIDTH, 2.0**-30))
    for _ in range(1 << 8):
        one.add(0, slice(None), step)
    assert (one.a[:WIDTH] == np.float32(1.0 + 2.0**-22)).all()


# -- alone -----------------------------------------------------------------------------------------------------


def test_loose_chunk_keeps_every_bit_and_settling_moves_it_by_less_than_a_grid_step():
    one = ledger()
    one.a[:5] = [1e-30, -3e-11, 2.0**-33, 0.1, 2.0**29]
    before = one.a.copy()
    region = bind(one)
    assert (one.a == before).all() and not one.fixed.any()
    for chunk in range(CHUNKS):
        one.settle(chunk)
    assert (one.a == to_float(one.fixed)).all() and np.abs(one.a - before).max() <= 2.0**-33
    # Summed in fp32: x reaches the anchor exactly.
    assert (region[0][:WIDTH] + one.outstanding(0, 0) == one.a[:WIDTH]).all()
    again = one.a.copy(), one.fixed.copy()
    for chunk in range(CHUNKS):
        one.settle(chunk)
    assert (one.a == again[0]).all() and (one.fixed == again[1]).all()


def test_lone_step_makes_a_settled_chunk_loose_again():
    one = ledger()
    bind(one)
    for chunk in range(CHUNKS):
        one.settle(chunk)
        one.release(one.seal().slot)
    one.x[:] = np.float32(1e-20)
    for chunk in range(CHUNKS):
        one.outer_step(chunk, 1.0, 0.0, one.open_slot)
    assert (one.a == np.float32(1e-20)).all()


def test_state_given_away_after_a_lone_step_or_founding_is_the_current_anchor():
    """It must not be the state that was shared before."""
    one, taker = ledger(), ledger(9)
    region = bind(one)
    for verb in (lambda chunk: one.outer_step(chunk, 1.0, 0.0, one.open_slot), one.found):
        before = [one.digest(chunk) for chunk in range(CHUNKS)]
        region[0] += np.float32(0.25)
        for chunk in range(CHUNKS):
            verb(chunk)
            frozen = one.freeze(chunk)
            assert frozen.hash != before[chunk] and taker.adopt(chunk, frozen.payload, frozen.hash)
        assert np.abs(taker.a - region[0]).max() < 1e-9


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.1e9, -1.1e9])
def test_found_refuses_values_beyond_the_range(value):
    one = ledger()
    region = bind(one)
    region[0, 300] = value
    region[0, 0] = 2.0**30
    assert one.found(0) and not one.found(1) and one.found(2)


# -- state -----------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 700), st.lists(st.integers(0, 63), min_size=3, max_size=3))
def test_packed_state_comes_back_bit_for_bit_whatever_its_width(seed, count, bits):
    random = np.random.default_rng(seed)
    fixed = np.zeros(count, np.int64)
    for block, width in enumerate(bits):
        part = fixed[256 * block : 256 * (block + 1)]
        part[:] = random.integers(-(1 << width), (1 << width) - 1, len(part), endpoint=True)
    payload = pack(fixed)
    back = unpack(payload, count)
    assert back is not None and (back == fixed).all()
    assert unpack(payload, count + 256) is None and unpack(bytes(payload)[:-1], count) is None


@pytest.mark.parametrize(
    ("value", "width"),
    [
        *((0, 0), (-1, 1), (127, 1), (-128, 1), (128, 2), (-129, 2), (2**31 - 1, 4), (-(2**31), 4), (2**31, 5)),
        *((2**62, 8), (2**63 - 1, 8), (-(2**63), 8)),
    ],
)
def test_block_uses_the_bytes_of_its_widest_value(value, width):
    fixed = np.zeros(300, np.int64)
    fixed[7] = value
    payload = pack(fixed)
    assert len(payload) == 2 + 256 * width and (unpack(payload, 300) == fixed).all()


def test_model_of_small_values_is_as_long_as_fp32():
    fixed = to_fixed((np.random.default_rng(0).standard_normal(1 << 14) * 0.05).astype(np.float32))
    assert len(pack(fixed)) == (1 << 14) * 4 + 64


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=600), st.integers(1, 600))
def test_arbitrary_bytes_unpack_to_the_right_size_or_to_none(data, size):
    values = unpack(data, size)
    assert values is None or values.shape == (size,)


@pytest.mark.parametrize("width", [9, 255])
def test_width_of_more_than_a_word_is_refused(width):
    assert unpack(bytes([width]) + bytes(256 * width), 256) is None


def test_copy_is_bit_identical_and_stays_so():
    giver, taker = ledger(), ledger(9)
    taker.v[:] = 1.0
    moves = additions(seed=5)
    for move in moves[:20]:
        giver.add(*move)
    for chunk in range(CHUNKS):
        frozen = giver.freeze(chunk)
        assert frozen.hash == giver.digest(chunk) != taker.digest(chunk)
        assert taker.adopt(chunk, frozen.payload, frozen.hash) and taker.digest(chunk) == frozen.hash
    assert (giver.fixed == taker.fixed).all() and (giver.a == taker.a).all() and not taker.v.any()
    for forth, back in zip(moves[20:], moves[:19:-1], strict=True):
        giver.add(*forth)
        taker.add(*back)
    assert (giver.fixed == taker.fixed).all() and (giver.a == taker.a).all()


def test_digest_differs_by_one_unit_in_one_parameter():
    one = ledger()
    before = [one.digest(chunk) for chunk in range(CHUNKS)]
    one.add(1, np.array([5]), np.array([1]))
    after = [one.digest(chunk) for chunk in range(CHUNKS)]
    assert before[0] == after[0] and before[1] != after[1] and before[2] == after[2]


@pytest.mark.parametrize("verb", ["adopt", "resync"])
@pytest.mark.parametrize("fault", ["hash", "length", "bit", "chunk"])
def test_state_with_another_hash_changes_nothing(verb, fault):
    giver, taker = ledger(), ledger(9)
    region = bind(taker)
    frozen = giver.freeze(0)
    payload, digest, chunk = frozen.payload, frozen.hash, 0
    match fault:
        case "hash":
            digest = bytes(16)
        case "length":
            payload = bytes(payload)[:-1]
        case "bit":
            payload = bytearray(payload)
            payload[9] ^= 1
        case "chunk":
            chunk = 2
    before = taker.a.copy()
    assert not getattr(taker, verb)(chunk, payload, digest)
    assert (taker.a == before).all() and not region[1:].any()


@pytest.mark.parametrize("keep", [in_memory, lambda payload: memoryview(bytes(payload))])
@pytest.mark.parametrize("back", [True, False])
def test_resync_is_taken_back_exactly_or_kept(back, keep):
    giver, taker = ledger(keep=keep), ledger(9, keep)
    region = bind(taker)
    for chunk in range(CHUNKS):
        taker.settle(chunk)
    taker.v[:] = 0.25
    before = taker.fixed.copy()
    moves = additions(seed=8, most=1.0)
    for round_ in range(2):
        for chunk in range(CHUNKS):
            giver.add(*moves[round_])
            frozen = giver.freeze(chunk)
            assert taker.resync(chunk, frozen.payload, frozen.hash)
    assert (taker.fixed == giver.fixed).all()
    taker.add(*moves[9])
    giver.add(*moves[9])
    for _ in range(2):
        for chunk in range(CHUNKS):
            taker.conclude(chunk, back=back)
    if back:
        alone = ledger(9)
        for chunk in range(CHUNKS):
            alone.settle(chunk)
        assert (alone.fixed == before).all()
        alone.add(*moves[9])
        assert (taker.fixed == alone.fixed).all() and (taker.a == alone.a).all()
    else:
        assert (taker.fixed == giver.fixed).all()
    assert (taker.v == (0.25 if back else 0.0)).all(), "no other copy of the residual exists"
    outstanding = np.concatenate([taker.outstanding(chunk, 0) for chunk in range(CHUNKS)])
    assert np.abs(region[0] + outstanding - taker.a).max() < 1e-5


def test_hash_depends_on_the_state_and_not_on_its_encoding():
    fixed = to_fixed(np.linspace(-0.4, 0.4, 256))
    wide = bytes([8]) + fixed.astype("<i8").tobytes()
    assert (unpack(wide, 256) == fixed).all() and len(wide) > len(pack(fixed))
    one = FixedLedger(256, 256, 256)
    assert one.adopt(0, wide, fixed_hash(fixed)) and one.digest(0) == fixed_hash(fixed)


def test_fingerprint_is_linear_in_additions_and_in_chunks():
    one = ledger()
    before = sum(one.fingerprint(chunk) for chunk in range(CHUNKS))
    told = 0
    for chunk, where, terms in additions():
        one.add(chunk, where, terms)
        told += fingerprint(one.span(chunk).start, where, terms)
    after = sum(one.fingerprint(chunk) for chunk in range(CHUNKS))
    assert (before + told - after) % 2**64 == 0 and before != after
    assert fingerprint(0, slice(None), one.fixed) == after % 2**64, "indices are those of the model, not of the chunk"


def test_fingerprint_differs_by_one_unit_and_by_two_exchanged_values():
    fixed = to_fixed(np.random.default_rng(5).standard_normal(WIDTH))
    seen = {fingerprint(0, slice(None), fixed)}
    for place in range(WIDTH):
        other = fixed.copy()
        other[place] += 1
        seen.add(fingerprint(0, slice(None), other))
        other = fixed.copy()
        other[[place, place - 1]] = other[[place - 1, place]]
        seen.add(fingerprint(0, slice(None), other))
    assert len(seen) == 1 + 2 * WIDTH
