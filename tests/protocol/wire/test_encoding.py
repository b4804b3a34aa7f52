"""The frames of every message: round trip, the limit of every field, and fuzz (safety.md, T9)."""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgpack
import msgspec
import numpy as np
import pytest

from gossipdp.errors import LocalProtocolError, RemoteProtocolError
from gossipdp.protocol.membership.broadcasts import ROOM, record_size
from gossipdp.protocol.membership.dissemination import MAX_REPORTS
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import (
    MAX_BUFFER,
    MAX_FRAMES,
    MAX_HEADER,
    PROTOCOL_VERSION,
    Data,
    Member,
    Message,
    Ping,
    Progress,
    State,
)
from gossipdp.protocol.wire.table import BUFFERS, DATA_LANE, MESSAGES

PEER = bytes(range(32))
MEMBER = Member(PEER, "name-of-a-peer", "host.example:4710", 7, 1, State.SUSPECT, 1, "0.1.0")
IDS = {kind: number for number, kind in MESSAGES.items()}
KINDS = pytest.mark.parametrize("kind", MESSAGES.values(), ids=lambda kind: kind.__name__)


def limits(hint: Any) -> tuple[Any, msgspec.Meta]:
    """A field's bare type and its limits."""
    if get_origin(hint) is Annotated:
        bare, *metas = get_args(hint)
        return bare, metas[0]
    return hint, msgspec.Meta()


def sample(hint: Any, largest: bool) -> Any:
    """A legal value of a field: the smallest or the largest there is."""
    if type(None) in get_args(hint):
        return sample(get_args(hint)[0], largest) if largest else None
    bare, meta = limits(hint)
    if isinstance(bare, type) and issubclass(bare, enum.IntEnum):
        return max(bare) if largest else min(bare)
    if bare is bool:
        return largest
    if bare is int:
        return int((meta.le if largest else meta.ge) or 0)
    if bare is float:
        return (math.inf if meta.le is None else float(meta.le)) if largest else float(meta.ge or 0)
    if bare in (str, bytes):
        length = (meta.max_length if largest else meta.min_length) or 0
        return "é" * length if bare is str else b"\xff" * length
    if get_origin(bare) is tuple:
        item = get_args(bare)[0]
        length = (meta.max_length if largest else meta.min_length) or 0
        return tuple(sample(item, largest) for _ in range(length))
    if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
        return bare(*(sample(hint, largest) for hint in hints(bare).values()))
    raise AssertionError(f"no sample for {hint}")


def hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def example(kind: type[Message], largest: bool = True) -> Message:
    """A message with its fields at their limits. Records are ordinary ones, because they share the header's 4 KiB."""
    values = {name: sample(hint, largest) for name, hint in hints(kind).items()}
    if largest and "members" in values:
        values["members"] = (MEMBER,) * 3
    return kind(**values)


def buffers(kind: type[Message], most: bool = False) -> list[bytes]:
    low, high = BUFFERS.get(kind, (0, 0))
    return [b"\x00" * 10] * (high if most else low)


def pack(fields: Any) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return packed


def fields_of(message: Message) -> list[Any]:
    header = wire.encode(message, buffers(type(message)))[0]
    fields: list[Any] = msgpack.unpackb(header, use_list=True)
    return fields


# -- what is allowed ---------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("largest", [False, True])
def test_round_trip(kind: type[Message], largest: bool) -> None:
    message, raw = example(kind, largest), buffers(kind, most=largest)
    frames = wire.encode(message, raw)
    assert len(frames[0]) <= MAX_HEADER
    assert wire.decode(frames) == (message, raw)
    assert wire.decode([memoryview(frame) for frame in frames])[0] == message


def test_number_that_numpy_computed_is_a_number() -> None:
    told = Data(1, 2, 3, np.float64(0.1))
    assert wire.encode(told, (b"", b"")) == wire.encode(Data(1, 2, 3, 0.1), (b"", b""))


