"""Writes checkpoints beside the running peer: copies on the compute thread, disk on a thread of its own.

One chunk is copied at a time, between other jobs, and handed to the storage thread; nothing waits for the disk, and
no second copy of the model is ever held. What a checkpoint is and how it is written is `store`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gossipdp.algorithms.base import Ledger
from gossipdp.codecs.base import Vector
from gossipdp.errors import DataError
from gossipdp.runtime.compute import Compute, Finished
from gossipdp.runtime.store import UNSYNCED, CheckpointMeta, Store, Writer

__all__ = ["Keeper", "layout"]

SLOWEST: Final = 10e6
"""bytes a second at which a disk must at least take what the system has kept for it"""
PIECE: Final = 10.0 + UNSYNCED / SLOWEST
"""seconds that one piece may take to be copied and written, and what was written before it to be synced"""


def layout(ledger: Ledger) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The arrays of a checkpoint: anchor and momentum."""
    return {"anchor": ("float32", (ledger.size,)), "momentum": ("float32", (ledger.size,))}


class Keeper:
    """Saves one checkpoint at a time.

    Args:
        copy: queues a function on the compute thread; the keeper's `copied` is to be called with its result.
        saved: called on the I/O thread with the path of a finished checkpoint, or the error.
    """

    def __init__(
        self,
        store: Store,
        copy: Callable[[Callable[[], Vector]], None],
        saved: Callable[[Path | DataError], None],
    ) -> None:
        self._store, self._copy, self._saved = store, copy, saved
        self._disk = Compute(_call, limit=2, name="storage")
        self._writer: Writer | None = None
        self._pieces: Iterator[Callable[[], Vector]] = iter(())
        self._bytes = 0.0
        self.busy = False
        self.steps = 0
        """taken so far, of all checkpoints: while they become more, the disk moves"""
        self.patience = PIECE
        """seconds within which the step that is next must come, or the disk hangs"""

    def fileno(self) -> int:
        return self._disk.fileno()

    def save(self, ledger: Ledger, meta: CheckpointMeta, schema: bytes) -> None:
        """Begin a checkpoint, unless one is being written."""
        if self.busy:
            return
        self.busy = True

        def piece(vector: str, chunk: int) -> Callable[[], Vector]:
            return (ledger.a if vector == "anchor" else ledger.v)[ledger.span(chunk)].copy

        self._bytes = 8.0 * ledger.size
        self._pieces = iter([piece(vector, chunk) for vector in layout(ledger) for chunk in range(ledger.chunks)])
        self._disk.submit(lambda: self._begin(meta, schema, ledger))

    def _begin(self, meta: CheckpointMeta, schema: bytes, ledger: Ledger) -> None:
        self._writer = self._store.begin(meta, schema, layout(ledger))

    def copied(self, values: Vector) -> None:
        """A piece has been copied: write it."""

        def write() -> None:
            assert self._writer is not None
            self._writer.write(values)

        self._disk.submit(write)

    def collect(self) -> None:
        """Called when `fileno` is readable: the disk has finished something."""
        for finished in self._disk.collect():
            self._advance(finished)

    def _advance(self, finished: Finished) -> None:
        self.steps += 1
        if finished.error is not None:
            if not isinstance(finished.error, DataError):
                raise finished.error
            self._finish(finished.error)
        elif isinstance(finished.result, Path):
            self._finish(finished.result)
        elif self.busy:
            following = next(self._pieces, None)
            if following is not None:
                self._copy(following)
            else:
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
        self._saved(outcome)

    def close(self) -> None:
        """Wait for the disk; a checkpoint half written is abandoned."""
        if self.busy:
            self._disk.submit(self._abandon)  # by the thread that writes, for it may be in the middle of a step
        self._disk.close()


def _call(work: Callable[[], Path | None]) -> Path | None:
    return work()
