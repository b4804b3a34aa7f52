"""Encoding: every message type survives the way there and back, and nothing past a limit is decoded."""

import math
from collections.abc import Iterator
from typing import Any, get_args, get_origin

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
    UNSIGNED,
    Data,
    Member,
    Message,
    Ping,
    Progress,
    State,
)
from gossipdp.protocol.wire.table import BUFFERS, DATA_LANE, MESSAGES, RESERVED
from tests.protocol.wire.examples import IDS, KINDS, MEMBER, PEER, buffers, example, fields_of, hints, limits, pack

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


def test_ids_are_dense_but_for_those_of_removed_messages_and_every_data_lane_type_has_one() -> None:
    assert sorted(MESSAGES.keys() | RESERVED) == list(range(1, len(MESSAGES) + len(RESERVED) + 1))
    assert set(BUFFERS) | DATA_LANE <= set(MESSAGES.values())


def test_the_widest_ordinary_news_and_reports_fit_the_header() -> None:
    member = Member(PEER, "n" * 48, "a" * 80, 0xFFFF_FFFF, 0xFFFF_FFFF, State.ALIVE, 255, "s" * 16)
    progress = Progress(PEER, 1 << 62, 1 << 62, 1 << 62, 0xFFFF_FFFF, UNSIGNED, 1.5, 1.25)
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
        yield meta.ge - max(0.01, abs(meta.ge))
        if meta.le is not None:
            yield meta.le + max(0.01, meta.le)
    if bare is bytes:
        yield from ("text", b"\0" * (meta.max_length + 1))
        if meta.min_length:
            yield b"\0" * (meta.min_length - 1)
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


@pytest.mark.parametrize(
    ("record", "field"), [(MEMBER, "members"), (Progress(PEER, 1, 2, 3, 4, UNSIGNED, 1.5, 1.25), "progress")]
)
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
