"""The signed content of a broadcast increment, its name, and the hash of each part.

The name is a hash of the signed fields in one fixed form, so two headers are equal exactly if their names are. The
fields include the hash of the table of parts. With the table a receiver checks each part as it comes. Nothing here has
state.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from gossipdp.errors import LocalProtocolError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import MAX_PART, MAX_PARTS, EpochDigest, Rumour

__all__ = ["Part", "digest_name", "make", "name_of", "part_hash", "table_of", "unpack_table", "void_name"]

HASH: Final = 32
"""bytes of a hash. An origin chooses its payloads, so collisions must be hard to find, not only preimages"""
_FIELDS: Final = struct.Struct(">32sIIBdQQIB32sd")
_ROW: Final = struct.Struct(f">I{HASH}s")
_MARK: Final = struct.Struct(">IBI16s")


class Part(NamedTuple):
    """Size in bytes and hash of one part."""

    size: int
    hash: bytes


def _hash(person: bytes, *pieces: Buffer) -> bytes:
    digest = hashlib.blake2b(digest_size=HASH, person=person)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def part_hash(payload: Buffer) -> bytes:
    """Hash of one part."""
    return _hash(b"gossipdp part", payload)


def name_of(rumour: Rumour, run: bytes) -> bytes:
    """The name of an increment in one run.

    Args:
        rumour: its header.
        run: name of the run; in other runs the increment does not count.
    """
    fields = _FIELDS.pack(
        rumour.origin,
        rumour.incarnation,
        rumour.epoch,
        rumour.sequence,
        rumour.weight,
        rumour.clock,
        rumour.samples,
        rumour.size,
        rumour.parts,
        rumour.root,
        rumour.length,
    )
    return _hash(b"gossipdp rumour", run, fields)


def void_name(origin: bytes, epoch: int, run: bytes) -> bytes:
    """The name of the proof that no increment of `origin` counts in this epoch."""
    return _hash(b"gossipdp void", run, origin, epoch.to_bytes(4, "big"))


def digest_name(message: EpochDigest, run: bytes) -> bytes:
    """The bytes that the sender of an EpochDigest signs."""
    marks = b"".join(_MARK.pack(*(mark.epoch, mark.stage, mark.count, mark.digest)) for mark in message.marks)
    first, number = message.first.to_bytes(4, "big"), message.number.to_bytes(8, "big")
    return _hash(b"gossipdp epochs", run, first, marks, message.base, number)


def table_of(parts: Sequence[Buffer]) -> bytes:
    """Size and hash of each part, as bytes."""
    return b"".join(_ROW.pack(memoryview(part).nbytes, part_hash(part)) for part in parts)


def unpack_table(table: Buffer, rumour: Rumour) -> list[Part] | None:
    """The parts of an increment. None if this is not its table, or the sizes are impossible."""
    if memoryview(table).nbytes != _ROW.size * rumour.parts or _hash(b"gossipdp table", table) != rumour.root:
        return None
    parts = [Part(*row) for row in _ROW.iter_unpack(table)]
    if sum(part.size for part in parts) != rumour.size or not all(1 <= part.size <= MAX_PART for part in parts):
        return None
    return parts


def make(rumour: Rumour, parts: Sequence[Buffer], run: bytes, sign: Callable[[bytes], bytes]) -> tuple[Rumour, bytes]:
    """Fill in the fields that follow from the payload, and sign.

    Args:
        rumour: a draft of the header.
        parts: the payload.
        run: name of the run.
        sign: signs bytes with this peer's key.

    Returns:
        The signed header, and the table of parts.

    Raises:
        LocalProtocolError: there are too many parts, or a part is empty or too large.
    """
    sizes = [memoryview(part).nbytes for part in parts]
    if not 1 <= len(parts) <= MAX_PARTS or not all(1 <= size <= MAX_PART for size in sizes):
        raise LocalProtocolError(f"{len(parts)} parts of up to {max(sizes, default=0)} bytes")
    table = table_of(parts)
    rumour = replace(rumour, size=sum(sizes), parts=len(parts), root=_hash(b"gossipdp table", table))
    return replace(rumour, signature=sign(name_of(rumour, run))), table
