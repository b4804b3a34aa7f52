"""The inner optimizer's moments for joiners: what a member's training process last gave its daemon, fetched in chunks.

A joiner takes the model, so its first steps are those of an optimizer that has seen nothing: Adam's bias correction
then makes them as long as the learning rate allows, whatever the gradients' size, in a model that has long settled. The
moments are of the same parameters in the same layout, so those of any member will do, or chunks of several. They are a
help and not a need: who gives none is passed over, and nothing waits for them but the session about to begin. As with
the model (`transfer`) the manifest is signed and every chunk checked against it. No vector is touched here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

import msgpack

from gossipdp.protocol import jobs
from gossipdp.protocol.events import MomentsProgress, UpdateRefused
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.transfer.requests import Requests
from gossipdp.protocol.transfer.source import HASH, TransferConfig
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import (
    MomentsAsk,
    MomentsChunk,
    MomentsManifest,
    MomentsRefuse,
    MomentsRequest,
)

__all__ = ["Moments", "MomentsDesk", "MomentsFetcher", "MomentsMessage", "MomentsSource", "chunk_sizes"]

Asked: TypeAlias = MomentsRequest | MomentsAsk
Given: TypeAlias = MomentsManifest | MomentsChunk | MomentsRefuse
MomentsMessage: TypeAlias = Asked | Given

SOURCES: Final = 4
"""members that are asked, at most: training waits"""
WITHIN: Final = 60.0
"""seconds that they all together are waited for, besides what the transfer takes at `LEAST_RATE`"""
BYTES_EACH: Final = 2
"""of a parameter's moments"""
LEAST_RATE: Final = 2.5e6
"""bytes a second: a slower link, or a source that dribbles, does not keep a training process from its model"""
MOST_KEPT: Final = 2
"""earlier moments that are kept for those who are fetching them"""


@dataclass(frozen=True, slots=True)
class Moments:
    """Both moments of a whole model, encoded, and the steps that their optimizer had made."""

    steps: int
    chunks: tuple[jobs.Frozen, ...]


def chunk_sizes(schema: Schema) -> list[int]:
    """Parameters with moments in each chunk that has any."""
    width = chunk_parameters(schema.size)
    return [min(width, schema.trainable - start) for start in range(0, schema.trainable, width)]


def _signed(manifest: MomentsManifest, hashes: Buffer) -> bytes:
    fields = (manifest.number, manifest.parameters, manifest.chunk_parameters, manifest.steps, manifest.schema)
    digest = hashlib.blake2b(digest_size=32, person=b"gossipdp moments")
    digest.update(msgpack.packb(fields))
    digest.update(hashlib.blake2b(hashes).digest())
    return digest.digest()


@dataclass
class _Kept:
    moments: Moments
    used: float = -math.inf


class MomentsSource:
    """Gives what this peer holds to those who ask. `held` is the newest.

    Args:
        keep: seconds without a question after which earlier moments are dropped; if nobody has asked, at once.
        incarnation: what their numbers begin with, so that none is that of an earlier life.
    """

    def __init__(self, outputs: Outputs, sign: Callable[[bytes], bytes], keep: float, *, incarnation: int) -> None:
        self._outputs, self._sign, self._keep = outputs, sign, keep
        self._numbers = incarnation << 32
        self._kept: dict[int, _Kept] = {}
        self.held: Moments | None = None

    def hold(self, moments: Moments | None, now: float) -> None:
        """These are the newest; None: what is held is of no use any more."""
        self.held = moments
        if moments is None:
            return self._kept.clear()
        self._numbers += 1
        self._kept[self._numbers] = _Kept(moments)
        self._prune(now)

    def receive(self, message: Asked, source: bytes, schema: Schema | None, now: float) -> None:
        kept = self._kept.get(message.number if isinstance(message, MomentsAsk) else self._numbers)
        if kept is None or schema is None:
            reason = "gone" if isinstance(message, MomentsAsk) else "none"
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
        self._outputs.send(source, manifest, [hashes, self._sign(_signed(manifest, hashes))])

    def _prune(self, now: float) -> None:
        earlier = [number for number in self._kept if number != self._numbers]
        idle = {number for number in earlier if now >= self._kept[number].used + self._keep}
        for number in idle.union(earlier[:-MOST_KEPT]):
            del self._kept[number]

    def timer(self) -> float | None:
        times = [kept.used + self._keep for number, kept in self._kept.items() if number != self._numbers]
        return min(times, default=None)

    def handle_timer(self, now: float) -> None:
        self._prune(now)


