"""The payloads of top-k, bit by bit."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from gossipdp.codecs.base import PayloadError
from simulations.lab.compressors.topk import TopK
from tests.simulations.lab.compressors.payloads import BAD_LEVELS, ONE, TWO, generator


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
