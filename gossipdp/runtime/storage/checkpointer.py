"""Writes checkpoints beside the running peer: the compute threads copy, and a storage thread writes.

One chunk at a time is copied between other jobs and handed to the storage thread. A few chunks are in flight, so that
the next ones are copied while one is written. Nothing waits for the disk, and no second copy of the model is held.
`store` knows what a checkpoint is and how it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from gossipdp.algorithms.ledger import Ledger
from gossipdp.codecs.base import Vector
from gossipdp.errors import DataError
from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.runtime.compute import Call, Compute
from gossipdp.runtime.files import bytes_of
from gossipdp.runtime.progress import Progress, Say, silent
from gossipdp.runtime.storage.checkpoint import BESIDE, LOOKAHEAD, CheckpointMeta
from gossipdp.runtime.storage.store import UNSYNCED, Store, Writer

__all__ = ["Checkpointer", "layout"]

VECTORS: Final = ("anchor", "momentum")
IN_FLIGHT: Final = 4
"""most pieces that are copied and not yet written; a piece has 4 MiB at most"""
SLOWEST: Final = 10e6
"""least bytes a second at which a disk must take what the system has buffered for it"""
PIECE: Final = 10.0 + UNSYNCED / SLOWEST
"""seconds for one piece to be copied and written, and for what was written before to be synced"""


def layout(ledger: Ledger, carried: Carried = NOTHING) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The arrays of a checkpoint as name -> (dtype, shape): vectors, lookahead, and carried state if there is any."""
    arrays: dict[str, tuple[str, tuple[int, ...]]] = dict.fromkeys(VECTORS, ("float32", (ledger.size,)))
    arrays[LOOKAHEAD] = "float32", (ledger.chunks,)
    for name, data in zip(BESIDE, (carried.reference, carried.state), strict=True):
        if size := memoryview(data).nbytes:
            arrays[name] = "uint8", (size,)
    return arrays


class Checkpointer:
    """Saves one checkpoint at a time.

    Args:
        call: runs a copy on a compute thread.
        saved: called on the I/O thread with the path of a finished checkpoint, or with the error.
        say: gets lines about progress, on the I/O thread.
    """

    def __init__(self, store: Store, call: Call, saved: Callable[[Path | DataError], None], say: Say = silent) -> None:
        self._store, self._call, self._saved, self._say = store, call, saved, say
        self._disk = Compute(_call, limit=IN_FLIGHT + 1, name="storage")  # one more for `close`
        self._writer: Writer | None = None
        self._pieces: Iterator[tuple[int, Callable[[], Vector | memoryview]]] = iter(())
        """the place of each copy, and the copy"""
        self._copying, self._copied_all = False, False
        self._failure: DataError | None = None
        self._progress = Progress("", 0, say)
        self._bytes = 0
        self.busy = False
        self.steps = 0
        """steps taken so far, of all checkpoints; while the number grows, the disk works"""
        self.patience = PIECE
        """seconds within which the next step must come, or the disk hangs"""

    def fileno(self) -> int:
        return self._disk.fileno()

    def save(self, ledger: Ledger, meta: CheckpointMeta, schema: bytes, carried: Carried = NOTHING) -> None:
        """Begin a checkpoint, unless one is being written.

        Args:
            ledger: anchor, momentum and lookahead, copied chunk by chunk. The momentum may be of a later round.
            schema: canonical bytes.
            carried: state beside the vectors.
        """
        if self.busy:
            return
        self.busy, self._copied_all = True, False

        lookahead = np.zeros_like(ledger.lookahead)

        def anchor(chunk: int) -> Vector:
            lookahead[chunk] = ledger.lookahead[chunk]  # later the anchor may be without it
            return ledger.a[ledger.span(chunk)].copy()

        def momentum(chunk: int) -> Vector:
            return ledger.v[ledger.span(chunk)].copy()

        def beside() -> Iterator[tuple[int, Callable[[], memoryview]]]:
            number = 0
            while (part := carried.piece(number)) is not None:
                yield number, partial(_same, part)
                number += 1

        arrays = layout(ledger, carried)
        self._bytes = sum(size * (4 if dtype == "float32" else 1) for dtype, (size,) in arrays.values())
        self._progress = Progress("writing a checkpoint", self._bytes, self._say)
        vectors = [(chunk, partial(copy, chunk)) for copy in (anchor, momentum) for chunk in range(ledger.chunks)]
        self._pieces = chain(vectors, [(0, lambda: lookahead)], beside())
        self._disk.submit(lambda: self._begin(meta, schema, arrays))

    def _begin(self, meta: CheckpointMeta, schema: bytes, arrays: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        self._writer = self._store.begin(meta, schema, arrays)

    def _copied(self, values: Vector | memoryview) -> None:
        self._copying = False

        def write() -> int:
            assert self._writer is not None
            if self._writer.open:  # a piece before this one may have failed
                self._writer.write(values)
            return bytes_of(values).nbytes

        self._disk.submit(write)
        self._copy_next()

    def _copy_next(self) -> None:
        """Ask for the next copy, if there is one and room for it."""
        if self._copying or self._copied_all or self._failure is not None or self._disk.waiting >= IN_FLIGHT:
            return
        following = next(self._pieces, None)
        if following is None:
            self._copied_all = True
        else:
            self._copying = True
            place, copy = following
            self._call(copy, self._copied, place)

    def collect(self) -> None:
        """The disk has finished something: `fileno` is readable."""
        saved, finished = None, self._disk.collect()
        for each in finished:
            self.steps += 1
            if isinstance(each.error, DataError):
                self._failure = self._failure or each.error
            elif each.error is not None:
                raise each.error
            if isinstance(each.result, int):
                self._progress.advance(each.result)
            saved = each.result if isinstance(each.result, Path) else None
        if saved is not None:
            self._finish(saved)
        elif finished and self.busy:
            self._copy_next()
            self._end_copies()

    def _end_copies(self) -> None:
        """Commit, or give up, once no piece is in flight."""
        if self._copying or self._disk.waiting:
            return
        if self._failure is not None:
            self._finish(self._failure)
        elif self._copied_all:
            self.patience = PIECE + self._bytes / SLOWEST
            self._disk.submit(self._commit)

    def _commit(self) -> Path:
        assert self._writer is not None
        return self._writer.commit()

    def _abandon(self) -> None:
        if self._writer is not None:
            self._writer.abandon()

    def _finish(self, outcome: Path | DataError) -> None:
        self.busy, self._writer, self._pieces, self.patience = False, None, iter(()), PIECE
        self._failure = None
        self._saved(outcome)

    def close(self) -> None:
        """Wait for the disk. A half-written checkpoint is abandoned."""
        if self.busy:
            self._disk.submit(self._abandon)  # on the storage thread, which may be in the middle of a step
        self._disk.close()


def _same(part: memoryview) -> memoryview:
    return part


def _call(work: Callable[[], Path | int | None]) -> Path | int | None:
    return work()