class MomentsFetcher:
    """Fetches moments once: one source at a time, verified chunks kept across sources.

    Given up when nobody is left to ask, or after as long as a training process waits for them.

    Args:
        verify: of a peer id, data and a signature.
        preferred: is asked first, if it is among `candidates`: the source of the model.
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
        self._working: dict[int, tuple[bytes, int, Buffer, bytes]] = {}
        """chunk: source, its steps, payload and hash that are being checked"""
        self._requests = Requests(config.window, config.chunk, config.silence)
        self._fetching = False
        self._asked_at = self._began = now
        self._until = now + WITHIN + BYTES_EACH * schema.trainable / LEAST_RATE
        self.source = b""
        self.moments: Moments | None = None
        """once all is here"""
        self.over = False
        """it is here, or nobody is left who might have it"""
        self._next(now)

    def _next(self, now: float) -> None:
        """Ask the next source, or give up."""
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
                    digest = self._hashes[HASH * chunk : HASH * (chunk + 1)]
                    self._working[chunk] = source, self._claimed, buffers[0], digest
                    self._outputs.ask(jobs.CheckMoments(chunk, self._sizes[chunk], buffers[0], digest))

    def _begin(self, manifest: MomentsManifest, hashes: Buffer, signature: Buffer, now: float) -> None:
        if manifest.schema != self._schema.digest:
            self._outputs.emit(UpdateRefused(self.source, "schema"))
            return self._next(now)
        sound = (
            manifest.parameters == self._schema.trainable
            and manifest.chunk_parameters == chunk_parameters(self._schema.size)
            and memoryview(hashes).nbytes == HASH * len(self._sizes)
            and self._verify(self.source, _signed(manifest, hashes), bytes(signature))
        )
        if not sound:
            self._outputs.emit(UpdateRefused(self.source, "manifest of moments"))
            return self._next(now)
        self._hashes, self._number, self._claimed = bytes(hashes), manifest.number, manifest.steps
        self._fetching = True
        self._requests.begin(now)
        self._ask(now)

    def _ask(self, now: float) -> None:
        missing = set(range(len(self._sizes))) - self._taken.keys() - self._working.keys()
        wanted = self._requests.ask(missing, len(self._working), now)
        if wanted:
            self._outputs.send(self.source, MomentsAsk(self._transfer, self._number, wanted, self._requests.number))

    def checked(self, job: jobs.CheckMoments, result: jobs.Checked, now: float) -> None:
        """The result of a CheckMoments."""
        if self.over or job.chunk not in self._working:
            return
        source, steps, payload, digest = self._working.pop(job.chunk)
        if not result.finite:
            self._outputs.emit(UpdateRefused(source, "moments"))
            if source == self.source:
                return self._next(now)
        else:
            self._taken[job.chunk] = jobs.Frozen(payload, digest)
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
        if self.over:
            return None
        if self._fetching:
            return min(self._until, self._requests.timer())
        return min(self._until, self._began + self._config.manifest, self._asked_at + self._config.chunk)

    def handle_timer(self, now: float) -> None:
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
            again = self._requests.repeat(now)
            if again is not None:
                self._outputs.send(
                    self.source, MomentsAsk(self._transfer, self._number, (again,), self._requests.number)
                )
            self._ask(now)


class MomentsDesk:
    """What one peer has to do with moments: it keeps those of its own training process, or fetches some for it.

    Args:
        enabled: False: nothing is ever held, given or fetched.
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
        self._tried = self._old = False
        self.enabled = enabled

    @property
    def held(self) -> Moments | None:
        """The newest: for this host's next training process, and for others'."""
        return self._source.held

    def hold(self, moments: Moments, now: float) -> None:
        """The training process has given these."""
        if self.enabled:
            self._fetcher, self._tried, self._old = None, True, False
            self._source.hold(moments, now)

    def outdated(self) -> None:
        """The model here is newer than these moments: others' newer ones are better for the next training process."""
        self._tried, self._old = self._fetcher is not None, True

    def seek(self, schema: Schema, candidates: Callable[[], Sequence[bytes]], preferred: bytes, now: float) -> bool:
        """A training process has none, and `candidates` may: is it worth waiting for?"""
        wanted = self.held is None or self._old
        if self._fetcher is None and self.enabled and not self._tried and wanted:
            found = candidates()
            if not found:
                return False
            self._tried = True
            self._fetcher = MomentsFetcher(
                self._config,
                self._outputs,
                self._verify,
                self._random,
                schema=schema,
                candidates=found,
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
        """`schema`: of this peer's model, if it may give of it."""
        if isinstance(message, MomentsRequest | MomentsAsk):
            self._source.receive(message, source, schema, now)
        elif self._fetcher is not None:
            self._fetcher.receive(message, buffers, source, now)
            self._settle(now)

    def checked(self, job: jobs.CheckMoments, result: jobs.Checked, now: float) -> None:
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
        times = [self._source.timer(), None if self._fetcher is None else self._fetcher.timer()]
        return min((time for time in times if time is not None), default=None)

    def handle_timer(self, now: float) -> None:
        self._source.handle_timer(now)
        if self._fetcher is not None:
            self._fetcher.handle_timer(now)
            self._settle(now)
