"""What one peer does about the inner optimizer's moments: it holds, gives and fetches them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from gossipdp.protocol import jobs
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.transfer.moments import Asked, Given, Moments, signed_moments
from gossipdp.protocol.transfer.moments_fetcher import MomentsFetcher
from gossipdp.protocol.transfer.refusals import Refusal
from gossipdp.protocol.transfer.source import TransferConfig
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MomentsAsk, MomentsChunk, MomentsManifest, MomentsRefuse, MomentsRequest

__all__ = ["MomentsHolder", "MomentsSource"]


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
            self._outputs.send(source, MomentsRefuse(message.transfer, reason))
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


class MomentsHolder:
    """Keeps and gives the moments of this peer's training process, or fetches some for it.

    Args:
        enabled: False: no moments are held, given or fetched.
    """

    def __init__(
        self,
        config: TransferConfig,
        outputs: Outputs,
        *,
        sign: Callable[[bytes], bytes],
        verify: Callable[[bytes, bytes, bytes], bool],
        random: Random,
        incarnation: int,
        enabled: bool,
    ) -> None:
        self._config, self._outputs, self._verify, self._random = config, outputs, verify, random
        self._source = MomentsSource(outputs, sign, config.keep, incarnation=incarnation)
        self._fetcher: MomentsFetcher | None = None
        self._tried = False
        """A fetch was made, or is not needed."""
        self._old = False
        """The model here is newer than the moments held."""
        self.enabled = enabled

    @property
    def held(self) -> Moments | None:
        """The newest moments: for this host's next training process, and for joiners."""
        return self._source.held

    def hold(self, moments: Moments, now: float) -> None:
        """The training process has submitted these."""
        if self.enabled:
            self._fetcher, self._tried, self._old = None, True, False
            self._source.hold(moments, now)

    def outdated(self) -> None:
        """The model here is newer than the moments held. For the next training process newer ones are fetched."""
        self._tried, self._old = self._fetcher is not None, True

    def seek(self, schema: Schema, candidates: Sequence[bytes], preferred: bytes, now: float) -> bool:
        """A training process has no moments, and `candidates` may have some. True: it waits for them."""
        wanted = self.held is None or self._old
        if self._fetcher is None and self.enabled and not self._tried and wanted:
            if not candidates:
                return False
            self._tried = True
            self._fetcher = MomentsFetcher(
                self._config,
                self._outputs,
                self._verify,
                self._random,
                schema=schema,
                candidates=candidates,
                preferred=preferred,
                now=now,
            )
        self._settle(now)
        return self._fetcher is not None

    def _settle(self, now: float) -> None:
        fetcher = self._fetcher
        if fetcher is not None and fetcher.over:
            self._fetcher = None
            if fetcher.moments is not None:
                self._source.hold(fetcher.moments, now)
                self._old = False

    def receive(
        self, message: Asked | Given, buffers: list[Buffer], source: bytes, schema: Schema | None, now: float
    ) -> None:
        """A message about moments. schema: of this peer's model, if it may give of it."""
        if isinstance(message, MomentsRequest | MomentsAsk):
            self._source.receive(message, source, schema, now)
        elif self._fetcher is not None:
            self._fetcher.receive(message, buffers, source, now)
            self._settle(now)

    def checked(self, job: jobs.CheckMoments, result: jobs.Frozen | None, now: float) -> None:
        """The result of a CheckMoments."""
        if self._fetcher is not None:
            self._fetcher.checked(job, result, now)
            self._settle(now)

    def gone(self, peer: bytes, now: float) -> None:
        """`peer` has left or failed."""
        if self._fetcher is not None:
            self._fetcher.gone(peer, now)
            self._settle(now)

    def timer(self) -> float | None:
        """When `handle_timer` wants to be called next, or None."""
        times = [self._source.timer(), None if self._fetcher is None else self._fetcher.timer()]
        return min((time for time in times if time is not None), default=None)

    def handle_timer(self, now: float) -> None:
        """Go on fetching, and drop earlier moments."""
        self._source.handle_timer(now)
        if self._fetcher is not None:
            self._fetcher.handle_timer(now)
            self._settle(now)
