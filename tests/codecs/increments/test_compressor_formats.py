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
from gossipdp.codecs.increments.kernels import LARGEST, sealed
from gossipdp.codecs.increments.payloads import bfloat16, numbers
from gossipdp.codecs.increments.sign import Sign
from gossipdp.codecs.increments.twobit import TwoBit
from tests.codecs.increments.payloads import BAD_LEVELS, MINUS_ONE, MINUS_ZERO, ONE, TWO, generator

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
    values = np.append(generator().standard_normal(500), [1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8]).astype(np.float32)
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


@pytest.mark.parametrize("name", ["topk64", "topk128", "sign", "twobit"])
def test_decoded_vector_encodes_to_the_same_payload(name: str) -> None:
    values = generator().standard_normal(9000).astype(np.float32)
    payload = bytes(COMPRESSORS[name].encode(values, seed=0))
    assert bytes(COMPRESSORS[name].encode(COMPRESSORS[name].decode(payload, 9000), seed=0)) == payload


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
