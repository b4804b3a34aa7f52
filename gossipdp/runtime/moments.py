"""Copies the inner optimizer's moments between shared memory and their encoded form, chunk by chunk.

The training process writes one moment at a time into the memory of its snapshots, and does not wait. A joining process
finds the moments there in the same order. Each chunk is one piece of work for a compute thread, asked for when the
piece before is done, so that exchanges go on in between. Nothing here may know a socket or a peer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from gossipdp.algorithms.ledger import Keep, in_memory
from gossipdp.codecs import moments as codec
from gossipdp.codecs.base import Buffer, PayloadError, Vector
from gossipdp.protocol.jobs import Frozen
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.transfer.moments import Moments, chunk_sizes
from gossipdp.runtime.compute import Call
from gossipdp.runtime.link import Moment

__all__ = ["ROUNDS", "MomentsCopier"]

log = logging.getLogger("gossipdp.node")

ROUNDS: Final = 10
"""rounds between two transfers of the moments from the training process. A second moment stays valid for hundreds of
steps, and a transfer of both costs as much as two snapshots."""

Piece: TypeAlias = Callable[[], Any]


class MomentsCopier:
    """Copies one moment at a time. A new copy ends the one under way, whose memory has another use by then.

    Args:
        call: runs a piece of work on a compute thread.
        keep: called with what is encoded, on a compute thread.
    """

    def __init__(self, call: Call, keep: Keep = in_memory) -> None:
        self._call, self._keep = call, keep
        self._task = 0
        self._pieces: deque[Piece] = deque()
        """what is still to run. A piece that ran is dropped with what it read"""
        self._results: list[Any] = []
        self._end: Callable[[list[Any]], None] = _nothing
        self._seconds: list[Buffer] = []
        """encoded second moments that wait for the first ones"""

    def read(
        self, which: Moment, steps: int, x: Vector, schema: Schema, done: Callable[[Moments | None], None]
    ) -> None:
        """Encode the moment in `x`.

        Args:
            which: the second moment comes first.
            steps: of the optimizer.
            x: shape (schema.size,), fp32.
            done: called with both moments once both are encoded, else with None.
        """
        seconds = self._seconds

        def second(results: list[Any]) -> None:
            self._seconds = [] if _failed(results) else results
            done(None)

        def first(results: list[Any]) -> None:
            done(None if _failed(results) else Moments(steps, tuple(results)))

        spans = _spans(schema)
        if which == "second":
            self._begin([partial(_second, x[at], self._keep) for at in spans], second)
        elif len(seconds) == len(spans):
            self._seconds = []
            pairs = zip(spans, seconds, strict=True)
            self._begin([partial(_both, x[at], half, self._keep) for at, half in pairs], first)
        else:
            done(None)

    def write(self, which: Moment, x: Vector, held: Moments, schema: Schema, done: Callable[[], None]) -> None:
        """Decode a moment of `held` into `x`, shape (schema.size,), then call `done`."""
        decode = codec.decode_second if which == "second" else codec.decode_first

        def piece(at: slice, chunk: Frozen) -> bool:
            x[at] = decode(chunk.payload, at.stop - at.start)
            return True

        def end(_: object) -> None:
            # A source may send anything for the padding. Training ignores it, but the next snapshot would contain it.
            x[schema.padding] = 0.0
            done()

        pairs = zip(_spans(schema), held.chunks, strict=True)
        self._begin([partial(piece, at, chunk) for at, chunk in pairs], end)

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


def _spans(schema: Schema) -> list[slice]:
    width = chunk_parameters(schema.size)
    return [slice(chunk * width, chunk * width + size) for chunk, size in enumerate(chunk_sizes(schema))]


def _second(v: Vector, keep: Keep) -> Buffer | None:
    try:
        return keep(codec.encode_second(v).data)
    except PayloadError as error:
        log.warning("the optimizer's moments are not kept: %s", error)
        return None


def _both(m: Vector, second: Buffer, keep: Keep) -> Frozen | None:
    try:
        payload = np.concatenate([np.frombuffer(second, np.uint8), codec.encode_first(m, second)])
    except PayloadError as error:
        log.warning("the optimizer's moments are not kept: %s", error)
        return None
    return Frozen(keep(payload.data), codec.digest(payload.data))


def _nothing(_: object) -> None:
    """Nothing is under way."""
