"""The giving side of a state transfer: this peer's anchor, frozen chunk by chunk, hashed, signed, and kept for a while.

What a transfer is, and the side that fetches, are in `transfer`. No vector is touched here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias

import msgpack

from gossipdp.protocol import jobs
from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.transfer.plausibility import Witness
from gossipdp.protocol.wire.encoding import Buffer
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

__all__ = ["HASH", "Asking", "Giving", "Shared", "Source", "TransferConfig", "signed_part"]

Asking: TypeAlias = StateRequest | StateAsk | StateProbe
Giving: TypeAlias = StateManifest | StateChunk | StateRefuse | StateSample | StateWait

HASH = 16
FRESH_ROUNDS = 2


@dataclass(frozen=True, kw_only=True)
class TransferConfig:
    """Times in seconds."""

    manifest: float = 20.0
    """for a source to send the manifest, since it has last told of a chunk more that it has frozen; then the next
    source is asked"""
    chunk: float = 5.0
    """without the manifest, or a chunk, ask for it again; on a slow link later (`flow`)"""
    silence: float = 20.0
    """without a chunk, go on with another source; on a slow link later"""
    window: int = 8
    """chunks asked for at once, at the most"""
    max_parameters: int = 1 << 34
    """a larger model does not fit this host"""
    keep: float = 60.0
    """a snapshot nobody has asked of for so long is dropped"""
    fresh: float = 2.0
    """a snapshot younger than this, or of the last `FRESH_ROUNDS` rounds, serves the next joiner too"""
    exact: bool = False
    """the state is one that all share, bit for bit"""
    witness: float = 10.0
    """once every chunk is here, for another peer to say whether the state is plausible"""


class Shared(Protocol):
    """The state that all peers share, as its owner sees it."""

    def freeze(self, begin: Callable[[], bool]) -> None:
        """Call `begin` when nothing is being done to the state, now or later. If it says so nothing is done to it until
        `frozen`."""

    def frozen(self) -> None:
        """The state may change again."""

    def summary(self) -> bytes:
        """What is inside the state."""


def signed_part(manifest: StateManifest, schema: Buffer, hashes: Buffer, summary: Buffer | None = None) -> bytes:
    fields = (
        manifest.snapshot,
        manifest.parameters,
        manifest.chunk_parameters,
        manifest.clock,
        manifest.rounds,
        manifest.schema,
        manifest.settings,
        manifest.reference,
        manifest.state,
    )
    digest = hashlib.blake2b(digest_size=32, person=b"gossipdp state")
    for part in (msgpack.packb(fields), hashlib.blake2b(schema).digest(), hashlib.blake2b(hashes).digest()):
        digest.update(part)
    if summary is not None:
        digest.update(hashlib.blake2b(summary).digest())
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
    summary: bytes | None = None
    """of an exact state, once its making has begun"""
    carried: Carried = NOTHING
    """what goes with it, once all chunks are frozen: then it is never older than they are"""
    whole: bool = False


class Source:
    """Freezes this peer's state when asked, and serves it.

    Args:
        incarnation: what its snapshots' numbers begin with, so that none is that of an earlier life.
        shared: if the state is one that all share, and is to be given exactly.
    """

    def __init__(
        self,
        config: TransferConfig,
        outputs: Outputs,
        sign: Callable[[bytes], bytes],
        shared: Shared | None = None,
        *,
        incarnation: int,
    ) -> None:
        self._config, self._outputs, self._sign, self._shared = config, outputs, sign, shared
        self._snapshot: _Snapshot | None = None
        self._numbers = incarnation << 32
        self._witness = Witness(outputs)
        self._behind = 0

    def took(self, behind: int) -> None:
        """The anchor is another's as it was `behind` steps ago: its transfer took so long. What all share is made up to
        date by the increments that came meanwhile."""
        self._behind = max(0, behind) if self._shared is None else 0

    @property
    def behind(self) -> int:
        """Steps of the network's clock that the anchor is older than that clock says."""
        return self._behind

    def aged(self, steps: int) -> None:
        """The network has made so many steps without this peer."""
        self.took(self._behind + steps)

    def mixed(self) -> None:
        """The anchor has met that of a partner in step, at a weight of one half."""
        self._behind //= 2

    def receive(
        self, message: StateRequest | StateAsk | StateProbe, source: bytes, model: Model | None, now: float
    ) -> None:
        if model is None:
            self._outputs.send(source, StateRefuse(message.transfer, "joining"))
            return
        match message:
            case StateRequest(transfer):
                self._request(transfer, source, model, now)
            case StateAsk():
                self._serve(message, source, now)
            case StateProbe():
                self._witness.receive(message, source, model.schema.size)

    def _request(self, transfer: int, source: bytes, model: Model, now: float) -> None:
        snapshot = self._snapshot
        if snapshot is None or (snapshot.whole and self._stale(snapshot, model, now)):
            self._numbers += 1
            snapshot = self._snapshot = _Snapshot(self._numbers, now, now, model.clock - self._behind, model.rounds)
            if self._shared is None:
                self._outputs.ask(jobs.Freeze(0))
            else:
                self._shared.freeze(partial(self._begin, snapshot))
        snapshot.used = now
        if snapshot.waiting.get(source) == transfer:
            self._outputs.send(source, StateWait(transfer, len(snapshot.chunks)))
        elif len(snapshot.waiting) < 256:
            snapshot.waiting[source] = transfer
        self._send_manifests(model)

    def _begin(self, snapshot: _Snapshot) -> bool:
        if snapshot is not self._snapshot:
            return False  # forgotten while it waited
        assert self._shared is not None
        snapshot.summary = self._shared.summary()
        self._outputs.ask(jobs.Freeze(0))
        return True

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
        """The result of a Freeze: the next chunk, or what is carried beside them."""
        snapshot, shared = self._snapshot, self._shared
        waits = shared is not None and snapshot is not None and snapshot.summary is None
        if snapshot is None or waits or job.chunk != len(snapshot.chunks):
            # One that was forgotten meanwhile. It had the state for itself until now.
            return None if shared is None else shared.frozen()
        snapshot.chunks.append(result)
        if len(snapshot.chunks) < model.chunks:
            self._outputs.ask(jobs.Freeze(len(snapshot.chunks)))
            return None
        if shared is not None:
            shared.frozen()
        snapshot.carried = model.carried
        return self._hash_next(snapshot, model)

    def sampled(self, result: jobs.Sampled, model: Model) -> None:
        """The result of a Sample."""
        self._witness.sampled(result, model.clock - self._behind, model.rounds)

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
            summary = snapshot.summary
            signature = self._sign(signed_part(manifest, model.schema_bytes, hashes, summary))
            inside = [] if summary is None else [summary]
            self._outputs.send(peer, manifest, [model.schema_bytes, hashes, signature, *inside])
        snapshot.waiting.clear()

    def _serve(self, message: StateAsk, source: bytes, now: float) -> None:
        snapshot = self._snapshot
        if snapshot is None or snapshot.number != message.snapshot:
            self._outputs.send(source, StateRefuse(message.transfer, "gone"))
            return
        snapshot.used = now
        for chunk in message.chunks:
            if chunk < len(snapshot.chunks):
                reply = StateChunk(message.transfer, message.snapshot, chunk, message.asking)
                self._outputs.send(source, reply, [snapshot.chunks[chunk].payload])

    def forget(self) -> None:
        """This peer is to follow others: what it has frozen is not to be handed on."""
        self._snapshot = None

    def timer(self) -> float | None:
        return None if self._snapshot is None else self._snapshot.used + self._config.keep

    def handle_timer(self, now: float) -> None:
        if self._snapshot is not None and now >= self._snapshot.used + self._config.keep:
            self._snapshot = None
