"""The payloads of the compressors, bit by bit. They are part of the wire format, and a value has one encoding."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import pytest

from gossipdp.codecs import COMPRESSORS
from gossipdp.codecs.base import PayloadError
from gossipdp.codecs.increments import kernels
from gossipdp.codecs.increments.dct import COSINES, DCT
from gossipdp.codecs.increments.kernels import LARGEST, sealed
from gossipdp.codecs.increments.lowrank import LowRank
from gossipdp.codecs.increments.payloads import bfloat16, numbers
from gossipdp.codecs.increments.sign import Sign
from gossipdp.codecs.increments.threshold import Threshold
from gossipdp.codecs.increments.topk import TopK
from gossipdp.codecs.increments.twobit import TwoBit

ONE, TWO, NAN, INFINITY, MINUS_ZERO, MINUS_ONE = 0x3F80, 0x4000, 0x7FC0, 0x7F80, 0x8000, 0xBF80
BEYOND = 0x7200
"""2^101"""
BAD_LEVELS = [(NAN, NAN), (INFINITY, INFINITY), (ONE, INFINITY), (ONE, BEYOND), (MINUS_ZERO, ONE), (MINUS_ONE, ONE)]


def _rng() -> np.random.Generator:
    return np.random.default_rng(11)


def _fields(*fields: tuple[int, int, int]) -> bytes:
    """(index, negative, high) as a stream of 14 bits each, by Python's own integers."""
    stream = sum((index << 2 | negative << 1 | high) << 14 * n for n, (index, negative, high) in enumerate(fields))
    return stream.to_bytes(-(-14 * len(fields) // 8), "little")


# -- bfloat16 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (0.0, 0),
        (-0.0, 0),
        (1.0, ONE),
        (-1.0, MINUS_ONE),
        (1.0 + 2.0**-8, ONE),
        (1.0 + 3 * 2.0**-8, ONE + 2),
        (1.0 + 2.0**-8 + 2.0**-23, ONE + 1),
        (2.0**100, 0x7180),
        (3e38, 0x7180),
        (np.inf, 0x7180),
        (-np.inf, 0xF180),
        (np.nan, 0),
        (1e-45, 0),
        (-1e-45, 0),
    ],
)
def test_bfloat16_is_the_nearest_with_ties_to_even(value: float, bits: int) -> None:
    assert bfloat16(np.array([value], np.float32))[0] == bits


def test_kernels_round_levels_as_bfloat16_does() -> None:
    values = np.append(_rng().standard_normal(500), [1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8]).astype(np.float32)
    levels, codes = np.empty((len(values), 2), np.uint16), np.empty(len(values), np.uint8)
    kernels.split_blocks(sealed(values), 1, levels, codes)
    assert np.array_equal(levels, np.stack([bfloat16(np.abs(values))] * 2, axis=1))
    assert np.array_equal(codes, 2 * (values < 0.0))


def test_every_allowed_bfloat16_decodes_to_itself() -> None:
    bits = np.arange(1 << 16).astype("<u2")
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    allowed = (np.abs(values) <= LARGEST) & (bits != MINUS_ZERO)
    assert np.array_equal(bfloat16(numbers(bits[allowed].view(np.uint8), signed=True)), bits[allowed])
    for wrong in bits[~allowed]:
        with pytest.raises(PayloadError):
            numbers(np.array([wrong], "<u2").view(np.uint8), signed=True)


# -- top-k -----------------------------------------------------------------------------------------------------


def test_topk_payload_is_levels_then_fields() -> None:
    values = np.zeros(4096, np.float32)
    values[[5, 9, 700, 4095]] = [1.0, -2.0, 2.0, -1.0]
    payload = bytes(TopK(4).encode(values, seed=0))
    assert payload == struct.pack("<2H", ONE, TWO) + _fields((5, 0, 0), (9, 1, 1), (700, 0, 1), (4095, 1, 0))
    assert np.array_equal(TopK(4).decode(payload, 4096), values)


def test_topk_takes_the_first_of_equal_magnitudes() -> None:
    values = np.tile(np.array([1, -1, 3, -3], np.float32), 1024)
    decoded = TopK(2048 + 7).decode(TopK(2048 + 7).encode(values, seed=0), 4096)
    expected = values.copy()
    small = np.flatnonzero(np.abs(values) == 1.0)
    expected[small[7:]] = 0.0
    assert np.array_equal(decoded, expected)


