"""What an origin signs of a rumour, and what follows from it: the rumour's name, and the hash of each part.

The name is a hash of the signed fields in one fixed form, so two rumours are the same exactly if their names are. The
fields hold the hash of the parts' table; with the table, each part can be checked by itself as it comes. Nothing here
has a state.
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
"""an origin chooses both of two payloads, so their hashes must be hard to make collide, not only to invert"""
_FIELDS: Final = struct.Struct(">32sIIBdQQIB32sd")
_ROW: Final = struct.Struct(f">I{HASH}s")
_MARK: Final = struct.Struct(">IBI16s")


class Part(NamedTuple):
    size: int
    hash: bytes


def _hash(person: bytes, *pieces: Buffer) -> bytes:
    digest = hashlib.blake2b(digest_size=HASH, person=person)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def part_hash(payload: Buffer) -> bytes:
    return _hash(b"gossipdp part", payload)


def name_of(rumour: Rumour, run: bytes) -> bytes:
    """`run` names the run, in which alone the rumour counts."""
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
    """Stands in an epoch's set for the proof that nothing of `origin` counts in it."""
    return _hash(b"gossipdp void", run, origin, epoch.to_bytes(4, "big"))


def digest_name(message: EpochDigest, run: bytes) -> bytes:
    """What the sender of an EpochDigest signs."""
    marks = b"".join(_MARK.pack(*(mark.epoch, mark.stage, mark.count, mark.digest)) for mark in message.marks)
    first, number = message.first.to_bytes(4, "big"), message.number.to_bytes(8, "big")
    return _hash(b"gossipdp epochs", run, first, marks, message.base, number)


def table_of(parts: Sequence[Buffer]) -> bytes:
    return b"".join(_ROW.pack(memoryview(part).nbytes, part_hash(part)) for part in parts)


def unpack_table(table: Buffer, rumour: Rumour) -> list[Part] | None:
    """The parts that `rumour` is made of; None if this is not its table, or it is one that cannot be."""
    if memoryview(table).nbytes != _ROW.size * rumour.parts or _hash(b"gossipdp table", table) != rumour.root:
        return None
    parts = [Part(*row) for row in _ROW.iter_unpack(table)]
    if sum(part.size for part in parts) != rumour.size or not all(1 <= part.size <= MAX_PART for part in parts):
        return None
    return parts


def make(rumour: Rumour, parts: Sequence[Buffer], run: bytes, sign: Callable[[bytes], bytes]) -> tuple[Rumour, bytes]:
    """`rumour` with all that follows from its payload filled in and signed, and the table.

    Raises:
        LocalProtocolError: parts too many, too large or empty.
    """
    sizes = [memoryview(part).nbytes for part in parts]
    if not 1 <= len(parts) <= MAX_PARTS or not all(1 <= size <= MAX_PART for size in sizes):
        raise LocalProtocolError(f"{len(parts)} parts of up to {max(sizes, default=0)} bytes")
    table = table_of(parts)
    rumour = replace(rumour, size=sum(sizes), parts=len(parts), root=_hash(b"gossipdp table", table))
    return replace(rumour, signature=sign(name_of(rumour, run))), table
