"""The source of a state transfer: this peer's anchor, frozen chunk by chunk, hashed, signed, and kept for a while.

`joiner` describes the transfer, and is its other side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gossipdp.protocol import jobs
from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.transfer.manifest import signed_part
from gossipdp.protocol.transfer.plausibility import Witness
from gossipdp.protocol.transfer.refusals import Refusal
from gossipdp.protocol.wire.messages import (
    StateAsk,
    StateChunk,
    StateManifest,
    StateProbe,
    StateRefuse,
    StateRequest,
    StateSample,
    StateWait,
)

__all__ = ["Asking", "Giving", "Source", "TransferConfig"]

Asking: TypeAlias = StateRequest | StateAsk | StateProbe
Giving: TypeAlias = StateManifest | StateChunk | StateRefuse | StateSample | StateWait

FRESH_ROUNDS: Final = 2
"""Rounds for which a snapshot serves further joiners."""
MOST_WAITING: Final = 256
"""Joiners that wait for one snapshot."""


@dataclass(frozen=True, kw_only=True)
class TransferConfig:
    """Times in seconds."""

    manifest: float = 20.0
    """A source that neither sends the manifest nor reports one more frozen chunk for this time is left."""
    chunk: float = 5.0
    """A request for the manifest or a chunk is repeated after this time, or later on a slow link (`requests`)."""
    silence: float = 20.0
    """A source that sends no chunk for this time is left, or later on a slow link."""
    window: int = 8
    """Open requests for chunks at most."""
    max_parameters: int = 1 << 34
    """A larger model does not fit this host."""
    keep: float = 60.0
    """A snapshot that is not asked for is dropped after this time."""
    fresh: float = 2.0
    """A snapshot younger than this, or of the last `FRESH_ROUNDS` rounds, serves the next joiner too."""
    witness: float = 10.0
    """Once every chunk is here, a witness may take this long to answer."""


@dataclass
class _Snapshot:
    number: int
    begun: float
    used: float
    clock: int
    rounds: int
    asked: int = 0
    """Chunks that are frozen or are being frozen."""
    chunks: list[jobs.Frozen] = field(default_factory=list)
    waiting: dict[bytes, int] = field(default_factory=dict)
    carried: Carried = NOTHING
    """What goes with it. Taken once all chunks are frozen, so it is never older than they are."""
    whole: bool = False


class Source:
    """Freezes this peer's state on request, and serves it.

    Args:
        sign: Signs bytes with this peer's key.
        ahead: Chunks that are being frozen at once.
        incarnation: The upper part of the numbers of snapshots, so that no number is one of an earlier life.
    """

    def __init__(
        self,
        config: TransferConfig,
        outputs: Outputs,
        sign: Callable[[bytes], bytes],
        *,
        ahead: int = 1,
        incarnation: int,
    ) -> None:
        self._config, self._outputs, self._sign, self._ahead = config, outputs, sign, ahead
        self._snapshot: _Snapshot | None = None
        self._freezing = self._strays = 0
        """Chunks that are being frozen now, and those of them that a dropped snapshot asked for."""
        self._numbers = incarnation << 32
        self._witness = Witness(outputs)

    def receive(
        self, message: Asking, source: bytes, model: Model | None, now: float, *, sketches: bool = True
    ) -> None:
        """A joiner asks.

        Args:
            model: as of the clock when it was current; None if this peer gives none now.
            sketches: `source` speaks a protocol version that has `StateSketches`.
        """
        if model is None:
            self._outputs.send(source, StateRefuse(message.transfer, Refusal.JOINING))
            return
        match message:
            case StateRequest(transfer):
                self._request(transfer, source, model, now)
            case StateAsk():
                self._serve(message, source, now)
            case StateProbe():
                self._witness.receive(message, source, model.schema.size, sketches=sketches)

    def _request(self, transfer: int, source: bytes, model: Model, now: float) -> None:
        snapshot = self._snapshot
        if snapshot is None or (snapshot.whole and self._stale(snapshot, model, now)):
            self._numbers += 1
            snapshot = self._snapshot = _Snapshot(self._numbers, now, now, model.clock, model.rounds)
        self._freeze(snapshot, model)
        snapshot.used = now
        if snapshot.waiting.get(source) == transfer:
            self._outputs.send(source, StateWait(transfer, len(snapshot.chunks)))
        elif len(snapshot.waiting) < MOST_WAITING:
            snapshot.waiting[source] = transfer
        self._send_manifests(model)

    def _freeze(self, snapshot: _Snapshot, model: Model) -> None:
        while snapshot.asked < min(len(snapshot.chunks) + self._ahead, model.chunks):
            self._outputs.ask(jobs.Freeze(snapshot.asked))
            snapshot.asked += 1
            self._freezing += 1

    def _stale(self, snapshot: _Snapshot, model: Model, now: float) -> bool:
        return now > snapshot.begun + self._config.fresh and model.rounds > snapshot.rounds + FRESH_ROUNDS

    def hashed(self, job: jobs.HashPiece, result: jobs.Frozen, model: Model) -> None:
        """The result of a HashPiece: the next piece, or the manifest."""
        snapshot = self._snapshot
        if snapshot is not None and job.chunk == len(snapshot.chunks) and not snapshot.whole:
            snapshot.chunks.append(result)
            self._hash_next(snapshot, model)

    def _hash_next(self, snapshot: _Snapshot, model: Model) -> None:
        number = len(snapshot.chunks)
        piece = snapshot.carried.piece(number - model.chunks)
        if piece is not None:
            self._outputs.ask(jobs.HashPiece(number, piece))
            return
        snapshot.whole = True
        self._send_manifests(model)

    def frozen(self, job: jobs.Freeze, result: jobs.Frozen, model: Model) -> None:
        """The result of a Freeze: the next chunks, or what is carried beside them."""
        snapshot = self._snapshot
        self._freezing -= 1
        if snapshot is None or self._strays:
            self._strays -= 1  # the snapshot was dropped meanwhile
            return
        assert job.chunk == len(snapshot.chunks)
        snapshot.chunks.append(result)
        if len(snapshot.chunks) < model.chunks:
            self._freeze(snapshot, model)
        else:
            snapshot.carried = model.carried
            self._hash_next(snapshot, model)

    def sampled(self, result: jobs.Sampled, model: Model) -> None:
        """The result of a Sample."""
        self._witness.sampled(result, model.clock, model.rounds)

    def _send_manifests(self, model: Model) -> None:
        snapshot = self._snapshot
        if snapshot is None or not snapshot.whole:
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
                memoryview(snapshot.carried.reference).nbytes,
                memoryview(snapshot.carried.state).nbytes,
            )
            signature = self._sign(signed_part(manifest, model.schema_bytes, hashes))
            self._outputs.send(peer, manifest, [model.schema_bytes, hashes, signature])
        snapshot.waiting.clear()

    def _serve(self, message: StateAsk, source: bytes, now: float) -> None:
        snapshot = self._snapshot
        if snapshot is None or snapshot.number != message.snapshot:
            self._outputs.send(source, StateRefuse(message.transfer, Refusal.GONE))
            return
        snapshot.used = now
        for chunk in message.chunks:
            if chunk < len(snapshot.chunks):
                reply = StateChunk(message.transfer, message.snapshot, chunk, message.asking)
                self._outputs.send(source, reply, [snapshot.chunks[chunk].payload])

    def forget(self) -> None:
        """Drop the snapshot: this peer gives up its model, or has another one."""
        self._snapshot, self._strays = None, self._freezing

    def timer(self) -> float | None:
        """When `handle_timer` wants to be called next, or None."""
        return None if self._snapshot is None else self._snapshot.used + self._config.keep

    def handle_timer(self, now: float) -> None:
        """Drop a snapshot that is not asked for."""
        if self._snapshot is not None and now >= self._snapshot.used + self._config.keep:
            self.forget()
