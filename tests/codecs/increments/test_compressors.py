"""The promises of every compressor in the registry (`codecs.increments.compressor`)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from gossipdp.codecs import COMPRESSORS
from gossipdp.codecs.base import PayloadError
from gossipdp.codecs.increments.compressor import Compressor
from gossipdp.codecs.increments.lowrank import LowRank
from gossipdp.protocol.epidemic import packing as increments

SHAPED = "lowrank4 of a model"
"""not in the registry: it needs the shapes of the model"""

every = pytest.mark.parametrize("name", [*COMPRESSORS, SHAPED])
sizes = pytest.mark.parametrize("size", [1, 255, 4096, 4097, 10_000])
contractive = pytest.mark.parametrize("name", [name for name, c in COMPRESSORS.items() if c.contraction > 0.0])
LARGEST = 2.0**100


def _vectors(size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(size)
    normal = rng.standard_normal(size)
    spike = normal * 1e-3
    spike[size // 2] = -70.0
    vectors = {
        "normal": normal,
        "zero": np.zeros(size),
        "negative zero": np.full(size, -0.0),
        "constant": np.full(size, -0.37),
        "spike": spike,
        "scales": normal * np.exp2(rng.integers(-40, 40, size)),
        "ties": rng.integers(-2, 3, size),
        "fine": normal * 1e-9,
        "denormal": normal * 1e-42,
        "large": np.clip(normal, -2, 2) * 2.0**99,
        "huge": np.clip(normal, -3, 3) * 1e38,
    }
    return {name: values.astype(np.float32) for name, values in vectors.items()}


VECTORS = {size: _vectors(size) for size in (1, 255, 4096, 4097, 10_000)}


def _compressor(name: str, size: int) -> Compressor:
    return LowRank(4, _shapes(size)) if name == SHAPED else COMPRESSORS[name]


def _shapes(size: int) -> list[tuple[int, ...]]:
    """Shapes of a model of `size` parameters.

    In this order, as far as they fit: a matrix and a convolution that low rank makes smaller, one that it does not, a
    scalar, and a vector of the rest.
    """
    shapes: list[tuple[int, ...]] = []
    for shape in ((40, 50), (16, 3, 5, 5), (3, 7), ()):
        if size >= (count := int(np.prod(shape))):
            shapes.append(shape)
            size -= count
    return [*shapes, (size,)]


def _squares(values: np.ndarray) -> float:
    return float(np.sum(np.square(values, dtype=np.float64)))


def test_registry_names_its_compressors() -> None:
    assert all(compressor.name == name and len(name) <= 16 for name, compressor in COMPRESSORS.items())


@every
@sizes
def test_any_finite_vector_decodes_to_bounded_numbers_that_are_always_the_same(name: str, size: int) -> None:
    compressor = _compressor(name, size)
    for values in VECTORS[size].values():
        values = values.copy()
        values.flags.writeable = False
        payload = bytes(compressor.encode(values, seed=2**64 - 5))
        assert len(payload) <= compressor.most_bytes(size)
        assert bytes(compressor.encode(values.copy(), seed=2**64 - 5)) == payload
        decoded = compressor.decode(payload, size)
        assert decoded.shape == (size,) and decoded.dtype == np.float32 and decoded.flags.writeable
        assert (np.abs(decoded) <= LARGEST).all()
        for form in (bytearray(payload), memoryview(payload)):
            assert np.array_equal(compressor.decode(form, size).view(np.uint32), decoded.view(np.uint32))
        decoded += 1.0
        assert bytes(payload) == bytes(compressor.encode(values, seed=2**64 - 5)), "decode kept a view of its result"


@every
def test_empty_vector_is_an_empty_payload(name: str) -> None:
    compressor, nothing = _compressor(name, 0), np.zeros(0, np.float32)
    payload = compressor.encode(nothing, seed=3)
    assert len(payload) == compressor.most_bytes(0) == 0
    assert compressor.decode(payload, 0).shape == (0,)


def _topk(k: int) -> Callable[[int], float]:
    """Whole chunks only: two levels, and 12 + 2 bits each."""
    return lambda n: n / 4096 * (4 + k * 14 / 8)


BYTES: dict[str, Callable[[int], float]] = {
    **{f"{kind}{k}": _topk(k) for kind in ("topk", "dct") for k in (64, 128, 256)},
    "threshold3": lambda n: n / 4096 * (2 + 4 + 256 * 14 / 8),
    "sign": lambda n: n / 8 + 2 * n / 256,
    "twobit": lambda n: n / 4 + 4 * n / 256,
    "whole": lambda n: 2 * n,
    "lowrank4": lambda n: 2 * 4 * 2 * n**0.5,
    SHAPED: lambda n: 2 * (4 * (40 + 50) + 4 * (16 + 75) + (n - 40 * 50 - 16 * 75)),
}


@every
def test_payload_has_the_stated_bytes(name: str) -> None:
    """256^2 parameters: whole chunks, a square."""
    size = 1 << 16
    compressor = _compressor(name, size)
    values = np.random.default_rng(5).standard_normal(size).astype(np.float32)
    assert compressor.most_bytes(size) == BYTES[name](size)
    if name == "threshold3":
        # Every third value is an outlier, more than may be sent.
        values[::12] = 1e3
    assert len(compressor.encode(values, seed=1)) == BYTES[name](size)


@every
@pytest.mark.parametrize("size", [1, 100, 4096, 1 << 18])
def test_no_payload_is_longer_than_an_increment_may_be(name: str, size: int) -> None:
    assert _compressor(name, size).most_bytes(size) <= increments.HEAD + increments.EXACT * size


def test_bytes_a_parameter_are_those_stated() -> None:
    """Algorithms section 4."""
    ratio = {name: compressor.most_bytes(1 << 24) / (1 << 24) for name, compressor in COMPRESSORS.items()}
    assert ratio["topk64"] == pytest.approx(0.0283, abs=5e-5)
    assert ratio["topk128"] == pytest.approx(0.0557, abs=5e-5)
    assert ratio["sign"] == pytest.approx(0.1328, abs=5e-5)


@contractive
@sizes
def test_error_contracts_as_promised(name: str, size: int) -> None:
    compressor = COMPRESSORS[name]
    for kind, values in VECTORS[size].items():
        if kind in ("denormal", "huge"):
            continue
        error = _squares(values - compressor.decode(compressor.encode(values, seed=1), size).astype(np.float64))
        assert error <= (1.0 - compressor.contraction) * _squares(values), kind


@every
@sizes
def test_error_is_no_longer_than_the_vector(name: str, size: int) -> None:
    compressor = _compressor(name, size)
    for kind, values in VECTORS[size].items():
        error = _squares(values - compressor.decode(compressor.encode(values, seed=1), size).astype(np.float64))
        slack = 1e-5 if name.startswith(("dct", "lowrank")) else 1e-12
        if kind == "denormal":
            # Half a bfloat16 step, where a denormal turns into another one.
            assert error <= _squares(values) + size * 2.0**-268, kind
        else:
            assert error <= (1.0 + slack) * _squares(values), kind


@pytest.mark.parametrize(
    ("name", "kept"),
    [("topk64", 0.11), ("topk128", 0.19), ("topk256", 0.31), ("sign", 0.63), ("twobit", 0.88), ("dct128", 0.19)],
)
def test_share_of_a_normal_vector_that_is_sent(name: str, kept: float) -> None:
    compressor, values = COMPRESSORS[name], np.random.default_rng(8).standard_normal(1 << 16).astype(np.float32)
    error = _squares(values - compressor.decode(compressor.encode(values, seed=1), len(values)))
    assert kept <= 1.0 - error / _squares(values) <= kept + 0.02


@every
@sizes
def test_wrong_length_is_refused(name: str, size: int) -> None:
    compressor = _compressor(name, size)
    payload = bytes(compressor.encode(VECTORS[size]["normal"], seed=1))
    for wrong in (b"", payload[:-1], payload[:-2], payload + b"\0", b"\0" + payload, payload * 2, bytes(1 << 16)):
        if wrong != payload:
            with pytest.raises(PayloadError):
                compressor.decode(wrong, size)


@every
@sizes
def test_not_a_number_is_refused(name: str, size: int) -> None:
    compressor = _compressor(name, size)
    payload = bytes(compressor.encode(VECTORS[size]["normal"], seed=1))
    with pytest.raises(PayloadError):
        compressor.decode(b"\xff" * len(payload), size)


@every
@pytest.mark.parametrize("size", [1, 255, 4097])
def test_damaged_payload_is_refused_or_decodes_to_bounded_numbers(name: str, size: int) -> None:
    compressor, rng = _compressor(name, size), np.random.default_rng(6)
    payloads = [bytes(compressor.encode(values, seed=1)) for values in VECTORS[size].values()]
    refused = 0
    for attempt in range(120):
        spoilt = bytearray(payloads[attempt % len(payloads)])
        if attempt % 3 == 0:
            spoilt[:] = rng.bytes(len(spoilt))
        elif attempt % 3 == 1 and spoilt:
            spoilt[rng.integers(len(spoilt))] ^= 1 << int(rng.integers(8))
        elif len(spoilt) > 1:
            # A half-word becomes infinity, NaN, -0, or a number that is tiny or far too large.
            at = int(rng.integers(len(spoilt) // 2)) * 2
            spoilt[at : at + 2] = rng.choice([b"\x80\x7f", b"\xc0\x7f", b"\x00\x80", b"\x01\x00", b"\x7f\x7f"])
        try:
            decoded = compressor.decode(spoilt, size)
        except PayloadError:
            refused += 1
            continue
        assert decoded.shape == (size,) and (np.abs(decoded) <= LARGEST).all()
    assert refused > 0


@every
def test_hostile_payload_takes_no_more_memory_than_a_few_vectors(name: str) -> None:
    size, rng = 1 << 16, np.random.default_rng(1)
    compressor = _compressor(name, size)
    sound = bytes(compressor.encode(rng.standard_normal(size).astype(np.float32), seed=1))
    compressor.decode(sound, size)
    for payload in (sound, rng.bytes(len(sound)), bytes(len(sound)), rng.bytes(10 * size)):
        tracemalloc.start()
        try:
            compressor.decode(payload, size)
        except PayloadError:
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= 8 * 4 * size
