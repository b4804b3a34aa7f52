"""The modulo codecs: exactness, verdicts, stages and rounding (algorithms sections 3 and 9)."""

from itertools import combinations

import numpy as np
import pytest

from gossipdp.codecs import CODECS, kernels
from gossipdp.codecs.base import PayloadError
from gossipdp.codecs.blocks import BLOCK, Blocks
from gossipdp.codecs.modulo import DEEP, NEAR, RANGES, ModuloCodec, grid_levels
from tests.codecs.codec_dialogue import block_max, converse, delta

WIDTHS = range(2, 17)
widths = pytest.mark.parametrize("bits", WIDTHS)


def codec_of(bits: int) -> ModuloCodec:
    codec = CODECS[f"modulo{bits}"]
    assert isinstance(codec, ModuloCodec)
    return codec


def steps_of(bits: int, *sent: list[list[bytes]]) -> np.ndarray:
    """Grid step s of each block, from the range bytes of both sides."""
    levels = np.maximum(*(np.frombuffer(side[0][0], np.uint8) for side in sent))
    return codec_of(bits).steps[levels]


def grid_indices(values: np.ndarray, steps: np.ndarray, seed: int) -> np.ndarray:
    """u of every parameter, for whole blocks."""
    u, starts = np.empty(len(steps) * BLOCK, np.int64), Blocks.across(len(steps) * BLOCK).starts
    key = np.uint32(seed & 0xFFFF_FFFF), np.uint32(seed >> 32)
    kernels.recompute(values.copy(), 65536.0 / steps, starts, np.arange(len(steps)), *key, starts, u)
    return u.reshape(-1, BLOCK)


@widths
def test_delta_is_the_grid_difference_with_or_without_escalation(bits: int) -> None:
    """Invariant 3: exact in the first stage if |u_j - u_i| < 2^(bits-1), after escalation otherwise."""
    rng = np.random.default_rng(100 + bits)  # A seed with no block that passes by chance; one in 2^16 does.
    blocks = 64
    low = rng.standard_normal(blocks * BLOCK).astype(np.float32)
    spread = np.repeat(np.exp2(rng.integers(-14, 12, blocks)), BLOCK).astype(np.float32)
    high = low + spread * rng.standard_normal(len(low)).astype(np.float32)
    talk = converse(f"modulo{bits}", low, high, 2.0**-8, seed=13 << 32)
    steps = steps_of(bits, talk.sent["low"], talk.sent["high"])
    difference = grid_indices(high, steps, 13 << 32) - grid_indices(low, steps, 13 << 32)
    half = 1 << (bits - 1)
    fits = ((difference >= -half) & (difference < half)).all(axis=1)
    assert 0 < fits.sum() < blocks and talk.low.escalated == blocks - fits.sum()
    np.testing.assert_allclose(
        delta(talk.low, len(low)).reshape(blocks, BLOCK), steps[:, None] * difference, rtol=2.0**-22
    )


@widths
@pytest.mark.parametrize("excess", [0, 1, 2, 6, 14], ids="range x 2^{}".format)
def test_error_is_below_one_step(bits: int, excess: int) -> None:
    """Invariant 4, for accepted and for escalated blocks."""
    rng = np.random.default_rng(excess)
    low = rng.standard_normal(16 * BLOCK).astype(np.float32)
    high = low + np.float32(1e-3) * rng.standard_normal(len(low)).astype(np.float32)
    exact = high.astype(np.float64) - low
    talk = converse(f"modulo{bits}", low, high, block_max(exact) / 2**excess, seed=3)
    decoded = delta(talk.low, len(low))
    bound = np.repeat(steps_of(bits, talk.sent["low"], talk.sent["high"]), BLOCK)
    assert (np.abs(decoded - exact) < bound + np.spacing(np.abs(decoded))).all()


