"""Copies the inner optimizer's encoded moments between shared memory and the daemon, chunk by chunk.

The training process encodes and decodes them. Each chunk is one piece of work for a compute thread, asked for when the
piece before is done, so that exchanges go on in between. Nothing here may know a socket or a peer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossipdp.algorithms.ledger import Keep, in_memory
from gossipdp.codecs import moments as codec
from gossipdp.protocol.jobs import Frozen
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.transfer.moments import Moments, chunk_sizes
from gossipdp.runtime.compute import Call

__all__ = ["ROUNDS", "MomentsCopier"]

log = logging.getLogger("gossipdp.node")

ROUNDS: Final = 10
"""rounds between two transfers of the moments from the training process. A second moment stays valid for hundreds of
steps, and a transfer costs about as much as a snapshot."""

Bytes: TypeAlias = NDArray[np.uint8]
Piece: TypeAlias = Callable[[], Any]


class _Chunk(NamedTuple):
    place: slice
    """its bytes in a shared buffer"""
    size: int
    """in parameters"""


class MomentsCopier:
    """Makes one copy at a time. A new copy ends the one under way, whose memory has another use by then.

    Args:
        call: runs a piece of work on a compute thread.
        keep: called with what is taken, on a compute thread.
    """

    def __init__(self, call: Call, keep: Keep = in_memory) -> None:
        self._call, self._keep = call, keep
        self._task = 0
        self._pieces: deque[Piece] = deque()
        """what is still to run. A piece that ran is dropped with what it read"""
        self._results: list[Any] = []
        self._end: Callable[[list[Any]], None] = _nothing

    def read(self, steps: int, shared: Bytes, schema: Schema, done: Callable[[Moments | None], None]) -> None:
        """Take the moments that the training process has encoded.

        Args:
            steps: of the optimizer.
            shared: the buffer that holds them.
            done: called with them, or with None if they cannot be used.
        """

        def end(results: list[Any]) -> None:
            if _failed(results):
                log.warning("the optimizer's moments are not kept: one is not finite, or a second one is negative")
            done(None if _failed(results) else Moments(steps, tuple(results)))

        self._begin([partial(_taken, shared[place], size, self._keep) for place, size in _chunks(schema)], end)

    def write(self, shared: Bytes, held: Moments, schema: Schema, done: Callable[[], None]) -> None:
        """Copy what is held to a shared buffer, for the training process to decode. Then call `done`."""

        def piece(place: slice, chunk: Frozen) -> bool:
            shared[place] = np.frombuffer(chunk.payload, np.uint8)
            return True

        pairs = zip(_chunks(schema), held.chunks, strict=True)
        self._begin([partial(piece, place, chunk) for (place, _), chunk in pairs], lambda _: done())

    def _begin(self, pieces: Sequence[Piece], end: Callable[[list[Any]], None]) -> None:
        self._task += 1
        self._pieces, self._results, self._end = deque(pieces), [], end
        self._next()

    def _ran(self, task: int, result: Any) -> None:
        if task == self._task:
            self._results.append(result)
            self._next()

    def _next(self) -> None:
        if self._pieces and not _failed(self._results):
            self._call(self._pieces.popleft(), partial(self._ran, self._task), len(self._results))
            return
        results, self._results, self._pieces = self._results, [], deque()
        self._end(results)


def _failed(results: list[Any]) -> bool:
    return bool(results) and results[-1] is None


def _chunks(schema: Schema) -> list[_Chunk]:
    width = chunk_parameters(schema.size)
    return [_Chunk(codec.shared(chunk, width, size), size) for chunk, size in enumerate(chunk_sizes(schema))]


def _taken(shared: Bytes, size: int, keep: Keep) -> Frozen | None:
    payload = shared.copy().data
    return Frozen(keep(payload), codec.digest(payload)) if codec.check(payload, size) else None


def _nothing(_: object) -> None:
    """Nothing is under way."""
