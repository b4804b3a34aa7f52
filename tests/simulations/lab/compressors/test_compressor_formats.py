"""The payloads and transforms of the compressors, bit by bit. A value has one encoding."""

import hashlib
import struct

import numpy as np
import pytest

from gossipdp.codecs.base import PayloadError
from simulations.lab.compressors import COMPRESSORS, kernels
from simulations.lab.compressors.dct import COSINES, DCT
from simulations.lab.compressors.kernels import CHUNK, LARGEST, sealed
from simulations.lab.compressors.payloads import bfloat16, numbers
from simulations.lab.compressors.sign import Sign
from simulations.lab.compressors.topk import TopK
from tests.simulations.lab.compressors.payloads import BAD_LEVELS, MINUS_ONE, ONE, TWO, generator

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
    """One value in each chunk."""
    values = np.append(generator().standard_normal(100), [1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8]).astype(np.float32)
    chunks = np.zeros((len(values), CHUNK), np.float32)
    chunks[:, 0] = values
    vector, ones = sealed(chunks.reshape(-1)), sealed(np.ones(len(values), np.int64))
    levels, codes = np.empty((len(values), 2), np.uint16), np.empty(2 * len(values), np.uint8)
    kernels.choose_chunks(vector, vector.view(np.uint32), ones, sealed(2 * np.arange(len(values))), levels, codes)
    assert np.array_equal(levels, np.stack([bfloat16(np.abs(values))] * 2, axis=1))
    assert np.array_equal(codes.view("<u2"), 2 * (values < 0.0))


def test_every_allowed_bfloat16_decodes_to_itself() -> None:
    bits = np.arange(1 << 16).astype("<u2")
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    allowed = (values <= LARGEST) & ~np.signbit(values)
    assert np.array_equal(bfloat16(numbers(bits[allowed].view(np.uint8))), bits[allowed])
    for wrong in bits[~allowed]:
        with pytest.raises(PayloadError):
            numbers(np.array([wrong], "<u2").view(np.uint8))


# -- one bit ---------------------------------------------------------------------------------------------------


def test_sign_payload_is_scales_then_bits() -> None:
    values = np.array([1.0, -3.0, 2.0, -2.0, 2.0, 0.0, 0.0, 6.0, -2.0], np.float32)
    payload = bytes(Sign().encode(values, seed=0))
    assert payload == struct.pack("<H", TWO) + bytes([0b00001010, 0b1])
    assert Sign().decode(payload, 9).tolist() == [2, -2, 2, -2, 2, 2, 2, 2, -2]


@pytest.mark.parametrize("payload", [struct.pack("<H", TWO) + b"\x0a\x03", struct.pack("<H", 0) + b"\x01\x00"])
def test_sign_refuses_padding_and_zeros_with_a_sign(payload: bytes) -> None:
    with pytest.raises(PayloadError):
        Sign().decode(payload, 9)


# -- all of them -----------------------------------------------------------------------------------------------


GOLDEN: dict[str, str] = {
    "topk64": "184e1f069cc0bf79",
    "topk128": "b3778165329451bc",
    "sign": "bb25f58cee927b50",
    "dct64": "e5d0ad36ec6b86f5",
}


def _plain_vector() -> np.ndarray:
    """5000 fp32 numbers, made with integer arithmetic only."""
    n = np.arange(5000, dtype=np.int64)
    return ((n * n * 7919 + n * 104729) % 65521 - 32760).astype(np.float32) / np.float32(4096.0)


@pytest.mark.parametrize("name", ["topk64", "topk128", "sign"])
def test_decoded_vector_encodes_to_the_same_payload(name: str) -> None:
    values = generator().standard_normal(9000).astype(np.float32)
    payload = bytes(COMPRESSORS[name].encode(values, seed=0))
    assert bytes(COMPRESSORS[name].encode(COMPRESSORS[name].decode(payload, 9000), seed=0)) == payload


@pytest.mark.parametrize("name", [name for name in COMPRESSORS if not name.startswith("dct")])
def test_payloads_are_those_of_the_first_release(name: str) -> None:
    """A changed digest is a changed format: kept answers would be of another compressor."""
    payload = COMPRESSORS[name].encode(_plain_vector(), seed=77)
    assert hashlib.sha256(payload).hexdigest()[:16] == GOLDEN[name]


def test_same_payload_decodes_to_the_same_bits_on_every_machine() -> None:
    """Encoders may differ between machines, so the payload comes from plain integers."""
    payload = bytes(COMPRESSORS["topk64"].encode(_plain_vector()[:4096], seed=0))
    decoded = COMPRESSORS["dct64"].decode(payload, 4096)
    assert hashlib.sha256(decoded.astype("<f4").tobytes()).hexdigest()[:16] == GOLDEN["dct64"]


def _fields(*fields: tuple[int, int, int]) -> bytes:
    """(index, negative, high) as a stream of 14 bits each, by Python's own integers."""
    stream = sum((index << 2 | negative << 1 | high) << 14 * n for n, (index, negative, high) in enumerate(fields))
    return stream.to_bytes(-(-14 * len(fields) // 8), "little")


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
    rng = generator()
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
    rng = generator()
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
    rng = generator()
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
    noise = np.float32(3e38) * generator().choice(np.float32([-1, 1]), 4096)
    sent = DCT(64).decode(DCT(64).encode(noise, seed=0), 4096)
    assert np.abs(sent).max() > 2.0**96 and np.dot(np.sign(sent), np.sign(noise)) > 200