@pytest.mark.parametrize("bits", [2, 3, 4, 7])
def test_tie_at_half_the_modulus_is_antisymmetric(bits: int) -> None:
    """-L/2 decodes in the first stage, +L/2 only after escalation, and both sides agree."""
    low, half, step = np.zeros(4 * BLOCK, np.float32), 1 << (bits - 1), codec_of(bits).steps[128]
    high = np.repeat(np.float32([-half * step, half * step, (half - 1) * step, -step]), BLOCK)
    for lower_starts in (True, False):
        talk = converse(f"modulo{bits}", low, high, 0.99 * RANGES[128], lower_starts=lower_starts)
        assert talk.low.escalated == talk.high.escalated == 1
        np.testing.assert_allclose(delta(talk.low, len(low)), high, rtol=2.0**-22)
        assert np.array_equal(delta(talk.low, len(low)), -delta(talk.high, len(low)))


@widths
def test_anchors_apart_by_a_power_of_two_fail_the_check(bits: int) -> None:
    """One parameter of each block differs, so a multiple of 2^(16 + bits) steps would pass."""
    low = np.zeros(60 * BLOCK, np.float32)
    high = low.copy()
    high[::BLOCK] = np.exp2(np.arange(-12.0, 48.0))
    for predicted in (0.0, 2.0**-20, 2.0**-15):
        talk = converse(f"modulo{bits}", low, high, predicted)
        np.testing.assert_allclose(delta(talk.low, len(low)), high, rtol=1e-6, atol=2.0**-13)


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_verdict_is_the_same_on_both_sides_and_never_rejects_what_fits(bits: int) -> None:
    """Blocks with a single parameter at or just beyond the range of the codes."""
    rng = np.random.default_rng(8)
    blocks, half = 4000, 1 << (bits - 1)
    low = rng.integers(-50, 50, (blocks, BLOCK)).astype(np.float32)
    apart = rng.integers(-half, half, (blocks, BLOCK))
    rows = np.arange(0, blocks, 2)
    apart[rows, rng.integers(0, BLOCK, len(rows))] = rng.choice([half, -half - 1, 3 * half, -2 * half - 5], len(rows))
    high = (low + apart).astype(np.float32)
    # An integer a/s is hit exactly, so the test knows every u. No range gives s = 1, so it calls the kernels.
    sides, coefs, layout = [], kernels.coefficients(np.uint32(1), np.uint32(2)), Blocks.across(blocks * BLOCK)
    ends = layout.starts, layout.places
    for values, key in ((low, 1), (high, 2)):
        codes, checks = np.empty(blocks * 32 * bits, np.uint8), np.empty(blocks, np.uint16)
        scale = np.full(blocks, 65536.0)
        largest, seed = np.abs(values).max(axis=1), (np.uint32(key), np.uint32(0))
        kernels.encode(values.reshape(-1), largest, scale, *seed, bits, coefs, *ends, codes, checks)
        codes.flags.writeable = False
        sides.append((codes, checks))
    (low_codes, low_checks), (high_codes, high_checks) = sides
    d, failed = np.empty(blocks * BLOCK, np.int16), np.empty(blocks, np.uint8)
    squares, largest = np.empty(blocks, np.int64), np.empty(blocks, np.int32)
    frames = high_codes, high_checks, low_codes, low_checks
    count = kernels.verdict(*frames, bits, coefs, *ends, d, failed, squares, largest)
    fits = ((apart >= -half) & (apart < half)).all(axis=1)
    assert np.array_equal(failed == 0, fits) and count == blocks - fits.sum()
    d = d.reshape(blocks, BLOCK)
    assert np.array_equal(d[fits], apart[fits])
    assert np.array_equal(squares, np.sum(d.astype(np.int64) ** 2, axis=1))
    assert np.array_equal(largest, np.abs(d.astype(np.int32)).max(axis=1))


