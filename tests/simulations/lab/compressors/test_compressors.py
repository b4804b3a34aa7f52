"""The promises of every compressor (`simulations/lab/compressors/compressor.py`)."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from gossipdp.codecs.base import PayloadError
from simulations.lab.compressors import COMPRESSORS

every = pytest.mark.parametrize("name", COMPRESSORS)
sizes = pytest.mark.parametrize("size", [1, 255, 4096, 4097, 10_000])
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


def _squares(values: np.ndarray) -> float:
    return float(np.sum(np.square(values, dtype=np.float64)))


def test_registry_names_its_compressors() -> None:
    assert all(compressor.name == name for name, compressor in COMPRESSORS.items())


@every
@sizes
def test_any_finite_vector_decodes_to_bounded_numbers_that_are_always_the_same(name: str, size: int) -> None:
    compressor = COMPRESSORS[name]
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
    compressor, nothing = COMPRESSORS[name], np.zeros(0, np.float32)
    payload = compressor.encode(nothing, seed=3)
    assert len(payload) == compressor.most_bytes(0) == 0
    assert compressor.decode(payload, 0).shape == (0,)


def _topk(k: int) -> Callable[[int], float]:
    """Whole chunks only: two levels, and 12 + 2 bits each."""
    return lambda n: n / 4096 * (4 + k * 14 / 8)


BYTES: dict[str, Callable[[int], float]] = {
    "topk64": _topk(64),
    "topk128": _topk(128),
    "dct64": _topk(64),
    "sign": lambda n: n / 8 + 2 * n / 256,
}


@every
def test_payload_has_the_stated_bytes(name: str) -> None:
    """256^2 parameters: whole chunks."""
    size = 1 << 16
    compressor = COMPRESSORS[name]
    values = np.random.default_rng(5).standard_normal(size).astype(np.float32)
    assert compressor.most_bytes(size) == BYTES[name](size)
    assert len(compressor.encode(values, seed=1)) == BYTES[name](size)


def test_bytes_a_parameter_are_those_stated() -> None:
    ratio = {name: compressor.most_bytes(1 << 24) / (1 << 24) for name, compressor in COMPRESSORS.items()}
    assert ratio["topk64"] == pytest.approx(0.0283, abs=5e-5)
    assert ratio["topk128"] == pytest.approx(0.0557, abs=5e-5)
    assert ratio["sign"] == pytest.approx(0.1328, abs=5e-5)


@every
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
    compressor = COMPRESSORS[name]
    for kind, values in VECTORS[size].items():
        error = _squares(values - compressor.decode(compressor.encode(values, seed=1), size).astype(np.float64))
        slack = 1e-5 if name.startswith("dct") else 1e-12
        if kind == "denormal":
            # Half a bfloat16 step, where a denormal turns into another one.
            assert error <= _squares(values) + size * 2.0**-268, kind
        else:
            assert error <= (1.0 + slack) * _squares(values), kind


@pytest.mark.parametrize(
    ("name", "kept"),
    [("topk64", 0.11), ("topk128", 0.19), ("sign", 0.63), ("dct64", 0.11)],
)
def test_share_of_a_normal_vector_that_is_sent(name: str, kept: float) -> None:
    compressor, values = COMPRESSORS[name], np.random.default_rng(8).standard_normal(1 << 16).astype(np.float32)
    error = _squares(values - compressor.decode(compressor.encode(values, seed=1), len(values)))
    assert kept <= 1.0 - error / _squares(values) <= kept + 0.02


@every
@sizes
def test_wrong_length_is_refused(name: str, size: int) -> None:
    compressor = COMPRESSORS[name]
    payload = bytes(compressor.encode(VECTORS[size]["normal"], seed=1))
    for wrong in (b"", payload[:-1], payload[:-2], payload + b"\0", b"\0" + payload, payload * 2, bytes(1 << 16)):
        if wrong != payload:
            with pytest.raises(PayloadError):
                compressor.decode(wrong, size)


@every
@sizes
def test_not_a_number_is_refused(name: str, size: int) -> None:
    compressor = COMPRESSORS[name]
    payload = bytes(compressor.encode(VECTORS[size]["normal"], seed=1))
    with pytest.raises(PayloadError):
        compressor.decode(b"\xff" * len(payload), size)


@every
@pytest.mark.parametrize("size", [1, 255, 4097])
def test_damaged_payload_is_refused_or_decodes_to_bounded_numbers(name: str, size: int) -> None:
    compressor, rng = COMPRESSORS[name], np.random.default_rng(6)
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
    compressor = COMPRESSORS[name]
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
