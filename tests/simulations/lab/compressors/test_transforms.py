"""The transform of `dct`: the same bits everywhere."""

from __future__ import annotations

import hashlib

import numpy as np

from simulations.lab.compressors import kernels
from simulations.lab.compressors.dct import COSINES, DCT
from simulations.lab.compressors.kernels import sealed
from tests.simulations.lab.compressors.payloads import generator


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