def test_many_hard_blocks_end_equal_on_both_sides() -> None:
    rng = np.random.default_rng(9)
    size = 4000 * BLOCK
    low = rng.standard_normal(size).astype(np.float32)
    scale = np.repeat(np.exp2(rng.uniform(-6, 14, 4000)), BLOCK)
    high = (low + 1e-3 * scale * rng.standard_normal(size)).astype(np.float32)
    talk = converse("modulo4", low, high, 4e-3, seed=22)
    assert 1000 < talk.low.escalated == talk.high.escalated < 4000
    assert np.array_equal(delta(talk.low, size), -delta(talk.high, size))
    np.testing.assert_allclose(delta(talk.low, size), high.astype(np.float64) - low, rtol=1e-6, atol=2.1 * 4.8e-3 / 7)


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
@pytest.mark.parametrize("place", [0.03, 0.25, 0.5, 1.71, -0.4])
def test_rounding_is_unbiased(bits: int, place: float) -> None:
    """Invariant 4: the mean of 10^4 roundings of one value within 4 sigma."""
    size, partner = 40 * BLOCK, np.zeros(40 * BLOCK, np.float32)
    step = float(codec_of(bits).steps[128])
    values = np.full(size, place * step, np.float32)
    talk = converse(f"modulo{bits}", partner, values, 0.99 * RANGES[128], seed=12345)
    rounded = delta(talk.low, size).astype(np.float64) / step
    assert set(np.round(rounded, 5)) == {np.floor(place), np.floor(place) + 1}
    part = place - np.floor(place)
    assert abs(rounded.mean() - place) < 4 * np.sqrt(part * (1 - part) / size)


def test_rounding_is_independent_over_seeds_and_parameters() -> None:
    size, seeds = 4 * BLOCK, 400
    values = np.full(size, 0.5, np.float32)
    draws = np.empty((seeds, size))
    for seed in range(seeds):
        u = grid_indices(values, np.ones(4), seed << 20)
        draws[seed] = 2.0 * u.reshape(-1) - 1.0
    assert np.abs(draws.mean(axis=0)).max() < 5 / np.sqrt(seeds)
    for shift in (1, 2, 64, 127, 128, 129, 256, 512):
        correlation = float((draws[:, :-shift] * draws[:, shift:]).mean())
        assert abs(correlation) < 5 / np.sqrt(seeds * (size - shift))
    assert abs(float((draws[1:] * draws[:-1]).mean())) < 5 / np.sqrt(seeds * size)


def test_equal_anchors_differ_by_exactly_zero() -> None:
    values = np.random.default_rng(2).standard_normal(3 * BLOCK).astype(np.float32)
    assert not delta(converse("modulo2", values, values.copy(), 1e-3).low, len(values)).any()


def four_that_cancel(coefs: list[int]) -> tuple[list[int], list[int]]:
    """Two pairs of parameters whose coefficients have the same sum: a wrap up and a wrap down cancel."""
    pairs: dict[int, list[int]] = {}
    for pair in combinations(range(BLOCK), 2):
        total = sum(coefs[k] for k in pair) % 2**16
        if total in pairs:
            return pairs[total], list(pair)
        pairs[total] = list(pair)
    raise AssertionError("of 32,640 pairs two have one of 2^15 sums")


@widths
def test_wraps_missed_by_one_exchange_are_caught_by_the_next(bits: int) -> None:
    """T12, seed 89: with the same coefficients in each exchange the same wraps passed every time."""
    missed, step = 7, codec_of(bits).steps[128]
    up, down = four_that_cancel(kernels.coefficients(np.uint32(missed), np.uint32(0)).tolist())
    low, high = np.zeros((2, BLOCK), np.float32)
    high[up], high[down] = step * 2.0**bits, -step * 2.0**bits
    for seed in range(missed, missed + 50):
        talk = converse(f"modulo{bits}", low, high, 0.99 * RANGES[128], seed=seed)
        wrong = seed == missed
        assert talk.low.escalated == talk.high.escalated == (not wrong)
        np.testing.assert_allclose(delta(talk.low, BLOCK), 0.0 * high if wrong else high, rtol=2.0**-22)


