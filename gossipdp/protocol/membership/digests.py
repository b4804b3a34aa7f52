"""Digests of a view, so that two views can be compared: buckets first, then the marks of single records.

Members are ordered by id, and the space of ids is cut into `PLACES` equal parts. Each record has a mark of four bytes.
A bucket of a digest covers a run of neighbouring places with the sum of all marks there. A list names the marks in some
runs one by one. Both name the places that they cover, so they may have any size.

Two records have the same mark with probability 2^-32. A peer that lacks one of them then hears it only by the pings of
its member.

References: Demers et al., "Epidemic algorithms for replicated database maintenance" (1987), section 1.3, for checksums
compared before databases are; Meyer, "Range-based set reconciliation" (SRDS 2023, arXiv 2212.13567), for runs of the
ordered set.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from gossipdp.protocol.wire.messages import DIGEST_BYTES, MAX_DIGEST, Member

__all__ = ["COARSE", "FINE", "MAX_MARKS", "PLACES", "Digests", "Run", "first_of", "pack", "unpack"]

PLACES: Final = 4096
FINE: Final = 512
"""buckets of the largest digest, 2 KiB; smaller networks use about one per member"""
COARSE: Final = 16
"""buckets of a digest between views that have little in common"""
MAX_MARKS: Final = MAX_DIGEST * DIGEST_BYTES // 4
"""marks in one list; the head of a run takes the space of two"""
_HEAD_MARKS: Final = 2
_HEAD: Final = struct.Struct("<HHI")
"""head of a run in a list: first place, number of places, number of marks"""
_MASK: Final = 0xFFFF_FFFF


class Run(NamedTuple):
    """Neighbouring places, and marks of records in them."""

    first: int
    places: int
    marks: tuple[int, ...]


class Digests:
    """The digest of one view, kept up to date with every change, so that its cost does not grow with the network.

    Views with the same records have the same digest. Different ones agree in a bucket with probability 2^-32.

    Args:
        ids: ids of all known members, sorted; not all of them need a record here.
    """

    def __init__(self, ids: Sequence[bytes]) -> None:
        self._ids = ids
        self._marks: dict[bytes, int] = {}
        self._sums = array("I", bytes(4 * FINE))

    def put(self, record: Member) -> None:
        """Add `record`, or replace the one of its member."""
        peer = record.id
        mark, before = _mark(peer, record.incarnation, record.refutation, record.state), self._marks.get(peer, 0)
        self._marks[peer] = mark
        bucket = _place(peer) // (PLACES // FINE)
        self._sums[bucket] = (self._sums[bucket] + mark - before) & _MASK

    def drop(self, peer: bytes) -> None:
        """Leave `peer` out of digests and lists."""
        mark = self._marks.pop(peer, None)
        if mark is not None:
            bucket = _place(peer) // (PLACES // FINE)
            self._sums[bucket] = (self._sums[bucket] - mark) & _MASK

    def members(self) -> list[bytes]:
        """Members with a record here, sorted."""
        return self._between(0, PLACES)

    # -- digests ------------------------------------------------------------------------------------------------

    def digest(self, *, coarse: bool = False) -> tuple[bytes, ...]:
        """The digest, with about one bucket per member; few with `coarse`, for views that differ a lot."""
        most = COARSE if coarse else FINE
        count = min(most, max(8, 1 << (len(self._marks) - 1).bit_length()))
        return _parts(struct.pack(f"<{count}I", *self._folded(count)))

    def differing(self, digest: tuple[bytes, ...]) -> list[tuple[int, int]]:
        """Runs of places (first, end) in which the view behind `digest` differs; none if it is malformed."""
        packed = b"".join(digest)
        count = len(packed) // 4
        if len(packed) % 4 or count & (count - 1) or not 1 <= count <= FINE:
            return []
        span, runs = PLACES // count, list[tuple[int, int]]()
        for place, (theirs, ours) in enumerate(
            zip(struct.unpack(f"<{count}I", packed), self._folded(count), strict=True)
        ):
            if theirs == ours:
                continue
            if runs and runs[-1][1] == place * span:
                runs[-1] = (runs[-1][0], (place + 1) * span)
            else:
                runs.append((place * span, (place + 1) * span))
        return runs

    def _folded(self, count: int) -> list[int]:
        """The sums of `count` buckets, each folded from several that are kept."""
        span, sums = FINE // count, self._sums
        return list(sums) if span == 1 else [sum(sums[at : at + span]) & _MASK for at in range(0, FINE, span)]

    # -- lists --------------------------------------------------------------------------------------------------

    def listed(self, runs: list[tuple[int, int]], start: int, most: int = MAX_MARKS) -> list[Run]:
        """The marks in as many of the `runs` as fit one list, beginning `start` places into them and wrapping around.

        With random starts, all marks are listed sooner or later.
        """
        made: list[Run] = []
        room = most
        for first, end in _turned(runs, start):
            fits = room - _HEAD_MARKS
            if fits < 0:
                break
            peers = self._between(first, end)
            whole = len(peers) <= fits
            if not whole:
                # A mark that a list lacks counts as unknown here, so no place is divided. A single place fills a list
                # only if ids were chosen to do so.
                end = _place(peers[fits])
                if end == first and not made:
                    peers, end = peers[:fits], first + 1
                else:
                    peers = [peer for peer in peers if _place(peer) < end]
            if end > first:
                made.append(Run(first, end - first, tuple(map(self._marks.__getitem__, peers))))
            if not whole:
                break
            room = fits - len(peers)
        return made

    def compare(self, theirs: Iterable[Run]) -> tuple[list[bytes], list[Run]]:
        """Compare with the list of another view.

        Returns:
            The members whose records it lacks, and the runs with marks that are unknown here.
        """
        gives: dict[bytes, None] = {}
        wants = []
        for run in theirs:
            peers = self._between(run.first, run.first + run.places)
            marks, mine = set(run.marks), set(map(self._marks.__getitem__, peers))
            if not mine <= marks:
                gives |= dict.fromkeys(peer for peer in peers if self._marks[peer] not in marks)
            lacks = tuple(mark for mark in run.marks if mark not in mine)
            if lacks:
                wants.append(Run(run.first, run.places, lacks))
        return list(gives), wants

    def named(self, wanted: Iterable[Run]) -> list[bytes]:
        """Members whose records have the `wanted` marks."""
        peers: dict[bytes, None] = {}
        for run in wanted:
            marks = set(run.marks)
            for peer in self._between(run.first, run.first + run.places):
                if self._marks[peer] in marks:
                    peers[peer] = None
        return list(peers)

    def _between(self, first: int, end: int) -> list[bytes]:
        ids = self._ids
        start = bisect_left(ids, _least(first)) if first else 0
        stop = bisect_left(ids, _least(end), start) if end < PLACES else len(ids)
        peers = list(ids[start:stop])
        return peers if len(ids) == len(self._marks) else [peer for peer in peers if peer in self._marks]


def first_of(runs: Iterable[Run], most: int) -> list[Run]:
    """The first `most` marks of `runs`."""
    some = []
    for run in runs:
        if most <= 0:
            break
        some.append(Run(run.first, run.places, run.marks[:most]))
        most -= len(run.marks)
    return some


def pack(runs: Iterable[Run]) -> tuple[bytes, ...]:
    """Encode a list as a message's field."""
    return _parts(
        b"".join(_HEAD.pack(*run[:2], len(run.marks)) + struct.pack(f"<{len(run.marks)}I", *run.marks) for run in runs)
    )


