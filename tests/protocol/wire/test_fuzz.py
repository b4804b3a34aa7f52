"""Fuzzed headers and frames are decoded as messages or refused (T9)."""

import random

import pytest

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import PROTOCOL_VERSION
from gossipdp.protocol.wire.table import MESSAGES
from tests.protocol.wire.examples import buffers, example, pack

TOKENS = (
    b"\xc0",
    b"\xc1",
    b"\xc3",
    b"\x90",
    b"\x91",
    b"\xdc\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\x80",
    b"\xdf\xff\xff\xff\xff",
)
TOKENS += (
    b"\xd9\xff",
    b"\xdb\x7f\xff\xff\xff",
    b"\xc4\x20",
    b"\xc6\xff\xff\xff\xff",
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + b"\0" * 7,
)
TOKENS += (
    b"\xcb\x7f\xf8" + b"\0" * 6,
    b"\xca\xff\x80\0\0",
    b"\xc7\x08\xff",
    b"\xd6\xff",
    b"\xff",
    b"\x7f",
    b"\xa2\xc3\x28",
)


def mutated(generator: random.Random, header: bytes) -> bytes:
    changed = bytearray(header)
    for _ in range(generator.randrange(1, 4)):
        at = int(generator.random() * (len(changed) + 1))
        what = generator.random()
        if what < 0.4 and at < len(changed):
            changed[at] = int(generator.random() * 256)
        elif what < 0.6:
            changed[at:at] = TOKENS[int(generator.random() * len(TOKENS))]
        elif what < 0.8:
            token = TOKENS[int(generator.random() * len(TOKENS))]
            changed[at : at + len(token)] = token
        elif what < 0.9:
            del changed[at : at + int(generator.random() * 8)]
        else:
            changed = changed[:at] + changed
    return bytes(changed)


def fuzz_headers(count: int, seed: int) -> int:
    """Decode `count` mutated headers; returns how many were still messages. Anything but a refusal propagates."""
    generator = random.Random(seed)
    seeds = [
        (bytes(wire.encode(example(kind, largest), buffers(kind))[0]), buffers(kind))
        for kind in MESSAGES.values()
        for largest in (False, True)
    ]
    understood = 0
    for number in range(count):
        header, raw = seeds[number % len(seeds)]
        try:
            message, _ = wire.decode([mutated(generator, header), *raw])
        except RemoteProtocolError:
            continue
        understood += 1
        if number % 16 == 0:  # what was understood is inside its limits, or it could not be said again
            assert wire.decode(wire.encode(message, raw))[0] == message
    return understood


def fuzz_frame_lists(count: int, seed: int) -> int:
    generator = random.Random(seed)
    headers = [bytes(wire.encode(example(kind), buffers(kind))[0]) for kind in MESSAGES.values()]
    understood = 0
    for _ in range(count):
        frames = [
            generator.randbytes(int(generator.random() ** 4 * 300)) for _ in range(int(generator.random() ** 3 * 70))
        ]
        what = generator.random()
        if frames and what < 0.3:
            frames[0] = generator.choice(headers)
        elif frames and what < 0.5:
            frames[0] = pack([PROTOCOL_VERSION, generator.randrange(len(MESSAGES) + 2)])[:-1] + frames[0]
        try:
            wire.decode(frames)
        except RemoteProtocolError:
            continue
        understood += 1
    return understood


@pytest.mark.campaign("T9")
@pytest.mark.parametrize("headers", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_mutated_headers_are_messages_or_refused(headers: int) -> None:
    understood = fuzz_headers(headers, seed=1)
    assert headers // 100 < understood < headers // 2


@pytest.mark.campaign("T9")
@pytest.mark.parametrize("lists", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_random_frame_lists_are_messages_or_refused(lists: int) -> None:
    understood = fuzz_frame_lists(lists, seed=2)
    assert 0 < understood < lists // 2
