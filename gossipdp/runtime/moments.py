"""The inner optimizer's moments between shared memory and what is held of them: encoded and decoded chunk by chunk.

The training process writes one moment at a time where its snapshots stand, and waits for none of this; a joining one
finds them there in the same order. Each chunk is one piece of work for the compute thread, asked for when the one
before is done, so that exchanges go on in between. Nothing here may know a socket or a peer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs import moments as codec
from gossipdp.codecs.base import PayloadError, Vector
from gossipdp.protocol.jobs import Frozen
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.transfer.moments import Moments, chunk_sizes
from gossipdp.runtime.link import Moment

__all__ = ["ROUNDS", "MomentsKeeper"]

log = logging.getLogger("gossipdp.node")

ROUNDS: Final = 10
"""between two times that the training process tells its moments: a second moment lives for hundreds of steps, and
telling both costs what two snapshots do"""

Piece: TypeAlias = Callable[[], Any]
Taken: TypeAlias = Callable[[Moments | None], None]


class MomentsKeeper:
    """One thing at a time: what begins ends what was going on, for the memory it is about is another's by then.

    Args:
        run: queues a function on the compute thread; `ran` is to be called with its result.
    """

    def __init__(self, run: Callable[[Piece], None]) -> None:
        self._run = run
        self._task = 0
        self._pieces: list[Piece] = []
        self._results: list[Any] = []
        self._end: Callable[[list[Any]], None] = _nothing
        self._seconds: list[NDArray[np.uint8]] = []
        """second moments that are encoded, and wait for the first"""

    def take(
        self, which: Moment, steps: int, x: Vector, schema: Schema, done: Callable[[Moments | None], None]
    ) -> None:
        """Encode what stands in `x`; `done` is called with both moments once both are here."""
        seconds = self._seconds

        def second(results: list[Any]) -> None:
            self._seconds = [] if _failed(results) else results
            done(None)

        def first(results: list[Any]) -> None:
            self._seconds = []
            done(None if _failed(results) else Moments(steps, tuple(results)))

        spans = _spans(schema)
        if which == "second":
            self._begin([partial(_second, x[at]) for at in spans], second)
        elif len(seconds) == len(spans):
            pairs = zip(spans, seconds, strict=True)
            self._begin([partial(_both, x[at], half) for at, half in pairs], first)
        else:
            done(None)

    def give(self, which: Moment, x: Vector, held: Moments, schema: Schema, done: Callable[[], None]) -> None:
        """Decode what is held into `x`."""
        decode = codec.decode_second if which == "second" else codec.decode_first

        def piece(at: slice, chunk: Frozen) -> bool:
            x[at] = decode(chunk.payload, at.stop - at.start)
            return True

        def end(_: object) -> None:
            # Whatever a source says stands there, training takes no part of it, and the next snapshot would.
            x[schema.padding] = 0.0
            done()

        pairs = zip(_spans(schema), held.chunks, strict=True)
        self._begin([partial(piece, at, chunk) for at, chunk in pairs], end)

    def ran(self, result: tuple[int, Any]) -> None:
        """A piece has been carried out."""
        task, value = result
        if task == self._task:
            self._results.append(value)
            self._next()

    def _begin(self, pieces: Sequence[Piece], end: Callable[[list[Any]], None]) -> None:
        self._task += 1
        self._pieces, self._results, self._end = list(pieces), [], end
        self._next()

    def _next(self) -> None:
        if len(self._results) < len(self._pieces) and not _failed(self._results):
            piece, task = self._pieces[len(self._results)], self._task
            self._run(lambda: (task, piece()))
            return
        results, self._results, self._pieces = self._results, [], []
        self._end(results)


def _failed(results: list[Any]) -> bool:
    return bool(results) and results[-1] is None


def _spans(schema: Schema) -> list[slice]:
    width = chunk_parameters(schema.size)
    return [slice(chunk * width, chunk * width + size) for chunk, size in enumerate(chunk_sizes(schema))]


def _second(v: Vector) -> NDArray[np.uint8] | None:
    try:
        return codec.encode_second(v)
    except PayloadError as error:
        log.warning("the optimizer's moments are not kept: %s", error)
        return None


def _both(m: Vector, second: NDArray[np.uint8]) -> Frozen | None:
    try:
        payload = np.concatenate([second, codec.encode_first(m, second.data)])
    except PayloadError as error:
        log.warning("the optimizer's moments are not kept: %s", error)
        return None
    return Frozen(payload.data, codec.digest(payload.data))


def _nothing(_: object) -> None:
    """Nothing is going on."""
