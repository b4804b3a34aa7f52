"""Turns messages into frames, and frames into messages.

Frame 0 is a msgpack array ``[version, type id, fields...]`` of at most 4 KiB; the frames behind it are raw buffers,
never parsed here. The version is the oldest spoken one that has the message, so peers of that version read it, too.
`decode` returns a message or raises `RemoteProtocolError`, whatever the bytes are. It allocates at most a small
multiple of the header's size. No vector is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgpack
import msgspec

from gossipdp.errors import LocalProtocolError, RemoteProtocolError
from gossipdp.protocol.wire.messages import (
    MAX_BUFFER,
    MAX_FRAMES,
    MAX_HEADER,
    OLDEST_VERSION,
    PROTOCOL_VERSION,
    Message,
)
from gossipdp.protocol.wire.table import BUFFERS, MESSAGES, since

Buffer: TypeAlias = bytes | bytearray | memoryview
"""A contiguous object with the buffer protocol."""

_IDS = {kind: number for number, kind in MESSAGES.items()}
_LIMITS = {
    "max_str_len": 256,
    "max_bin_len": 256,
    "max_array_len": 64,
    "max_map_len": 0,
    "max_ext_len": 0,
}
_MAX_DEPTH = 4


def _plain(value: object) -> float | int:
    """Turn a number of a subclass, such as np.float64, into the plain type that msgspec takes."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    raise TypeError(f"cannot encode {type(value)}")


_pack = msgspec.msgpack.Encoder(enc_hook=_plain).encode


def encode(message: Message, buffers: Sequence[Buffer] = ()) -> list[Buffer]:
    """Encode `message`.

    Returns:
        Its frames: the header, then `buffers` as they are.

    Raises:
        LocalProtocolError: the message breaks a limit (a bug in the caller).
    """
    header = _pack((since(type(message)), _IDS[type(message)], *msgspec.structs.astuple(message)))
    if len(header) > MAX_HEADER:
        raise LocalProtocolError(f"{type(message).__name__}: header of {len(header)} bytes, limit {MAX_HEADER}")
    _check_buffers(type(message), buffers, LocalProtocolError)
    return [header, *buffers]


def decode(frames: Sequence[Buffer]) -> tuple[Message, list[Buffer]]:
    """Decode `frames`.

    Returns:
        The message and the raw buffers behind it.

    Raises:
        RemoteProtocolError: the frames break a limit, or hold no message of the versions that this peer speaks.
    """
    if not 1 <= len(frames) <= MAX_FRAMES:
        raise RemoteProtocolError(f"{len(frames)} frames, limit {MAX_FRAMES}")
    header, *buffers = frames
    if memoryview(header).nbytes > MAX_HEADER:
        raise RemoteProtocolError(f"header of {memoryview(header).nbytes} bytes, limit {MAX_HEADER}")
    try:
        fields = msgpack.unpackb(header, use_list=False, raw=False, strict_map_key=True, **_LIMITS)
    except Exception as error:  # msgpack raises ValueError, its own tree, UnicodeDecodeError, RecursionError ...
        raise RemoteProtocolError(f"header is not msgpack: {type(error).__name__}") from None
    if not isinstance(fields, tuple) or len(fields) < 2 or _depth(fields) > _MAX_DEPTH:
        raise RemoteProtocolError("header is not an array of version, type and fields")
    version, number, *rest = fields
    if type(version) is not int or not OLDEST_VERSION <= version <= PROTOCOL_VERSION:
        raise RemoteProtocolError(f"protocol version {version!r:.20}, here {OLDEST_VERSION} to {PROTOCOL_VERSION}")
    kind = MESSAGES.get(number) if type(number) is int else None
    if kind is None or version < since(kind):
        raise RemoteProtocolError(f"unknown message type {number!r:.20}")
    try:
        message = msgspec.convert(rest, kind, strict=True, builtin_types=(bytes,))  # no base64 text for bytes
    except (msgspec.ValidationError, OverflowError, ValueError) as error:
        raise RemoteProtocolError(f"{kind.__name__}: {error!s:.120}") from None
    _check_buffers(kind, buffers, RemoteProtocolError)
    return message, buffers


def _check_buffers(kind: type[Message], buffers: Sequence[Buffer], error: type[Exception]) -> None:
    least, most = BUFFERS.get(kind, (0, 0))
    if not least <= len(buffers) <= most:
        raise error(f"{kind.__name__}: {len(buffers)} buffers, allowed {least} to {most}")
    for buffer in buffers:
        if memoryview(buffer).nbytes > MAX_BUFFER:
            raise error(f"{kind.__name__}: buffer of {memoryview(buffer).nbytes} bytes, limit {MAX_BUFFER}")


def _depth(fields: tuple[object, ...]) -> int:
    """Levels of nested tuples, counted to one past the limit."""
    layer, level = [fields], 0
    while layer and level <= _MAX_DEPTH:
        layer, level = [item for part in layer for item in part if isinstance(item, tuple)], level + 1
    return level
