"""The transforms of `dct` and `lowrank`: the same bits everywhere, and what they refuse."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest

from gossipdp.codecs.base import PayloadError
from gossipdp.codecs.increments import kernels
from gossipdp.codecs.increments.dct import COSINES, DCT
from gossipdp.codecs.increments.kernels import LARGEST, sealed
from gossipdp.codecs.increments.lowrank import LowRank
from tests.codecs.increments.payloads import ONE, TWO, generator


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


def _of_rank(rank: int, rows: int, columns: int) -> np.ndarray:
    rng = generator()
    return (rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, columns))).astype(np.float32)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e25])
def test_matrix_of_the_rank_comes_back_whole(scale: float) -> None:
    shapes = ((40, 30), (7,), (20, 3, 3, 3), (), (2, 2))
    parts = [_of_rank(2, 40, 30), generator().standard_normal(7), _of_rank(2, 20, 27), np.ones(1), np.eye(2)]
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
    rng = generator()
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