@pytest.mark.parametrize("k", [1, 2, 63, 64, 100, 256, 4096])
@pytest.mark.parametrize("size", [1, 63, 64, 65, 4095, 4096, 4097, 9000])
def test_topk_chooses_the_same_as_a_sort(k: int, size: int) -> None:
    rng = _rng()
    values = (rng.integers(-40, 41, size) * np.exp2(rng.integers(-3, 3, size))).astype(np.float32)
    decoded = TopK(k).decode(TopK(k).encode(values, seed=0), size)
    for base in range(0, size, 4096):
        chunk, result = values[base : base + 4096], decoded[base : base + 4096]
        share = -(-k * len(chunk) // 4096)
        chosen = np.sort(np.argsort(-np.abs(chunk), kind="stable")[:share])
        assert not np.delete(result, chosen).any()
        assert len(np.unique(np.abs(result[chosen]))) <= 2
        # A zero may be chosen. It stands for zero or for the lower level.
        sent = chosen[(chunk[chosen] != 0.0) & (result[chosen] != 0.0)]
        assert len(sent) or not chunk.any()
        assert np.array_equal(np.signbit(result[sent]), np.signbit(chunk[sent]))


@pytest.mark.parametrize("k", [16, 64, 256])
def test_two_levels_are_close_to_the_best_two(k: int) -> None:
    """Against the exact two-means of the sorted magnitudes, over normal and heavy-tailed chunks."""
    rng = _rng()
    for values in (rng.standard_normal((40, 4096)), rng.standard_t(3, (40, 4096))):
        x = values.astype(np.float32)
        top = np.sort(np.abs(x).astype(np.float64), axis=1)[:, -k:]
        sums = np.cumsum(top, axis=1)[:, :-1]
        count = np.arange(1, k)
        kept = np.max(sums**2 / count + (top.sum(axis=1)[:, None] - sums) ** 2 / (k - count), axis=1)
        best = np.sum(top**2) - np.sum(kept)
        decoded = TopK(k).decode(TopK(k).encode(x.reshape(-1), seed=0), x.size).reshape(x.shape)
        error = np.sum(np.square(x - decoded, dtype=np.float64)[decoded != 0.0])
        assert best * 0.99 <= error <= best * 1.01


@pytest.mark.parametrize("name", ["topk64", "topk128", "sign", "twobit"])
def test_decoded_vector_encodes_to_the_same_payload(name: str) -> None:
    values = _rng().standard_normal(9000).astype(np.float32)
    payload = bytes(COMPRESSORS[name].encode(values, seed=0))
    assert bytes(COMPRESSORS[name].encode(COMPRESSORS[name].decode(payload, 9000), seed=0)) == payload


SOUND = [(3, 0, 0), (8, 1, 1), (9, 0, 0)]


@pytest.mark.parametrize(
    ("levels", "fields"),
    [
        *[(levels, SOUND) for levels in BAD_LEVELS],
        pytest.param((TWO, ONE), SOUND, id="low above high"),
        pytest.param((ONE, ONE), SOUND, id="a high level that is not"),
        pytest.param((ONE, TWO), [(3, 0, 0), (8, 1, 0), (9, 0, 0)], id="a high level unused"),
        pytest.param((ONE, TWO), [(3, 0, 1), (8, 1, 1), (9, 0, 1)], id="a low level unused"),
        pytest.param((ONE, ONE), [(3, 0, 1), (8, 1, 1), (9, 0, 1)], id="one level called high"),
        pytest.param((0, TWO), [(3, 1, 0), (8, 1, 1), (9, 0, 0)], id="a zero with a sign"),
        pytest.param((ONE, TWO), [(8, 0, 0), (3, 1, 1), (9, 0, 0)], id="descending"),
        pytest.param((ONE, TWO), [(3, 0, 0), (3, 1, 1), (9, 0, 0)], id="twice"),
        pytest.param((ONE, TWO), [(3, 0, 0), (8, 1, 1), (3000, 0, 0)], id="past the end"),
    ],
)
def test_topk_refuses_what_no_encoder_writes(levels: tuple[int, int], fields: list[tuple[int, int, int]]) -> None:
    """3000 parameters, of which top 4 of 4096 sends 3."""
    compressor = TopK(4)
    compressor.decode(struct.pack("<2H", ONE, TWO) + _fields(*SOUND), 3000)
    with pytest.raises(PayloadError):
        compressor.decode(struct.pack("<2H", *levels) + _fields(*fields), 3000)


def test_topk_refuses_padding_that_is_not_zero() -> None:
    sound = struct.pack("<2H", ONE, TWO) + _fields(*SOUND)
    for bit in range(2, 8):
        with pytest.raises(PayloadError):
            TopK(4).decode(sound[:-1] + bytes([sound[-1] | 1 << bit]), 3000)


# -- threshold -------------------------------------------------------------------------------------------------


def test_threshold_sends_outliers_of_any_chunk() -> None:
    values = np.full(3 * 4096, 0.01, np.float32)
    values[4096 + 17], values[4096 + 30], values[3 * 4096 - 1] = 5.0, -5.0, 4.0
    payload = bytes(Threshold(3.0).encode(values, seed=0))
    expected = struct.pack("<3H", 0, 2, 1) + struct.pack("<4H", 0x40A0, 0x40A0, 0x4080, 0x4080)
    assert payload == expected + _fields((17, 0, 0), (30, 1, 0)) + _fields((4095, 0, 0))
    assert np.array_equal(Threshold(3.0).decode(payload, len(values)), np.where(np.abs(values) > 1.0, values, 0.0))


def test_threshold_of_zeros_is_counts_of_zero() -> None:
    assert bytes(Threshold(3.0).encode(np.zeros(5000, np.float32), seed=0)) == bytes(4)


def test_threshold_is_capped_and_never_silent() -> None:
    compressor = Threshold(0.5, most=100)
    values = _rng().standard_normal(5000).astype(np.float32)
    payload = compressor.encode(values, seed=0)
    assert len(payload) == compressor.most_bytes(5000)
    decoded = compressor.decode(payload, 5000)
    assert np.count_nonzero(decoded[:4096]) == np.count_nonzero(decoded[4096:]) == 100
    flat = np.full(5000, -0.25, np.float32)
    assert np.count_nonzero(compressor.decode(Threshold(9.0, most=100).encode(flat, seed=0), 5000)) == 200


@pytest.mark.parametrize(
    ("size", "counts", "codes"),
    [(4096, [3], _fields(*SOUND)), (4097, [0, 2], _fields((0, 0, 0), (1, 0, 0))), (4096, [65535], b"")],
)
def test_threshold_refuses_counts_that_are_too_many(size: int, counts: list[int], codes: bytes) -> None:
    payload = struct.pack(f"<{len(counts)}H", *counts) + struct.pack("<2H", ONE, TWO) + codes
    with pytest.raises(PayloadError, match="more parameters than allowed"):
        Threshold(3.0, most=2).decode(payload, size)


# -- one and two bits ------------------------------------------------------------------------------------------


def test_sign_payload_is_scales_then_bits() -> None:
    values = np.array([1.0, -3.0, 2.0, -2.0, 2.0, 0.0, 0.0, 6.0, -2.0], np.float32)
    payload = bytes(Sign().encode(values, seed=0))
    assert payload == struct.pack("<H", TWO) + bytes([0b00001010, 0b1])
    assert Sign().decode(payload, 9).tolist() == [2, -2, 2, -2, 2, 2, 2, 2, -2]


@pytest.mark.parametrize("payload", [struct.pack("<H", TWO) + b"\x0a\x03", struct.pack("<H", 0) + b"\x01\x00"])
def test_sign_refuses_padding_and_zeros_with_a_sign(payload: bytes) -> None:
    with pytest.raises(PayloadError):
        Sign().decode(payload, 9)


def test_twobit_payload_is_levels_then_codes() -> None:
    values = np.array([1.0, -2.0, 2.0, -1.0, 1.0], np.float32)
    payload = bytes(TwoBit().encode(values, seed=0))
    assert payload == struct.pack("<2H", ONE, TWO) + bytes([0b10_01_11_00, 0b00])
    assert np.array_equal(TwoBit().decode(payload, 5), values)


@pytest.mark.parametrize(
    ("levels", "codes"),
    [
        *[(levels, [0b10_01_11_00, 0]) for levels in BAD_LEVELS],
        ((TWO, ONE), [0b10_01_11_00, 0]),
        ((ONE, TWO), [0b10_00_10_00, 0]),
        ((ONE, TWO), [0b11_01_11_01, 1]),
        ((ONE, ONE), [0b11_01_11_01, 1]),
        ((ONE, ONE), [0b10_01_11_00, 0]),
        ((0, ONE), [0b10_01_11_00, 0]),
        ((0, 0), [0b10_00_00_00, 0]),
        ((ONE, TWO), [0b10_01_11_00, 0b100]),
    ],
)
def test_twobit_refuses_what_no_encoder_writes(levels: tuple[int, int], codes: list[int]) -> None:
    with pytest.raises(PayloadError):
        TwoBit().decode(struct.pack("<2H", *levels) + bytes(codes), 5)


# -- transforms ------------------------------------------------------------------------------------------------


def test_cosines_round_the_same_with_any_libm() -> None:
    """Every cosine is at least 2^16 ulps of fp64 from a rounding boundary of fp32. libms differ by one or two ulps."""
    turns = np.outer(np.arange(64), 2 * np.arange(64) + 1)
    exact = np.cos(np.pi / 128 * turns) * np.sqrt(2.0 / 64)
    exact[0] = 0.125
    outward = np.where(exact > COSINES, np.float32(np.inf), np.float32(-np.inf))
    middles = (COSINES.astype(np.float64) + np.nextafter(COSINES, outward)) / 2
    distance = np.abs(exact - middles) / np.spacing(np.abs(exact))
    assert distance.min() > 2**16
    assert hashlib.sha256(COSINES.astype("<f4").tobytes()).hexdigest()[:16] == "23ad299315db91c9"


def test_basis_is_orthonormal() -> None:
    basis = COSINES.astype(np.float64)
    np.testing.assert_allclose(basis @ basis.T, np.eye(64), atol=1e-6)


def test_cosine_wave_of_a_chunk_is_one_coefficient() -> None:
    wave = (3.0 * 64 * np.outer(COSINES[5], COSINES[60])).reshape(-1)
    payload = DCT(1).encode(wave, seed=0)
    assert len(payload) == 6
    np.testing.assert_allclose(DCT(1).decode(payload, 4096), wave, atol=1e-4)


def test_rotation_is_that_of_matrices_to_the_last_bit_of_ordered_sums() -> None:
    rng = _rng()
    x = rng.standard_normal((2, 64, 64)).astype(np.float32)
    x[rng.random(x.shape) < 0.9] = 0.0
    out = np.empty_like(x)
    kernels.rotate(sealed(x), sealed(COSINES.T), COSINES, out)
    half, whole = np.zeros_like(x), np.zeros_like(x)
    for k in range(64):
        half += x[:, :, k : k + 1] * COSINES[k]
    for k in range(64):
        whole += COSINES[k][None, :, None] * half[:, k : k + 1, :]
    assert np.array_equal(out, whole)


def test_chunk_too_large_to_be_summed_is_cut_first() -> None:
    noise = np.float32(3e38) * _rng().choice(np.float32([-1, 1]), 4096)
    sent = DCT(64).decode(DCT(64).encode(noise, seed=0), 4096)
    assert np.abs(sent).max() > 2.0**96 and np.dot(np.sign(sent), np.sign(noise)) > 200


def _of_rank(rank: int, rows: int, columns: int) -> np.ndarray:
    rng = _rng()
    return (rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, columns))).astype(np.float32)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e25])