def unpack(parts: tuple[bytes, ...]) -> list[Run]:
    """Decode what `pack` wrote; an empty list if it is malformed."""
    packed, at, listed = b"".join(parts), 0, 0
    runs: list[Run] = []
    while at < len(packed):
        if len(packed) - at < _HEAD.size:
            return []
        first, places, count = _HEAD.unpack_from(packed, at)
        at += _HEAD.size
        if not 1 <= places <= PLACES - first or len(packed) - at < 4 * count:
            return []
        # A list that names a place twice would double the work on it.
        covered = (1 << places) - 1 << first
        if listed & covered:
            return []
        listed |= covered
        runs.append(Run(first, places, struct.unpack_from(f"<{count}I", packed, at)))
        at += 4 * count
    return runs


def _turned(runs: list[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    for number, (first, end) in enumerate(runs):
        if start < end - first:
            cut = first + start
            before = [(first, cut)] if cut > first else []
            return [(cut, end), *runs[number + 1 :], *runs[:number], *before]
        start -= end - first
    return runs


def _parts(packed: bytes) -> tuple[bytes, ...]:
    return tuple(packed[start : start + DIGEST_BYTES] for start in range(0, len(packed), DIGEST_BYTES))


def _place(peer: bytes) -> int:
    return peer[0] << 4 | peer[1] >> 4


def _least(place: int) -> bytes:
    """The lowest possible id in `place`."""
    return bytes((place >> 4, (place & 15) << 4))


@lru_cache(maxsize=1 << 15)
def _mark(peer: bytes, incarnation: int, refutation: int, state: int) -> int:
    text = b"%b %d %d %d" % (peer, incarnation, refutation, state)
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")
