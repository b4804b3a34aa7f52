"""The peer's jobs on the compute threads, which own every vector, and pieces of work between them.

A job on one chunk shares nothing with jobs on other chunks, so the chunk is its place (see `Compute`). All other jobs
run alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.errors import HardwareError
from gossipdp.protocol import jobs
from gossipdp.protocol.events import Notice
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.runtime.compute import Compute
from gossipdp.runtime.link import FreeBuffer, LinkServer, Region
from gossipdp.runtime.room import Room
from gossipdp.runtime.storage.checkpoint import BESIDE, LOOKAHEAD, Checkpoint
from gossipdp.runtime.storage.store import Store

__all__ = ["MemoryShortError", "SharedRegion", "VectorJobs", "place_of"]

T = TypeVar("T")

log = logging.getLogger("gossipdp.node")


class MemoryShortError(HardwareError):
    """GD-502: a model that did fit has no memory for a job. Other processes may give some back."""


class SharedRegion:
    """The memory shared with the training process.

    It is kept after the process has died, because a job asked for before may still work on it.
    """

    def __init__(self) -> None:
        self.region: Region | None = None
        self._free: FreeBuffer | None = None
        self._attached = False

    def attach(self, region: Region) -> None:
        self.region, self._free, self._attached = region, FreeBuffer(region), True

    def detach(self) -> None:
        """The training process is gone; `unbind` releases the memory."""
        self._attached = False
        if self._free is not None:
            self._free.detach()

    @property
    def free(self) -> FreeBuffer:
        """The uses of the newest region's free buffer. There has been a training process."""
        assert self._free is not None
        return self._free

    def unbind(self) -> None:
        """Release the memory unless a new process has attached: two regions at once would be too much."""
        if not self._attached:
            self.region = None


@dataclass(frozen=True, slots=True)
class _Task:
    """One unit of work: `run` on a compute thread, then `done` with its result on the I/O thread."""

    job: object
    """what it is, for an error"""
    run: Callable[[], Any]
    done: Callable[[Any], None]


