"""Hashes of a file by piece: made while it is written, and compared while it is read.

Pieces are hashed apart from each other, so several threads read and hash at once, and damage has a place in the file.
Nothing here may know what the bytes mean.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from gossipdp.runtime.files import Hex, reading

__all__ = ["PIECE", "Count", "FileRecord", "PieceHashes", "check_file", "check_length"]

PIECE: Final = 4 << 20
"""bytes read, hashed or written at a time"""
THREADS: Final = 4
"""most threads that read and hash one file; each holds one piece in memory"""

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Sink: TypeAlias = Callable[[int, memoryview], object]
"""takes the place of some bytes in the file, and the bytes, which it must not keep"""


class FileRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a file must contain."""

    bytes: Count
    piece: Count = 0
    """bytes of each piece, except that the last one may be shorter"""
    pieces: tuple[Hex, ...] = ()
    """BLAKE2b of each piece"""
    blake2b: Hex = ""
    """of the whole file, in place of pieces, up to format 2"""


class _Span(NamedTuple):
    start: int
    stop: int
    hash: str


class PieceHashes:
    """The hashes of bytes that come in order.

    Args:
        piece: bytes of a piece.
    """

    def __init__(self, piece: int) -> None:
        self._piece, self._bytes = piece, 0
        self._done: list[str] = []
        self._digest = hashlib.blake2b(digest_size=32)

    def update(self, view: memoryview) -> None:
        while view:
            part = view[: self._piece - self._bytes % self._piece]
            view = view[len(part) :]
            self._digest.update(part)
            self._bytes += len(part)
            if self._bytes % self._piece == 0:
                self._end()

    def record(self) -> FileRecord:
        """All that came, as the contents of a file."""
        if self._bytes % self._piece:
            self._end()
        return FileRecord(bytes=self._bytes, piece=self._piece, pieces=tuple(self._done))

    def _end(self) -> None:
        self._done.append(self._digest.hexdigest())
        self._digest = hashlib.blake2b(digest_size=32)


def check_length(path: Path, record: FileRecord) -> None:
    """Compare the length of a file, without reading it. Raises OSError or ValueError."""
    length = path.stat().st_size
    if length != record.bytes:
        raise ValueError(f"{path.name}: {length} bytes, {record.bytes} were written")


def check_file(
    path: Path,
    record: FileRecord,
    *,
    upto: int | None = None,
    sink: Sink | None = None,
    done: Callable[[int], object] | None = None,
) -> None:
    """Read a file once and compare its hashes.

    Args:
        upto: check only the pieces that begin before this byte; None: all.
        sink: gets all bytes, before they are checked, in any order, from several threads.
        done: told the bytes of each piece that is checked.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not what `record` says.
    """
    check_length(path, record)
    spans = [span for span in _spans(path.name, record) if upto is None or span.start < upto]
    threads = min(THREADS, len(os.sched_getaffinity(0)), len(spans))
    if not threads:
        return
    rooms: SimpleQueue[memoryview] = SimpleQueue()
    for _ in range(threads):
        rooms.put(memoryview(bytearray(min(PIECE, record.bytes))))
    with reading(path) as file, ThreadPoolExecutor(threads, "gossipdp-hash") as pool:
        for count in pool.map(partial(_check, path.name, file.fileno(), rooms, sink), spans):
            if done is not None:
                done(count)


def _spans(name: str, record: FileRecord) -> list[_Span]:
    if record.blake2b:
        return [_Span(0, record.bytes, record.blake2b)]
    starts = range(0, record.bytes, max(record.piece, 1))
    if len(starts) != len(record.pieces):
        raise ValueError(f"{name}: {len(record.pieces)} hashes for {len(starts)} pieces")
    return [
        _Span(start, min(start + record.piece, record.bytes), each)
        for start, each in zip(starts, record.pieces, strict=True)
    ]


def _check(name: str, file: int, rooms: SimpleQueue[memoryview], sink: Sink | None, span: _Span) -> int:
    digest, room = hashlib.blake2b(digest_size=32), rooms.get()
    try:
        at = span.start
        while at < span.stop:
            count = os.preadv(file, [room[: span.stop - at]], at)
            if not count:
                raise ValueError(f"{name}: it ends at byte {at}")
            digest.update(room[:count])
            if sink is not None:
                sink(at, room[:count])
            at += count
    finally:
        rooms.put(room)
    if digest.hexdigest() != span.hash:
        raise ValueError(f"{name}: bytes {span.start} to {span.stop} do not match their hash")
    return span.stop - span.start
