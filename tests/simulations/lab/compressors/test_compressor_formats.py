"""The payloads of the compressors, bit by bit. A value has one encoding."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest

from gossipdp.codecs.base import PayloadError
from simulations.lab.compressors import COMPRESSORS, kernels
from simulations.lab.compressors.kernels import CHUNK, LARGEST, sealed
from simulations.lab.compressors.payloads import bfloat16, numbers
from simulations.lab.compressors.sign import Sign
from tests.simulations.lab.compressors.payloads import MINUS_ONE, ONE, TWO, generator

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
