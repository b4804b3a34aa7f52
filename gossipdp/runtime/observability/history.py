"""The history of a run: one record about every ten seconds and one at the daemon's end, in HOME/history.jsonl.

The newest records are kept as they come. Of older ones every second is dropped each time that a bound is reached, so a
long run keeps its whole course, ever coarser. The file holds JSON lines: a reader that meets a torn line skips it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gossipdp.protocol.wire.messages import short
from gossipdp.runtime import plain_json
from gossipdp.runtime.descriptors import spare
from gossipdp.runtime.files import read_bounded
from gossipdp.runtime.observability.member_rows import finite
from gossipdp.runtime.observability.status import Status

__all__ = ["FILE", "History", "MemberRecord", "Record", "read"]

FILE: Final = "history.jsonl"
EVERY: Final = 10.0
"""seconds between two records"""
MOST: Final = 2048
"""records kept"""
MIXED: Final = ("done", "cut")
"""results of exchanges that mixed something"""
MEMBERS: Final = 32
"""members in one record, at most"""
LARGEST: Final = 16 << 20
"""bytes of a file that is read"""
AGAIN: Final = 300.0
"""seconds until a disk that refused a record is tried again"""


class MemberRecord(msgspec.Struct, frozen=True, array_like=True):
    """What one member had reported. id: start of its key's id, as in the log. samples: None in records without them."""

    id: str
    name: str
    steps: int
    rounds: int
    loss: float | None = None
    samples: int | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a peer and its network.

    time: seconds since 1970.
    life: incarnation of the daemon; what is counted, but for rounds and stall, counts from its start.
    distance: consensus distance, RMS per parameter. ratio: consensus ratio.
    stall: seconds that this training process has spent in gossipdp.
    sent, received: bytes.
    exchanges: that mixed something. failed: that mixed nothing.
    exchanged: bytes received in exchanges. formula: those that their codecs' formulas give. parameters: mixed in them.
    alive: live members, this peer included.
    """

    time: float
    life: int = 0
    round: int = 0
    steps: int = 0
    samples: int = 0
    loss: float | None = None
    eval_loss: float | None = None
    distance: float | None = None
    ratio: float | None = None
    stall: float = 0.0
    sent: int = 0
    received: int = 0
    exchanges: int = 0
    failed: int = 0
    exchanged: int = 0
    formula: float = 0.0
    parameters: float = 0.0
    alive: int = 1
    members: tuple[MemberRecord, ...] = ()


_encoder: Final = msgspec.json.Encoder()


class History:
    """Records of one peer, in memory and in a file.

    Args:
        path: the file; None keeps them in memory alone.
        wall: the system clock, in seconds since 1970.
    """

    def __init__(self, path: Path | None, wall: Callable[[], float] = time.time) -> None:
        self._path, self._wall = path, wall
        self._records = read(path)[-MOST:] if path is not None else []
        self._due = self._broken_until = -math.inf

    @property
    def records(self) -> Sequence[Record]:
        """The records, the oldest first."""
        return self._records

    def look(self, status: Status, now: float, *, last: bool = False) -> str:
        """Add a record if it is due. Returns why the disk refused it, or "".

        Args:
            last: the daemon ends, so a record is due.
        """
        if now < self._due and not last:
            return ""
        self._due = now + EVERY
        record = _record(status, self._wall())
        self._records.append(record)
        thinned = len(self._records) > MOST
        if thinned:
            newest = MOST // 4
            self._records = self._records[:-newest:2] + self._records[-newest:]
        if self._path is None or now < self._broken_until:
            return ""
        try:
            self._rewrite(self._path) if thinned else _append(self._path, record)
        except OSError as error:
            self._broken_until = now + AGAIN
            return f"the run's history is not kept: {self._path}: {error.strerror}"
        return ""

    def _rewrite(self, path: Path) -> None:
        partial = path.with_suffix(".partial")
        with spare(), open(partial, "wb") as file:
            file.write(b"".join(_encoder.encode(record) + b"\n" for record in self._records))
        partial.replace(path)


def read(path: Path) -> list[Record]:
    """The records of a file, the oldest first; none if there is no file. Damaged lines are left out."""
    try:
        lines = read_bounded(path, LARGEST).splitlines()
    except (OSError, ValueError):
        return []
    records = []
    for line in lines:
        try:
            records.append(plain_json.decode(line, Record))
        except ValueError:
            continue
    return records


def _append(path: Path, record: Record) -> None:
    with spare(), open(path, "ab") as file:
        file.write(_encoder.encode(record) + b"\n")


def _record(status: Status, wall: float) -> Record:
    view, counters = status.view, status.transport.counters
    names = {member.id: member.name for member in view.members.values()}
    reports = [report for report in view.reports if report.id in names]
    reports.sort(key=lambda report: (report.id != view.id, names[report.id]))
    mixed = sum(status.exchanges.get(result, 0) for result in MIXED)
    return Record(
        time=wall,
        life=view.me.incarnation,
        round=status.round,
        steps=status.steps,
        samples=status.samples,
        loss=finite(status.loss),
        eval_loss=finite(status.eval_loss),
        distance=finite(status.consensus_distance),
        ratio=finite(view.consensus_ratio),
        stall=status.stall_seconds,
        sent=sum(counters.sent_bytes.values()),
        received=sum(counters.received_bytes.values()),
        exchanges=mixed,
        failed=sum(status.exchanges.values()) - mixed,
        exchanged=status.exchanged_bytes,
        formula=status.formula_bytes,
        parameters=status.exchanged_parameters,
        alive=max(1, status.counts().get("alive", 1)),  # a peer that has left counts as well
        members=tuple(
            MemberRecord(short(report.id), names[report.id], report.steps, report.rounds, report.loss, report.samples)
            for report in reports[:MEMBERS]
        ),
    )
