"""The kernels of the modulo codec: packing, copying, coefficients, warm-up, and no usable cache of compiled code."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gossipdp.codecs import kernels
from gossipdp.codecs.blocks import BLOCK, Blocks
from gossipdp.codecs.kernels.codes import NARROW
from gossipdp.codecs.modulo import RANGES
from tests.codecs.codec_dialogue import converse


def _largest(values: NDArray[np.float32]) -> NDArray[np.float32]:
    largest: NDArray[np.float32] = np.abs(values).reshape(-1, BLOCK).max(axis=1)
    return largest


@pytest.mark.parametrize("width", range(2, 17))
def test_unpack_inverts_pack(width: int) -> None:
    rng, blocks = np.random.default_rng(width), Blocks.within(BLOCK + 78, [1, 1 + BLOCK])
    u = rng.integers(-(2**40), 2**40, blocks.size)
    codes, checks = np.zeros(blocks.codes * width // 8, np.uint8), np.zeros(3, np.uint16)
    coefs = kernels.coefficients(np.uint32(77), np.uint32(78))
    kernels.encode_rows(u, 3, width, coefs, blocks.starts, blocks.places, codes, checks)
    codes.flags.writeable = False
    chosen = np.array([2, 0])
    known = np.empty(78, np.int64)
    kernels.unpack_rows(codes, blocks.places, chosen, width, blocks.take(chosen).starts, known)
    assert np.array_equal(known, (np.append(u[1 + BLOCK :], u[:1]) >> 3) & ((1 << width) - 1))
    for block, check in enumerate(checks):
        upper = u[blocks.starts[block] : blocks.starts[block + 1]] >> (3 + width)
        assert check == int((upper * coefs[: len(upper)].astype(np.int64)).sum()) & 0xFFFF


@pytest.mark.parametrize("width", range(2, 17))
def test_first_stage_packs_the_low_bits_of_recomputed_indices(width: int) -> None:
    """An escalation must find the same u whose low bits were sent."""
    rng, blocks = np.random.default_rng(width), Blocks.across(4 * BLOCK)
    ends = blocks.starts, blocks.places
    values = (rng.standard_normal(4 * BLOCK) * np.exp2(rng.integers(-20, 30, 4 * BLOCK))).astype(np.float32)
    scale, key = np.full(4, 65536.0 * 1.7), (np.uint32(77), np.uint32(78))
    codes, checks = np.empty(4 * 32 * width, np.uint8), np.empty(4, np.uint16)
    coefs = kernels.coefficients(*key)
    kernels.encode(values, _largest(values), scale, *key, width, coefs, *ends, codes, checks)
    u = np.empty(4 * BLOCK, np.int64)
    kernels.recompute(values, scale, blocks.starts, np.arange(4), *key, blocks.starts, u)
    again, checks_again = np.empty_like(codes), np.empty_like(checks)
    kernels.encode_rows(u, 0, width, coefs, *ends, again, checks_again)
    assert np.array_equal(codes, again) and np.array_equal(checks, checks_again)
    assert (np.abs(u - values * np.float64(1.7)) < 1.0).all()


@pytest.mark.parametrize("width", range(2, 17))
def test_blocks_of_small_indices_have_the_codes_that_64_bits_give(width: int) -> None:
    """Peers of two releases must send the same bits, also at the bound and for negative values."""
    rng = np.random.default_rng(width)
    scale = np.array([65536.0 * 1.7, 1.0, 2.0**17, 65536.0])
    values = rng.uniform(-1.0, 1.0, (4, BLOCK)) * (NARROW / scale)[:, None]
    values[:, :4] = (NARROW / scale)[:, None] * [1.0, -1.0, 0.5, 0.0]
    values = np.nextafter(values.astype(np.float32), np.float32(0.0)).reshape(-1)
    largest, key = _largest(values), (np.uint32(rng.integers(2**32)), np.uint32(rng.integers(2**32)))
    assert (largest * scale < NARROW).all()
    coefs, found, blocks = kernels.coefficients(*key), [], Blocks.across(4 * BLOCK)
    for reach in (largest, np.full(4, np.inf, np.float32)):
        codes, checks = np.empty(4 * 32 * width, np.uint8), np.empty(4, np.uint16)
        kernels.encode(values, reach, scale, *key, width, coefs, blocks.starts, blocks.places, codes, checks)
        found.append((codes.tobytes(), checks.tobytes()))
    assert found[0] == found[1]


def test_capture_copies_any_bits() -> None:
    rng = np.random.default_rng(1)
    values = np.frombuffer(rng.bytes(4 * (9 * BLOCK + 3)), np.float32).copy()
    copy, levels, largest = np.full(len(values), 7.0, np.float32), np.zeros(10, np.uint8), np.empty(10, np.float32)
    starts = Blocks.across(len(values)).starts
    kernels.capture(values, np.zeros(10, np.float32), RANGES, 14 * 2.0**-34, starts, copy, largest, levels)
    tame = np.abs(values) <= 2.0**48
    assert np.array_equal(copy[tame], values[tame]) and (np.abs(copy) <= 2.0**48).all()
    most = np.maximum.reduceat(np.abs(copy), starts[:-1])
    assert largest[9] == most[9] and (largest[:9] >= most[:9]).all()


@pytest.mark.parametrize("seed", [0, 1, 77, 2**32, 2**64 - 1])
def test_coefficients_are_odd_and_no_two_equal_or_opposite_for_any_seed(seed: int) -> None:
    """Simulator seed 423: with two equal or opposite coefficients, two wraps cancelled in the check."""
    coefs = kernels.coefficients(np.uint32(seed & 0xFFFF_FFFF), np.uint32(seed >> 32))
    assert (coefs & 1).all()
    assert len({sign * value % 2**16 for value in coefs.tolist() for sign in (1, -1)}) == 2 * BLOCK


def test_coefficients_of_a_seed_are_fixed() -> None:
    """They are part of the wire format, so two releases must agree."""
    first = [kernels.coefficients(np.uint32(low), np.uint32(high))[:4].tolist() for low, high in ((1, 0), (0, 1))]
    assert first == [[23745, 60519, 21855, 51467], [313, 48445, 10965, 44789]]


def test_coefficients_are_spread_evenly_over_seeds() -> None:
    drawn = np.array([kernels.coefficients(np.uint32(seed), np.uint32(5)) for seed in range(400)]).astype(np.float64)
    even = 2.0**16 / np.sqrt(12)
    assert np.abs(drawn.mean(axis=0) - 2.0**15).max() < 5 * even / np.sqrt(400)
    centred = drawn - 2.0**15
    for one, other in ((centred[:, 1:], centred[:, :-1]), (centred[1:], centred[:-1])):
        assert abs(float((one * other).mean())) < 5 * even**2 / np.sqrt(one.size)


def test_warm_up_leaves_nothing_to_compile() -> None:
    kernels.warm_up()
    known = {name: len(getattr(kernels, name).signatures) for name in kernels.__all__ if name != "warm_up"}
    low = np.random.default_rng(1).standard_normal(3 * BLOCK - 5).astype(np.float32)
    for bits in (2, 5, 8, 16):
        converse(f"modulo{bits}", low, low * np.float32(1.01), 1e-3)
        converse(f"modulo{bits}", low, low * np.float32(-9.0), 1e-5)
    for name, count in known.items():
        assert 1 <= len(getattr(kernels, name).signatures) == count, name


CODE = """
import numpy as np
from gossipdp.codecs import kernels
print(kernels.coefficients(np.uint32(1), np.uint32(2)))
"""


def test_kernels_compile_without_a_writable_cache() -> None:
    # numba may use only IPython's cache, which does not exist.
    variables = {**os.environ, "HOME": "/nonexistent", "NUMBA_CACHE_LOCATOR_CLASSES": "IPythonCacheLocator"}
    variables.pop("NUMBA_CACHE_DIR", None)
    said = [
        subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
        for environment in (variables, dict(os.environ))
    ]
    assert not said[0].stderr and said[0].stdout == said[1].stdout


@pytest.mark.parametrize(("kind", "content"), [("nbi", b""), ("nbi", b"x" * 90), ("nbc", b"")])
def test_damaged_cache_is_cleared_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, content: bytes
) -> None:
    source = tmp_path / "tiny.py"
    source.write_text("from gossipdp.codecs.compiled import kernel\n\n@kernel\ndef twice(x):\n    return 2 * x\n")
    assert [runpy.run_path(str(source))["twice"](21) for _ in range(2)] == [42, 42]
    assert not caplog.records
    (kept,) = tmp_path.rglob(f"*.{kind}")
    kept.write_bytes(content)
    assert runpy.run_path(str(source))["twice"](21) == 42
    (told,) = caplog.messages
    assert told.startswith(f"GD-603 compiled kernels in {kept.parent} are damaged")
    assert runpy.run_path(str(source))["twice"](21) == 42 and len(caplog.messages) == 1
