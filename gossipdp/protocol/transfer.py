"""State for joiners: the anchor of one member, frozen, hashed, signed, and fetched in chunks from whoever has it.

A source freezes its anchor chunk by chunk (bfloat16) and signs the manifest of hashes; the joiner checks every chunk
against it. Anchors of different members differ a little at every moment, so chunks taken from different sources
are a patchwork of replicas within the consensus distance, which is a valid start: if a source dies, verified
chunks are kept and the rest comes from the next one's manifest (algorithms section 8). No vector is touched here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import msgpack

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol import jobs
from gossipdp.protocol.events import TransferProgress, UpdateRefused
from gossipdp.protocol.messages import StateAsk, StateChunk, StateManifest, StateRefuse, StateRequest
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.wire import Buffer

__all__ = ["Joiner", "Source", "TransferConfig"]

HASH = 16


@dataclass(frozen=True, kw_only=True)
class TransferConfig:
    """Times in seconds."""

    manifest: float = 20.0
    """for a source to freeze its state and send the manifest; then the next source is asked"""
    chunk: float = 5.0
    """without the manifest, or a chunk, ask for it again"""
    silence: float = 20.0
    """without a chunk, go on with another source"""
    window: int = 8
    """chunks asked for at once"""
    max_parameters: int = 1 << 34
    """a larger model does not fit this host"""
    keep: float = 60.0
    """a snapshot nobody has asked of for so long is dropped"""
    fresh: float = 30.0
    """a snapshot younger than this serves the next joiner too"""


def _signed(manifest: StateManifest, schema: Buffer, hashes: Buffer) -> bytes:
    fields = (
        manifest.snapshot,
        manifest.parameters,
        manifest.chunk_parameters,
        manifest.clock,
        manifest.rounds,
        manifest.schema,
        manifest.settings,
    )
    digest = hashlib.blake2b(digest_size=32, person=b"gossipdp state")
    for part in (msgpack.packb(fields), hashlib.blake2b(schema).digest(), hashlib.blake2b(hashes).digest()):
        digest.update(part)
    return digest.digest()


@dataclass
class _Snapshot:
    number: int
    begun: float
    used: float
    clock: int
    rounds: int
    chunks: list[jobs.Frozen] = field(default_factory=list)
    waiting: dict[bytes, int] = field(default_factory=dict)


class Source:
    """Freezes this peer's state when asked, and serves it."""

    def __init__(self, config: TransferConfig, outputs: Outputs, sign: Callable[[bytes], bytes]) -> None:
        self._config, self._outputs, self._sign = config, outputs, sign
        self._snapshot: _Snapshot | None = None
        self._numbers = 0

    def receive(self, message: StateRequest | StateAsk, source: bytes, model: Model | None, now: float) -> None:
        if model is None:
            self._outputs.send(source, StateRefuse(message.transfer, "joining"))
        elif isinstance(message, StateRequest):
            self._request(message.transfer, source, model, now)
        else:
            self._serve(message, source, now)

    def _request(self, transfer: int, source: bytes, model: Model, now: float) -> None:
        snapshot = self._snapshot
        if snapshot is None or (len(snapshot.chunks) == model.chunks and now > snapshot.begun + self._config.fresh):
            self._numbers += 1
            snapshot = self._snapshot = _Snapshot(self._numbers, now, now, model.clock, model.rounds)
            self._outputs.ask(jobs.Freeze(0))
        snapshot.used = now
        if len(snapshot.waiting) < 256:
            snapshot.waiting[source] = transfer
        self._send_manifests(model)

    def frozen(self, job: jobs.Freeze, result: jobs.Frozen, model: Model) -> None:
        """The result of a Freeze: the next chunk, or the manifest."""
        snapshot = self._snapshot
        if snapshot is None or job.chunk != len(snapshot.chunks):
            return
        snapshot.chunks.append(result)
        if len(snapshot.chunks) < model.chunks:
            self._outputs.ask(jobs.Freeze(len(snapshot.chunks)))
        else:
            self._send_manifests(model)

    def _send_manifests(self, model: Model) -> None:
        snapshot = self._snapshot
        if snapshot is None or len(snapshot.chunks) < model.chunks:
            return
        hashes = b"".join(chunk.hash for chunk in snapshot.chunks)
        for peer, transfer in snapshot.waiting.items():
            manifest = StateManifest(
                transfer,
                snapshot.number,
                model.schema.size,
                model.chunk_parameters,
                snapshot.clock,
                snapshot.rounds,
                model.schema.digest,
                model.settings,
                model.distance,
            )
            signature = self._sign(_signed(manifest, model.schema_bytes, hashes))
            self._outputs.send(peer, manifest, [model.schema_bytes, hashes, signature])
        snapshot.waiting.clear()

    def _serve(self, message: StateAsk, source: bytes, now: float) -> None:
        snapshot = self._snapshot
        if snapshot is None or snapshot.number != message.snapshot:
            self._outputs.send(source, StateRefuse(message.transfer, "gone"))
            return
        snapshot.used = now
        for chunk in message.chunks:
            if chunk < len(snapshot.chunks):
                reply = StateChunk(message.transfer, message.snapshot, chunk)
                self._outputs.send(source, reply, [snapshot.chunks[chunk].payload])

    def timer(self) -> float | None:
        return None if self._snapshot is None else self._snapshot.used + self._config.keep

    def handle_timer(self, now: float) -> None:
        if self._snapshot is not None and now >= self._snapshot.used + self._config.keep:
            self._snapshot = None


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a peer with a model knows of it, besides the vectors."""

    schema: Schema
    schema_bytes: bytes
    settings: bytes
    clock: int
    rounds: int
    distance: float = 0.0

    @property
    def chunk_parameters(self) -> int:
        return chunk_parameters(self.schema.size)

    @property
    def chunks(self) -> int:
        return -(-self.schema.size // self.chunk_parameters)


class Joiner:
    """Fetches a model: one source at a time, verified chunks kept across sources.

    `done` turns True when every chunk is adopted; `manifest` and `schema` then say what was fetched.
    """

    def __init__(
        self,
        config: TransferConfig,
        outputs: Outputs,
        verify: Callable[[bytes, bytes, bytes], bool],
        random: Random,
        *,
        settings: bytes,
    ) -> None:
        self._config, self._outputs, self._verify, self._random = config, outputs, verify, random
        self._settings = settings
        self.source: bytes | None = None
        self.manifest: StateManifest | None = None
        self.schema: Schema | None = None
        self.schema_bytes = b""
        self.refusals: dict[bytes, str] = {}
        self.mismatch = ""
        self._hashes = b""
        self._transfer = random.getrandbits(48)
        self._snapshot = 0
        self._missing: set[int] = set()
        self._asked: dict[int, float] = {}
        self._working: dict[int, bytes] = {}
        self._heard_at = self._requested_at = 0.0
        self._retry_at: float | None = None
        self._failures = 0
        self._fetching = False
        self.done = False

    def seek(self, candidates: Sequence[bytes], now: float) -> None:
        """Ask one of `candidates` if no source is at work."""
        if self.done or self.source is not None or self._retry_at is not None or not candidates:
            return
        fresh = [peer for peer in candidates if peer not in self.refusals]
        if not fresh:
            self.refusals.clear()
            fresh = list(candidates)
        self.source = self._random.choice(fresh)
        self._transfer += 1
        self._fetching, self._heard_at = False, now
        self._request(now)

    def _request(self, now: float) -> None:
        assert self.source is not None
        self._requested_at = now
        self._outputs.send(self.source, StateRequest(self._transfer))

    def receive(
        self, message: StateManifest | StateChunk | StateRefuse, buffers: list[Buffer], source: bytes, now: float
    ) -> None:
        if source != self.source or message.transfer != self._transfer or self.done:
            return
        match message:
            case StateRefuse(_, reason):
                self._abandon(reason, now)
            case StateManifest():
                self._begin(message, buffers, now)
            case StateChunk(_, snapshot, chunk):
                if snapshot == self._snapshot and chunk in self._missing and chunk not in self._working:
                    self._heard_at = now
                    self._working[chunk] = source
                    self._asked.pop(chunk, None)
                    digest = bytes(self._hashes[HASH * chunk : HASH * (chunk + 1)])
                    self._outputs.ask(jobs.Adopt(chunk, buffers[0], digest))

    def _begin(self, manifest: StateManifest, buffers: list[Buffer], now: float) -> None:
        if self._fetching:
            return
        assert self.source is not None
        schema_bytes, hashes, signature = (bytes(buffer) for buffer in buffers)
        try:
            schema = Schema.from_bytes(schema_bytes)
        except (ValueError, RemoteProtocolError):
            return self._distrust("schema", now)
        width = chunk_parameters(schema.size)
        chunks = -(-schema.size // width)
        sound = (
            schema.size == manifest.parameters
            and schema.digest == manifest.schema
            and width == manifest.chunk_parameters
            and len(hashes) == HASH * chunks
            and self._verify(self.source, _signed(manifest, schema_bytes, hashes), signature)
        )
        if not sound:
            return self._distrust("manifest", now)
        if schema.size > self._config.max_parameters:
            self.mismatch = "size"
            return self._abandon("size", now)
        if manifest.settings != self._settings:
            self.mismatch = "settings"
            return self._abandon("settings", now)
        if self.schema is not None and self.schema.digest != schema.digest:
            return self._distrust("schema", now)
        if self.schema is None:
            self.schema, self.schema_bytes, self.manifest = schema, schema_bytes, manifest
            self._missing = set(range(chunks))
            self._outputs.ask(jobs.Allocate(schema.size, schema.trainable, width))
        assert self.manifest is not None
        if manifest.clock > self.manifest.clock:
            self.manifest = manifest
        self._failures = 0
        self._hashes, self._snapshot = hashes, manifest.snapshot
        self._fetching, self._heard_at = True, now
        self._ask(now)

    def _ask(self, now: float) -> None:
        room = self._config.window - len(self._asked) - len(self._working)
        wanted = sorted(self._missing - self._asked.keys() - self._working.keys())[: max(0, room)]
        if wanted and self.source is not None:
            self._asked.update(dict.fromkeys(wanted, now))
            self._outputs.send(self.source, StateAsk(self._transfer, self._snapshot, tuple(wanted)))

    def adopted(self, job: jobs.Adopt, result: jobs.Checked, now: float) -> None:
        """The result of an Adopt."""
        source = self._working.pop(job.chunk, b"")
        if not result.finite:
            self._outputs.emit(UpdateRefused(source, "hash"))
            if source == self.source:
                self._abandon("hash", now)
            elif self._fetching:
                self._ask(now)
            return
        self._missing.discard(job.chunk)
        assert self.schema is not None and self.manifest is not None
        of = len(self._hashes) // HASH
        self._outputs.emit(TransferProgress(source, of - len(self._missing), of))
        if not self._missing:
            self.done = True
        elif self._fetching:
            self._ask(now)

    @property
    def busy(self) -> bool:
        """Chunks are coming, or are being taken in."""
        return self._fetching or bool(self._working)

    def gone(self, peer: bytes, now: float) -> None:
        """`peer` has left or failed."""
        if peer == self.source and not self.done:
            self._abandon("gone", now)

    def _distrust(self, reason: str, now: float) -> None:
        if self.source is not None:
            self._outputs.emit(UpdateRefused(self.source, reason))
            self._abandon(reason, now)

    def _abandon(self, reason: str, now: float) -> None:
        if self.source is not None:
            self.refusals[self.source] = reason
        self.source, self._fetching = None, False
        self._asked.clear()
        # A source that is gone is soon replaced by another; one that cannot be used will not be better in a second.
        longest = 5 if reason == "joining" else 8  # but one that is joining will be, and perhaps soon
        self._failures = 0 if reason in ("gone", "silent") else min(self._failures + 1, longest)
        self._retry_at = now + 0.1 * 2.0**self._failures * (1.0 + self._random.random())

    def timer(self) -> float | None:
        if self.done:
            return None
        if self.source is None:
            return self._retry_at
        if not self._fetching:
            return min(self._heard_at + self._config.manifest, self._requested_at + self._config.chunk)
        return min([self._heard_at + self._config.silence, *(at + self._config.chunk for at in self._asked.values())])

    def handle_timer(self, now: float) -> None:
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
        if self.done or self.source is None:
            return
        patience = self._config.silence if self._fetching else self._config.manifest
        if now >= self._heard_at + patience:
            self._abandon("silent", now)
        elif self._fetching:
            for chunk in [chunk for chunk, asked in self._asked.items() if now >= asked + self._config.chunk]:
                del self._asked[chunk]
            self._ask(now)
        elif now >= self._requested_at + self._config.chunk:
            self._request(now)
