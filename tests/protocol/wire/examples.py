"""Examples of every message type, with the smallest and the largest values of their fields."""

import enum
import math
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgpack
import msgspec
import pytest

from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import Member, Message, State
from gossipdp.protocol.wire.table import BUFFERS, MESSAGES

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