def test_side_with_another_seed_is_refused() -> None:
    """It uses other coefficients, so its checks fit no difference."""
    values, other = np.random.default_rng(6).standard_normal((2, BLOCK)).astype(np.float32)
    one, two = (
        CODECS["modulo4"].chunk(anchor, np.ones(1, np.float32), lower=seed == 1, seed=seed)
        for seed, anchor in ((1, values), (2, other))
    )
    one.open(two.ranges()[0])
    two.open(one.ranges()[0])
    with pytest.raises(PayloadError, match="disagree"):
        for _ in codec_of(4).stages:
            codes = two.emit()
            two.absorb(one.emit())
            one.absorb(codes)


@widths
def test_well_predicted_range_escalates_nothing(bits: int) -> None:
    rng = np.random.default_rng(bits)
    low = rng.standard_normal(200 * BLOCK).astype(np.float32)
    high = low + np.float32(1e-4) * rng.standard_normal(len(low)).astype(np.float32)
    predicted = block_max(high.astype(np.float64) - low)
    assert converse(f"modulo{bits}", low, high, predicted).low.escalated == 0
    # One side's prediction is enough, because both use the larger.
    assert converse(f"modulo{bits}", low, high, (predicted, 0.0)).low.escalated == 0


def test_dialogue_sends_each_stage_once_and_for_failing_blocks_only() -> None:
    low = np.zeros(4 * BLOCK, np.float32)
    high = low.copy()
    high[BLOCK], high[2 * BLOCK], high[3 * BLOCK] = 20.0, 1e4, 1e8
    talk = converse("modulo4", low, high, 7.0)
    first = [4 * 128, 4 * 2]
    second, third, last = [3 * 128, 3 * 2], [2 * 512, 2 * 2], [512, 2]
    assert [len(frame) for frame in talk.sent["high"][1]] == first
    assert [len(frame) for frame in talk.sent["low"][1]] == first + second
    assert [len(frame) for frame in talk.sent["high"][2]] == second + third
    assert [len(frame) for frame in talk.sent["low"][2]] == third + last
    assert [len(frame) for frame in talk.sent["high"][3]] == last
    np.testing.assert_allclose(delta(talk.low, len(low)), high, atol=1.2, rtol=1e-7)


def test_range_bytes_round_up_and_stay_within_the_table() -> None:
    assert (np.diff(RANGES) > 0).all() and RANGES[0] == 2.0**-31.875 and np.isfinite(RANGES).all()
    np.testing.assert_allclose(RANGES[1:] / RANGES[:-1], 2**0.25, rtol=1e-12)
    predicted = np.array([0.0, 1e-30, 1.0, 1.1, 3e38, np.inf], np.float32)
    side = CODECS["modulo4"].chunk(np.zeros(6 * BLOCK, np.float32), predicted, lower=True, seed=0)
    assert list(side.ranges()[0]) == [0, 0, 128, 129, 255, 255]


@pytest.mark.parametrize("bits", [2, 4, 16])
def test_range_is_raised_where_the_grid_would_not_reach_the_anchor(bits: int) -> None:
    values = np.repeat(np.float32([1e-3, 1.0, 1e6, 1e13]), BLOCK)
    side = CODECS[f"modulo{bits}"].chunk(values, np.zeros(4, np.float32), lower=True, seed=0)
    steps = codec_of(bits).steps[np.frombuffer(side.ranges()[0], np.uint8)]
    assert (values[::BLOCK] / steps <= 2.0**34).all()
    # It is raised no further than needed: the step stays below the spacing of fp32, or at the lowest range.
    assert ((steps <= np.spacing(values[::BLOCK])) | (steps == codec_of(bits).steps[0])).all()


