"""Gives this peer's moments of the inner optimizer to joiners, signed and in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.transfer.moments import Asked, Moments, signed_moments
from gossipdp.protocol.transfer.refusals import Refusal
from gossipdp.protocol.wire.messages import MomentsAsk, MomentsChunk, MomentsManifest, MomentsRefuse

__all__ = ["MomentsSource"]

MOST_KEPT: Final = 2
"""Earlier moments that are kept for members that are fetching them."""


@dataclass
class _Kept:
    moments: Moments
    used: float = -math.inf


class MomentsSource:
    """Gives the moments that this peer holds.

    Args:
        sign: Signs bytes with this peer's key.
        keep: Earlier moments are dropped after this many seconds without a request. Without any, at once.
        incarnation: The upper part of their numbers, so that no number is one of an earlier life.
    """

    def __init__(self, outputs: Outputs, sign: Callable[[bytes], bytes], keep: float, *, incarnation: int) -> None:
        self._outputs, self._sign, self._keep = outputs, sign, keep
        self._numbers = incarnation << 32
        self._kept: dict[int, _Kept] = {}
        self.held: Moments | None = None
        """The newest moments."""

    def hold(self, moments: Moments | None, now: float) -> None:
        """These are the newest. None: drop what is held."""
        self.held = moments
        if moments is None:
            return self._kept.clear()
        self._numbers += 1
        self._kept[self._numbers] = _Kept(moments)
        self._prune(now)

    def receive(self, message: Asked, source: bytes, schema: Schema | None, now: float) -> None:
        """A member asks. schema: of this peer's model, if it may give of it."""
        kept = self._kept.get(message.number if isinstance(message, MomentsAsk) else self._numbers)
        if kept is None or schema is None:
            reason = Refusal.GONE if isinstance(message, MomentsAsk) else Refusal.NONE
            self._outputs.send(source, MomentsRefuse(message.transfer, reason.value))
            return
        kept.used = now
        chunks = kept.moments.chunks
        if isinstance(message, MomentsAsk):
            for chunk in message.chunks:
                if chunk < len(chunks):
                    answer = MomentsChunk(message.transfer, message.number, chunk, message.asking)
                    self._outputs.send(source, answer, [chunks[chunk].payload])
            return
        hashes = b"".join(chunk.hash for chunk in chunks)
        manifest = MomentsManifest(
            message.transfer,
            self._numbers,
            schema.trainable,
            chunk_parameters(schema.size),
            kept.moments.steps,
            schema.digest,
        )
        self._outputs.send(source, manifest, [hashes, self._sign(signed_moments(manifest, hashes))])

    def _prune(self, now: float) -> None:
        earlier = [number for number in self._kept if number != self._numbers]
        idle = {number for number in earlier if now >= self._kept[number].used + self._keep}
        for number in idle.union(earlier[:-MOST_KEPT]):
            del self._kept[number]

    def timer(self) -> float | None:
        """When `handle_timer` wants to be called next, or None."""
        times = [kept.used + self._keep for number, kept in self._kept.items() if number != self._numbers]
        return min(times, default=None)

    def handle_timer(self, now: float) -> None:
        """Drop earlier moments that are not asked for."""
        self._prune(now)
