"""Fetches the inner optimizer's moments from another member for a training process that begins with none.

A joiner takes the model, so its first steps are those of an optimizer that has seen no gradient. Adam's bias correction
then makes them as long as the learning rate allows, whatever the size of the gradients. Moments of any member fit,
because parameters and layout are the same. So do chunks of several members. They help and are not needed: a member that
gives none is passed over, and only the session about to begin waits. As with the model, the manifest is signed and each
chunk is checked against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from gossipdp.protocol import jobs
from gossipdp.protocol.causes import Fault
from gossipdp.protocol.events import MomentsProgress, UpdateRefused
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.transfer.manifest import HASH, hash_of
from gossipdp.protocol.transfer.moments import Given, Moments, chunk_sizes, signed_moments
from gossipdp.protocol.transfer.requests import Requests
from gossipdp.protocol.transfer.source import TransferConfig
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MomentsAsk, MomentsChunk, MomentsManifest, MomentsRefuse, MomentsRequest

__all__ = ["MomentsFetcher"]

SOURCES: Final = 4
"""Members asked at most, because training waits."""
WITHIN: Final = 60.0
"""Seconds for all of them together, besides the transfer at `LEAST_RATE`."""
BYTES_EACH: Final = 2
"""Bytes of one parameter's moments."""
LEAST_RATE: Final = 2.5e6
"""Bytes a second. A slower link, or a source that dribbles, does not keep a training process from its model."""


class MomentsFetcher:
    """Fetches moments once: one source at a time, verified chunks kept across sources.

    It gives up when no candidate is left, or when the training process has waited long enough.

    Args:
        verify: Checks a signature, given peer id, data and signature.
        schema: Of this peer's model.
        candidates: Members that may hold moments.
        preferred: The source of the model. It is asked first, if it is a candidate.
    """

    def __init__(
        self,
        config: TransferConfig,
        outputs: Outputs,
        verify: Callable[[bytes, bytes, bytes], bool],
        random: Random,
        *,
        schema: Schema,
        candidates: Sequence[bytes],
        preferred: bytes,
        now: float,
    ) -> None:
        self._config, self._outputs, self._verify = config, outputs, verify
        self._schema, self._sizes = schema, chunk_sizes(schema)
        rest = [peer for peer in candidates if peer != preferred]
        random.shuffle(rest)
        self._candidates = ([preferred] if preferred in candidates else []) + rest
        del self._candidates[SOURCES:]
        self._transfer = random.getrandbits(48)
        self._number = self._steps = self._claimed = 0
        self._hashes = b""
        self._taken: dict[int, jobs.Frozen] = {}
        self._missing = set(range(len(self._sizes)))
        self._working: dict[int, tuple[bytes, int]] = {}
        """Source and its steps of each chunk that is being checked."""
        self._requests = Requests(config.window, config.chunk, config.silence)
        self._fetching = False
        self._asked_at = self._began = now
        self._until = now + WITHIN + BYTES_EACH * schema.trainable / LEAST_RATE
        self.source = b""
        self.moments: Moments | None = None
        """The result, once all chunks are here."""
        self.over = False
        """All chunks are here, or the fetcher has given up."""
        self._next(now)

    def _next(self, now: float) -> None:
        """Ask the next candidate, or give up."""
        self._fetching = False
        if not self._candidates:
            self.source, self.over = b"", True
            return
        self.source = self._candidates.pop(0)
        self._transfer += 1
        self._began = now
        self._request(now)

    def _request(self, now: float) -> None:
        self._asked_at = now
        self._outputs.send(self.source, MomentsRequest(self._transfer))

    def receive(self, message: Given, buffers: list[Buffer], source: bytes, now: float) -> None:
        """A message of the source."""
        if self.over or source != self.source or message.transfer != self._transfer:
            return
        match message:
            case MomentsRefuse():
                self._next(now)
            case MomentsManifest() if not self._fetching:
                self._begin(message, buffers[0], buffers[1], now)
            case MomentsChunk(_, number, chunk, asking) if self._fetching and number == self._number:
                if chunk < len(self._sizes) and chunk not in self._taken and chunk not in self._working:
                    self._requests.came(chunk, asking, now)
                    digest = hash_of(self._hashes, chunk)
                    self._working[chunk] = source, self._claimed
                    self._outputs.ask(jobs.CheckMoments(chunk, self._sizes[chunk], buffers[0], digest))

    def _begin(self, manifest: MomentsManifest, hashes: Buffer, signature: Buffer, now: float) -> None:
        if manifest.schema != self._schema.digest:
            self._outputs.emit(UpdateRefused(self.source, Fault.SCHEMA))
            return self._next(now)
        sound = (
            manifest.parameters == self._schema.trainable
            and manifest.chunk_parameters == chunk_parameters(self._schema.size)
            and memoryview(hashes).nbytes == HASH * len(self._sizes)
            and self._verify(self.source, signed_moments(manifest, hashes), bytes(signature))
        )
        if not sound:
            self._outputs.emit(UpdateRefused(self.source, Fault.MOMENTS_MANIFEST))
            return self._next(now)
        self._hashes, self._number, self._claimed = bytes(hashes), manifest.number, manifest.steps
        self._fetching = True
        self._requests.begin(now)
        self._ask(now)

    def _ask(self, now: float) -> None:
        self._demand(self._requests.ask(self._missing, self._working, now))

    def _demand(self, chunks: tuple[int, ...]) -> None:
        if chunks:
            self._outputs.send(self.source, MomentsAsk(self._transfer, self._number, chunks, self._requests.number))

    def checked(self, job: jobs.CheckMoments, result: jobs.Frozen | None, now: float) -> None:
        """The result of a CheckMoments."""
        if self.over or job.chunk not in self._working:
            return
        source, steps = self._working.pop(job.chunk)
        if result is None:
            self._outputs.emit(UpdateRefused(source, Fault.MOMENTS))
            if source == self.source:
                return self._next(now)
        else:
            self._taken[job.chunk] = result
            self._missing.discard(job.chunk)
            self._steps = max(self._steps, steps)
            self._outputs.emit(MomentsProgress(source, len(self._taken), len(self._sizes)))
        if len(self._taken) == len(self._sizes):
            self.moments = Moments(self._steps, tuple(self._taken[chunk] for chunk in range(len(self._sizes))))
            self.over = True
        elif self._fetching:
            self._ask(now)

    def gone(self, peer: bytes, now: float) -> None:
        """`peer` has left or failed."""
        if peer in self._candidates:
            self._candidates.remove(peer)
        if peer == self.source and not self.over:
            self._next(now)

    def timer(self) -> float | None:
        """When `handle_timer` wants to be called next, or None."""
        if self.over:
            return None
        if self._fetching:
            return min(self._until, self._requests.timer())
        return min(self._until, self._began + self._config.manifest, self._asked_at + self._config.chunk)

    def handle_timer(self, now: float) -> None:
        """Repeat requests, or leave a silent source."""
        if self.over:
            return
        if now >= self._until:
            self.source, self.over = b"", True
        elif not self._fetching:
            if now >= self._began + self._config.manifest:
                self._next(now)
            elif now >= self._asked_at + self._config.chunk:
                self._request(now)
        elif self._requests.silent(now):
            self._next(now)
        else:
            self._demand(self._requests.repeat(now))
            self._ask(now)