class VectorJobs:
    """Hands the peer's jobs to the compute threads and brings their results back.

    Args:
        algorithm: carries out the jobs.
        store: its newest checkpoint is restored.
        region: bound by jobs.Bind.
        room: tells beforehand whether a model fits in memory.
        link: tells the bytes of shared memory that exist.
        done: called with each finished job and its result.
        notice: called with code and text of what a restore has found.
        workers: number of compute threads.
    """

    def __init__(
        self,
        algorithm: Pairwise,
        store: Store,
        region: SharedRegion,
        room: Room,
        link: LinkServer,
        done: Callable[[jobs.Job[object], object], None],
        notice: Callable[[str, str], None],
        workers: int = 1,
    ) -> None:
        self._algorithm, self._store, self._region = algorithm, store, region
        self._room, self._link, self._done, self._notice = room, link, done, notice
        self.parameters = 0
        """of the model that memory is taken for, which a founder or joiner has long before it has the model"""
        self.longest: dict[str, float] = {}
        """kind of work -> seconds of the longest so far; its compute thread does nothing else meanwhile"""
        self._compute = Compute(_execute, workers=workers)

    def fileno(self) -> int:
        """Readable when `collect` has something to do."""
        return self._compute.fileno()

    @property
    def waiting(self) -> int:
        """Units of work that are not finished."""
        return self._compute.waiting

    def submit(self, job: jobs.Job[object]) -> None:
        """Carry out a job of the peer. What it needs of this thread's objects is taken now.

        Raises:
            HardwareError: GD-502, the model does not fit.
        """
        match job:
            case jobs.Bind():
                region = self._region.region
                assert region is not None
                task = _Task(job, partial(self._bind, region), partial(self._done, job))
            case jobs.Seal():
                return self._seal(job)
            case jobs.Unbind():
                self._region.unbind()
                task = _Task(job, self._algorithm.ledger.unbind, partial(self._done, job))
            case jobs.Allocate(size):
                self._room.require(size, self._link.shared_bytes)
                self.parameters = size
                task = _Task(job, partial(self._algorithm.run, job), partial(self._done, job))
            case jobs.Restore():
                task = _Task(job, self.restore, partial(self.restored, job))
            case _:
                task = _Task(job, partial(self._algorithm.run, job), partial(self._done, job))
        self._compute.submit(task, place_of(job))

    def _seal(self, job: jobs.Seal) -> None:
        """Seal a slot once the free buffer can become the open one. Other jobs do not wait for that."""
        free = self._region.free

        def finished(result: jobs.Sealed) -> None:
            self._done(job, result)
            free.sealed(result.slot)

        nothing = _Task(job, partial(jobs.Sealed, 0, ()), partial(self._done, job))
        sealing = _Task(job, partial(self._algorithm.run, job), finished)
        free.seal(partial(self._compute.submit, sealing), partial(self._compute.submit, nothing))

    def call(self, function: Callable[[], T], done: Callable[[T], None], place: int | None = None) -> None:
        """Run a piece of work between the jobs, then call `done` with its result.

        Args:
            place: the chunk that `function` works on; None if it needs more than one.
        """
        self._compute.submit(_Task(function, function, done), place)

    def collect(self) -> None:
        """Report what has finished. Raises what a job raised."""
        for finished in self._compute.collect():
            if finished.error is not None:
                raise finished.error
            kind = _kind(finished.work.job)
            self.longest[kind] = max(self.longest.get(kind, 0.0), finished.seconds)
            finished.work.done(finished.result)

    def close(self) -> None:
        self._compute.close()

    def _bind(self, region: Region) -> None:
        # The ledger exists only once an earlier job has allocated it.
        self._algorithm.ledger.bind(region.buffers)

    def restore(self) -> tuple[jobs.Restored | None, Sequence[Notice]]:
        """Read the newest checkpoint into the vectors. Returns it, if there is one, and notices about damaged ones."""
        read: dict[str, NDArray[Any]] = {}

        def into(checkpoint: Checkpoint) -> Mapping[str, NDArray[Any]]:
            schema, shapes = Schema.from_bytes(checkpoint.schema), checkpoint.shapes()
            self._room.require(schema.size)
            self.parameters = schema.size
            width = chunk_parameters(schema.size)
            self._algorithm.allocate(schema.size, schema.trainable, width, schema.tensors)
            ledger = self._algorithm.ledger
            read.clear()
            read.update({"anchor": ledger.a, "momentum": ledger.v})
            if shapes.get(LOOKAHEAD) == ledger.lookahead.shape:
                read[LOOKAHEAD] = ledger.lookahead
            read.update({name: np.empty(shapes[name], np.uint8) for name in BESIDE if name in shapes})
            return read

        checkpoint, notices = self._store.latest(into, log.info)
        if checkpoint is None:
            return None, notices
        beside = [read[name].data if name in read else b"" for name in BESIDE]
        return jobs.Restored(checkpoint.schema, checkpoint.meta.clock, checkpoint.meta.round, *beside), notices

    def restored(self, job: jobs.Restore, found: tuple[jobs.Restored | None, Sequence[Notice]]) -> None:
        result, notices = found
        for notice in notices:
            self._notice(notice.code, notice.text)
        self._done(job, result)


def place_of(job: jobs.Job[object]) -> int | None:
    """The chunk that `job` works on. None if it works on several, or on what chunks share."""
    match job:
        case jobs.OfExchange():
            return job.key.chunk
        case (
            jobs.Check(chunk)
            | jobs.OuterStep(chunk)
            | jobs.Rest(chunk)
            | jobs.Found(chunk)
            | jobs.Attach(chunk)
            | jobs.Freeze(chunk)
            | jobs.HashPiece(chunk)
            | jobs.CheckPiece(chunk)
            | jobs.Adopt(chunk)
            | jobs.Resync(chunk)
            | jobs.Conclude(chunk)
            | jobs.CheckMoments(chunk)
        ):
            return chunk
    return None


def _kind(job: object) -> str:
    """The name of a job, or of the function that a piece of work calls."""
    while isinstance(job, partial):
        job = job.func
    return getattr(job, "__qualname__", type(job).__name__)


def _execute(task: _Task) -> Any:
    try:
        return task.run()
    except MemoryError:
        kind = HardwareError if isinstance(task.job, jobs.Allocate | jobs.Restore) else MemoryShortError
        raise kind("GD-502", "the system has no memory for the model", seen=repr(task.job)[:200]) from None