@pytest.mark.parametrize("bits", [2, 4, 8, 13, 16])
def test_own_values_beyond_the_grid_are_replaced(bits: int) -> None:
    """NaN is read as 0 and larger values as +-2^48. Nothing raises, and both sides agree."""
    low = np.ones(3 * BLOCK, np.float32)
    high = low.copy()
    high[:4] = np.nan, np.inf, -np.inf, 3e38
    high[BLOCK] = -np.nan
    talk = converse(f"modulo{bits}", low, high, 1.0)
    decoded = delta(talk.low, len(low))
    assert np.array_equal(decoded, -delta(talk.high, len(low))) and np.isfinite(decoded).all()
    np.testing.assert_allclose(decoded[:4], [-1, 2.0**48, -(2.0**48), 2.0**48], rtol=1e-6, atol=2.0**15)
    assert decoded[BLOCK] == pytest.approx(-1.0, abs=1.2) and not decoded[2 * BLOCK :].any()


@pytest.mark.parametrize("bits", [2, 4, 16])
def test_extreme_indices_of_a_hostile_partner_stay_finite(bits: int) -> None:
    """Indices up to 2^36, beyond any grid, with checks that fit. The result is finite; clipping bounds it."""
    values, one = np.zeros(BLOCK, np.float32), Blocks.across(BLOCK)
    for extreme in (2**36 - 987_654_321, 987_654_321 - 2**36):
        side = CODECS[f"modulo{bits}"].chunk(values, np.zeros(1, np.float32), lower=extreme > 0, seed=1)
        side.open(b"\xff")
        indices, coefs = np.full(BLOCK, extreme, np.int64), kernels.coefficients(np.uint32(1), np.uint32(0))
        for shift, width in codec_of(bits).stages:
            assert not side.complete
            codes, checks = np.empty(32 * width, np.uint8), np.empty(1, np.uint16)
            kernels.encode_rows(indices, shift, width, coefs, one.starts, one.places, codes, checks)
            side.emit()
            side.absorb([codes.data, checks.data.cast("B")])
        assert side.complete and np.isfinite(side.norm2())
        pending, v = np.zeros(BLOCK, np.float32), np.zeros(BLOCK, np.float32)
        largest = side.mix(1.0, values.copy(), pending, v, 100.0)
        assert np.isfinite(pending).all() and np.isfinite(v).all() and np.isfinite(largest).all()


def test_checks_that_fit_no_difference_are_refused_after_the_last_stage() -> None:
    """The partner sent other bits than it checked."""
    side = CODECS["modulo4"].chunk(np.zeros(BLOCK, np.float32), np.zeros(1, np.float32), lower=True, seed=1)
    side.open(b"\xff")
    with pytest.raises(PayloadError, match="disagree"):
        for _ in codec_of(4).stages:
            codes, checks = (bytes(frame) for frame in side.emit())
            side.absorb([codes, bytes(byte ^ 0x5A for byte in checks)])


def test_stage_that_no_block_needs_is_refused() -> None:
    values = np.zeros(2 * BLOCK, np.float32)
    side = CODECS["modulo4"].chunk(values, np.ones(2, np.float32), lower=True, seed=1)
    side.open(side.ranges()[0])
    first = [bytes(frame) for frame in side.emit()]
    with pytest.raises(PayloadError):
        side.absorb([*first, bytes(128), bytes(2)])


def test_fp16_and_bf16_saturate_instead_of_overflowing() -> None:
    low, high = np.full(BLOCK, 3.4e38, np.float32), np.full(BLOCK, -3.4e38, np.float32)
    assert delta(converse("fp16", low, high, 0.0).low, BLOCK)[0] == -2 * 65504.0
    for codec in ("fp32", "bf16", "int8"):
        assert np.isfinite(delta(converse(codec, low, high, 0.0).low, BLOCK)).all()


@pytest.mark.parametrize("codec", ["fp32", "fp16", "bf16", "int8"])
def test_dense_payload_that_is_not_finite_is_refused(codec: str) -> None:
    values = np.ones(BLOCK, np.float32)
    for hostile in (np.nan, np.inf, -np.inf):
        side = CODECS[codec].chunk(values, np.zeros(1, np.float32), lower=True, seed=1)
        side.open(b"")
        frames = [bytearray(frame) for frame in side.emit()]
        last = frames[-1]
        value = np.float32(hostile)
        if codec == "bf16":
            last[:2] = value.tobytes()[2:]
        elif codec == "fp16":
            last[:2] = np.float16(hostile).tobytes()
        else:
            last[:4] = value.tobytes()
        with pytest.raises(PayloadError):
            side.absorb(frames)
        assert not side.complete