def test_value_of_a_wrong_type_is_the_callers_bug() -> None:
    with pytest.raises(TypeError, match="cannot encode"):
        wire.encode(Data(1, 2, 3, 1j), (b"", b""))


def test_ids_are_dense_and_every_data_lane_type_has_one() -> None:
    assert list(MESSAGES) == list(range(1, len(MESSAGES) + 1))
    assert set(BUFFERS) | DATA_LANE <= set(MESSAGES.values())


def test_the_widest_ordinary_news_and_reports_fit_the_header() -> None:
    member = Member(PEER, "n" * 48, "a" * 80, 0xFFFF_FFFF, 0xFFFF_FFFF, State.ALIVE, 255, "s" * 16)
    progress = Progress(PEER, 1 << 62, 1 << 62, 1 << 62, 0xFFFF_FFFF)
    message = Ping(1, (member,) * (ROOM // record_size(member)), (progress,) * MAX_REPORTS, 1.0)
    assert wire.decode(wire.encode(message))[0] == message


def test_buffers_come_out_uncopied() -> None:
    kind = next(iter(BUFFERS))
    frame = bytearray(b"12345678")
    _, out = wire.decode(wire.encode(example(kind), [memoryview(frame)]))
    frame[0] = ord("x")
    assert bytes(out[0]) == b"x2345678"


# -- what is not -------------------------------------------------------------------------------------------------


def trespasses(hint: Any) -> Iterator[Any]:
    """Values just past the limits of a field, and of other types."""
    if type(None) in get_args(hint):
        yield from (bad for bad in trespasses(get_args(hint)[0]) if bad is not None)
        return
    bare, meta = limits(hint)
    if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
        yield from (None, [], b"", 1)
        return
    if get_origin(bare) is tuple:
        yield from (None, 0, b"")
        item = get_args(bare)[0]
        if meta.max_length is not None and meta.max_length < 32:
            yield [0 for _ in range(meta.max_length + 1)]
        if limits(item)[0] is int:
            yield from ([bad] for bad in trespasses(item))
            yield [0] * (meta.max_length + 1)
        if meta.min_length:
            yield []
        return
    yield from (None, [], [[[[]]]])
    if bare in (int, float) or (isinstance(bare, type) and issubclass(bare, State)):
        yield from ("1", b"1", True) if bare is not bool else ()
    if isinstance(bare, type) and issubclass(bare, State):
        yield from (4, -1)
    if bare is bool:
        yield from (0, 2, "true")
    if bare is int:
        yield 1.5
        yield meta.ge - 1
        yield meta.le + 1
    if bare is float:
        yield math.nan
        yield meta.ge - 0.01
        if meta.le is not None:
            yield meta.le + max(0.01, meta.le)
    if bare is bytes:
        yield from ("text", b"\0" * (meta.max_length + 1), b"\0" * (meta.min_length - 1))
    if bare is str:
        yield from (b"bytes", 1, "x" * (meta.max_length + 1))
        yield from ("a\nb", "a\x1b[2J", "a\r", "\x9bm", "a\u202eb", "a\n", "\x00", "\u2028")


@KINDS
def test_no_field_past_its_limit_is_decoded(kind: type[Message]) -> None:
    good = fields_of(example(kind))
    raw = buffers(kind)
    assert wire.decode([pack(good), *raw])[0] == example(kind)
    for place, (name, hint) in enumerate(hints(kind).items(), start=2):
        for bad in trespasses(hint):
            try:
                wire.decode([pack([*good[:place], bad, *good[place + 1 :]]), *raw])
            except RemoteProtocolError:
                continue
            pytest.fail(f"{kind.__name__}.{name} took {bad!r}")


@pytest.mark.parametrize(("record", "field"), [(MEMBER, "members"), (Progress(PEER, 1, 2, 3, 4), "progress")])
def test_no_record_past_its_limit_is_decoded(record: msgspec.Struct, field: str) -> None:
    good = list(msgspec.structs.astuple(record))
    good = [int(value) if isinstance(value, State) else value for value in good]
    for place, hint in enumerate(hints(type(record)).values()):
        for bad in trespasses(hint):
            broken = [*good[:place], bad, *good[place + 1 :]]
            members, progress = ([broken], []) if field == "members" else ([], [broken])
            with pytest.raises(RemoteProtocolError):
                wire.decode([pack([PROTOCOL_VERSION, IDS[Ping], 1, members, progress])])


@KINDS
def test_wrong_number_of_buffers_is_refused_both_ways(kind: type[Message]) -> None:
    low, high = BUFFERS.get(kind, (0, 0))
    message = example(kind)
    header = wire.encode(message, buffers(kind))[0]
    for count in {low - 1, high + 1} - {-1}:
        with pytest.raises(RemoteProtocolError):
            wire.decode([header, *[b""] * count])
        with pytest.raises(LocalProtocolError):
            wire.encode(message, [b""] * count)


@KINDS
def test_a_field_too_many_or_too_few_is_refused(kind: type[Message]) -> None:
    good, raw = fields_of(example(kind)), buffers(kind)
    required = 2 + sum(field.required for field in msgspec.structs.fields(kind))
    with pytest.raises(RemoteProtocolError):
        wire.decode([pack([*good, 0]), *raw])
    with pytest.raises(RemoteProtocolError):
        wire.decode([pack(good[: required - 1]), *raw])


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        pack(1),
        pack([]),
        pack([PROTOCOL_VERSION]),
        pack([PROTOCOL_VERSION + 1, 1, 1, [], []]),
        pack([0, 1, 1, [], []]),
        pack([True, 1, 1, [], []]),
        pack([PROTOCOL_VERSION, 0]),
        pack([PROTOCOL_VERSION, len(MESSAGES) + 1]),
        pack([PROTOCOL_VERSION, True, 1]),
        pack([PROTOCOL_VERSION, [1], 1]),
        pack([PROTOCOL_VERSION, {}]),
        pack({1: 1}),
        pack([1, 1, 1, [], []]) + b"\x00",
        pack([1, 1, 1 << 63, [], []]),
        pack([1, 1, nested(5), [], []]),
        pack([1, 1, nested(500), [], []]),
        b"\x91" * 4096,
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x94\x01\x01\xc6\xff\xff\xff\xff",
        b"\xc7\xff\x01" + b"\0" * 255,
        b"\x94\x01\x01\xd6\xff\x00\x00\x00\x00",
        b"\x93\x01\x01\xa2\xc3\x28",
        pack([1, 1, 1, [], []]) + b"\0" * MAX_HEADER,
    ],
    ids=lambda header: f"{len(header)}-{header[:6].hex()}",
)
def test_bombs_and_other_headers_are_refused(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        wire.decode([header])


def test_too_many_frames_or_too_large_ones_are_refused_both_ways() -> None:
    header = wire.encode(Ping(1))[0]
    for frames in ([], [header] * (MAX_FRAMES + 1)):
        with pytest.raises(RemoteProtocolError):
            wire.decode(frames)
    kind = next(kind for kind, (_, most) in BUFFERS.items() if most == 1)
    large = memoryview(bytearray(MAX_BUFFER + 1))
    message = example(kind)
    with pytest.raises(RemoteProtocolError):
        wire.decode([wire.encode(message, [b""])[0], large])
    with pytest.raises(LocalProtocolError):
        wire.encode(message, [large])
    assert wire.decode(wire.encode(message, [large[:-1]]))[0] == message


FUZZ_HEADERS, FUZZ_FRAMES = 1_000_000, 100_000

# -- fuzz --------------------------------------------------------------------------------------------------------

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
def test_a_million_mutated_headers_are_messages_or_refused() -> None:
    understood = fuzz_headers(FUZZ_HEADERS, seed=1)
    assert FUZZ_HEADERS // 100 < understood < FUZZ_HEADERS // 2


@pytest.mark.campaign("T9")
def test_random_frame_lists_are_messages_or_refused() -> None:
    understood = fuzz_frame_lists(FUZZ_FRAMES, seed=2)
    assert 0 < understood < FUZZ_FRAMES // 2