def test_matrix_of_the_rank_comes_back_whole(scale: float) -> None:
    shapes = ((40, 30), (7,), (20, 3, 3, 3), (), (2, 2))
    parts = [_of_rank(2, 40, 30), _rng().standard_normal(7), _of_rank(2, 20, 27), np.ones(1), np.eye(2)]
    values = (np.concatenate([part.reshape(-1) for part in parts]) * scale).astype(np.float32)
    compressor = LowRank(2, shapes)
    payload = compressor.encode(values, seed=4)
    assert len(payload) == compressor.most_bytes(len(values)) == 2 * (2 * 70 + 7 + 2 * 47 + 1 + 4)
    decoded = compressor.decode(payload, len(values))
    np.testing.assert_allclose(decoded, values, atol=0.02 * scale * 4)
    dense = np.r_[1200:1207, 1747:1752]
    np.testing.assert_allclose(decoded[dense], values[dense], rtol=2.0**-8)


def test_folded_vector_of_low_rank_comes_back() -> None:
    values = np.append(_of_rank(1, 50, 51).reshape(-1), np.float32([1.0, -2.0]))
    decoded = LowRank(1).decode(LowRank(1).encode(values, seed=1), 2552)
    assert np.linalg.norm(decoded - values) < 0.01 * np.linalg.norm(values)
    assert decoded[-2:].tolist() == [1.0, -2.0]