def test_int8_scale_below_zero_is_refused() -> None:
    side = CODECS["int8"].chunk(np.ones(BLOCK, np.float32), np.zeros(1, np.float32), lower=True, seed=1)
    side.open(b"")
    codes, scales = side.emit()
    with pytest.raises(PayloadError):
        side.absorb([codes, (-np.frombuffer(scales, np.float32)).tobytes()])


@pytest.mark.parametrize(
    ("own", "theirs", "level", "apart"),
    [
        pytest.param(100, 100, 100, False, id="equal ranges"),
        pytest.param(100, 100 + NEAR, 100 + NEAR, False, id="the larger one, within the limit"),
        pytest.param(100, 101 + NEAR, 100 + NEAR, False, id="the larger one is limited"),
        pytest.param(100, 100 + NEAR + DEEP, 100 + NEAR, False, id="as far as a grid can serve"),
        pytest.param(100, 101 + NEAR + DEEP, 101 + NEAR + DEEP, True, id="too far apart: fp32"),
        pytest.param(0, 255, 255, True, id="the widest claim"),
        pytest.param(250, 255, 255, False, id="no level beyond the last one"),
    ],
)
def test_level_of_a_grid(own: int, theirs: int, level: int, apart: bool) -> None:
    for pair in ((own, theirs), (theirs, own)):
        levels, far = grid_levels(*(np.array([each], np.uint8) for each in pair))
        assert (levels.tolist(), far.tolist()) == ([level], [apart])


@widths
@pytest.mark.parametrize("claim", [0.0, 1e-6, 1e-1, 1.0, 4e9])
def test_claimed_range_makes_no_block_coarser_than_a_few_times_the_own_range(bits: int, claim: float) -> None:
    """The delta is exact to a step of that grid, whatever one side claims. Without the limit 4e9 hides every delta."""
    rng = np.random.default_rng(11)
    low = rng.standard_normal(3 * BLOCK).astype(np.float32)
    moved = (1e-3 * rng.standard_normal(3 * BLOCK)).astype(np.float32)
    own = block_max(moved)
    talk = converse(f"modulo{bits}", low, low + moved, (own, claim), limited=True)
    coarsest = 2.0 * own.max() * 2.0 ** ((NEAR + 1) / 4) / (2**bits - 2)
    assert np.abs(delta(talk.low, len(low)) - moved).max() <= coarsest + np.spacing(np.float32(4.0))
    assert talk.low.step2() == talk.high.step2() <= len(low) * coarsest**2


def test_values_of_blocks_whose_ranges_are_far_apart_must_be_finite_and_of_the_right_length() -> None:
    values = np.ones(BLOCK, np.float32)
    for wrong in (values[1:], values * np.float32(np.nan), values * np.float32(np.inf), values * np.float32(2.0**100)):
        side = codec_of(4).chunk(values, values[:1] * 0, lower=True, seed=1, limited=True)
        side.open(b"\xff")
        _, _, codes, checks = side.emit()
        with pytest.raises(PayloadError):
            side.absorb([wrong.tobytes(), b"", bytes(codes), bytes(checks)])


def test_bytes_of_an_exchange_between_equal_ranges_do_not_depend_on_the_limit() -> None:
    rng = np.random.default_rng(12)
    low = rng.standard_normal(3 * BLOCK).astype(np.float32)
    high = low + (1e-3 * rng.standard_normal(3 * BLOCK)).astype(np.float32)
    sent = [converse("modulo3", low, high, 4e-3, limited=limited).sent for limited in (False, True)]
    assert sent[0] == sent[1]