def test_more_rank_leaves_less_and_nearly_the_least() -> None:
    rng = _rng()
    matrix = rng.standard_normal((64, 64)) @ np.diag(0.9 ** np.arange(64)) @ rng.standard_normal((64, 64))
    values = matrix.astype(np.float32).reshape(-1)
    singular = np.linalg.svd(matrix, compute_uv=False)
    for rank in (1, 2, 4, 8, 16):
        error = np.linalg.norm(values - LowRank(rank).decode(LowRank(rank).encode(values, seed=2), 4096))
        least = np.sqrt(np.sum(singular[rank:] ** 2))
        assert least * 0.999 <= error <= least * 1.25


def test_lowrank_refuses_columns_beyond_one_and_other_shapes() -> None:
    payload = bytes(LowRank(1).encode(np.ones(64, np.float32), seed=1))
    with pytest.raises(PayloadError):
        LowRank(1).decode(struct.pack("<H", TWO) + payload[2:], 64)
    with pytest.raises(ValueError, match="shapes have"):
        LowRank(1, ((8, 8),)).most_bytes(65)


def test_hostile_factors_stay_bounded() -> None:
    decoded = LowRank(3).decode(struct.pack("<H", ONE) * 24 + struct.pack("<H", 0x7180) * 24, 64)
    assert (decoded == LARGEST).all()


# -- all of them -----------------------------------------------------------------------------------------------

GOLDEN: dict[str, str] = {
    "topk64": "184e1f069cc0bf79",
    "topk128": "b3778165329451bc",
    "topk256": "c5d9185011fda5d7",
    "threshold3": "396f30fde5765c2f",
    "sign": "bb25f58cee927b50",
    "twobit": "c9b079cde83f798a",
    "whole": "f1e8bf2e9c921024",
    "dct64": "e5d0ad36ec6b86f5",
    "lowrank4": "1c43422753f47799",
}


def _plain_vector() -> np.ndarray:
    """5000 fp32 numbers, made with integer arithmetic only."""
    n = np.arange(5000, dtype=np.int64)
    return ((n * n * 7919 + n * 104729) % 65521 - 32760).astype(np.float32) / np.float32(4096.0)


@pytest.mark.parametrize("name", [name for name in COMPRESSORS if not name.startswith(("lowrank", "dct"))])
def test_payloads_are_those_of_the_first_release(name: str) -> None:
    """A changed digest is a changed wire format: give the compressor another name."""
    payload = COMPRESSORS[name].encode(_plain_vector(), seed=77)
    assert hashlib.sha256(payload).hexdigest()[:16] == GOLDEN[name]


@pytest.mark.parametrize("name", ["dct64", "lowrank4"])
def test_same_payload_decodes_to_the_same_bits_on_every_machine(name: str) -> None:
    """Encoders may differ between machines, so the payload comes from plain integers."""
    if name == "dct64":
        payload = bytes(COMPRESSORS["topk64"].encode(_plain_vector()[:4096], seed=0))
        size = 4096
    else:
        size = 4900
        count = COMPRESSORS[name].most_bytes(size) // 2
        payload = bfloat16(_plain_vector()[:count] / np.float32(8.0)).tobytes()
    decoded = COMPRESSORS[name].decode(payload, size)
    assert hashlib.sha256(decoded.astype("<f4").tobytes()).hexdigest()[:16] == GOLDEN[name]


def test_warm_up_leaves_nothing_to_compile() -> None:
    kernels.warm_up()
    for compressor in COMPRESSORS.values():
        for values in (np.ones(5000, np.float32), np.ones(10000, np.float32)[::2]):
            compressor.decode(bytearray(compressor.encode(values, seed=1)), 5000)
    compiled: list[Any] = [kernels.choose_chunks, kernels.place_chunks, kernels.split_blocks, kernels.rotate]
    for kernel in compiled:
        assert len(kernel.signatures) == 1, kernel
