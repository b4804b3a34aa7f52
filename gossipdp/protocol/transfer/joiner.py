"""State for joiners: the anchor of one member, frozen, hashed, signed, and fetched in chunks from whoever has it.

A source freezes its anchor chunk by chunk (bfloat16) and signs the manifest of hashes; the joiner checks every chunk
against it. Anchors of different members differ a little at every moment, so chunks taken from different sources
are a patchwork of replicas within the consensus distance, which is a valid start: if a source dies, verified
chunks are kept and the rest comes from the next one's manifest (algorithms section 8).

Where anchors are the same bits everywhere (`epidemic`) a state is exact: a snapshot stands still while it is made, what
is inside it is signed with it, and of the chunks that are here already only those are kept that are the same in the
next source's. One member signs for that, and it is judged by others' values to a tolerance, as anchors that differ are;
that a state is nobody else's is found once it is taken, by the digests of epochs, and then it is fetched anew.

What goes with the model and is not averaged (`carrying`) follows the chunks, in pieces, exactly. Pieces are all of the
source whose manifest came last: those that are here already are kept where their hashes are in it. No vector is touched
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol import jobs
from gossipdp.protocol.carried_state import Carried, pieces, reference_digest
from gossipdp.protocol.events import TransferProgress, UpdateRefused
from gossipdp.protocol.membership.progress import LARGEST
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.schema import MOST, MOST_EXACT, Schema, chunk_parameters
from gossipdp.protocol.settings_digest import unlike
from gossipdp.protocol.transfer.plausibility import Judge
from gossipdp.protocol.transfer.requests import Requests
from gossipdp.protocol.transfer.source import HASH, Giving, TransferConfig, signed_part
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import (
    StateAsk,
    StateChunk,
    StateManifest,
    StateRefuse,
    StateRequest,
    StateSample,
    StateWait,
)

__all__ = ["Joiner"]

MOST_ROUNDS: Final = 1 << 31
"""of a state"""
OLD: Final = "old"
"""why a state is refused that is no newer than the one here"""
MOST_PATIENCE: Final = 30
"""times as long as with one that says nothing a source is waited for that goes on freezing"""


def _hash_of(hashes: bytes, chunk: int) -> bytes:
    return hashes[HASH * chunk : HASH * (chunk + 1)]


class Joiner:
    """Fetches a model: one source at a time, verified chunks kept across sources.

    `done` turns True when every chunk is taken in and found plausible; `manifest` and `schema` say what was fetched.

    Args:
        take: makes the job that takes a chunk in, of its number, payload and hash. With another than `Adopt` the model
            has its room already.
        shuns: who is not to be asked at this time.
        clock: the network's, in steps.
        newer_than: a state of this clock or an older one is refused.
        came: is told when a chunk came that was asked for.
    """

    def __init__(
        self,
        config: TransferConfig,
        outputs: Outputs,
        verify: Callable[[bytes, bytes, bytes], bool],
        random: Random,
        *,
        settings: bytes,
        keys: Sequence[str] = (),
        take: Callable[[int, Buffer, bytes], jobs.Job[object]] = jobs.Adopt,
        shuns: Callable[[bytes, float], bool] = lambda peer, now: False,
        clock: Callable[[], int] = lambda: 0,
        newer_than: int = -1,
        came: Callable[[float], None] = lambda now: None,
    ) -> None:
        self._config, self._outputs, self._verify, self._random = config, outputs, verify, random
        self._clock, self._newer_than, self._came = clock, newer_than, came
        self._settings, self._keys, self._take, self._shuns = settings, keys, take, shuns
        self._exact = config.exact
        self._most = MOST_EXACT if config.exact else MOST
        self._judge = Judge(outputs, random, config.witness)
        self._members: Sequence[bytes] = ()
        self.source: bytes | None = None
        self.giver = b""
        """of the last chunk that was taken"""
        self.manifest: StateManifest | None = None
        self.schema: Schema | None = None
        self.schema_bytes = b""
        self.refusals: dict[bytes, str] = {}
        self.mismatch = ""
        """what the operator has to know of the state that was turned down: "size", or how the settings differ"""
        self.summary = b""
        """what is inside an exact state"""
        self._hashes = b""
        self._first_piece = 0
        """chunks of the vector; pieces of what goes with it follow"""
        self._pieces: dict[int, Buffer] = {}
        self._carrier: bytes | None = None
        """whose pieces they are"""
        self._carry = (0, 0)
        """pieces of the reference; chunks and pieces in all"""
        self._here: dict[int, bytes] = {}
        """of chunks that are taken in, their hashes"""
        self._transfer = random.getrandbits(48)
        self._snapshot = 0
        self._missing: set[int] = set()
        self._requests = Requests(config.window, config.chunk, config.silence)
        self._working: dict[int, bytes] = {}
        """chunk: the source it came from"""
        self._sought_at = self._requested_at = 0.0
        self._retry_at: float | None = None
        self._failures = self._denials = 0
        self.begun = 0
        """the network's clock when the last manifest came"""
        self._frozen = 0
        """chunks that the source has frozen, as it says"""
        self._leave_at = 0.0
        """the source, if it is still freezing then"""
        self._fetching = False
        self.done = False

    def seek(self, candidates: Sequence[bytes], now: float) -> None:
        """Ask one of `candidates` if no source is at work; others of them may be asked about it."""
        self._members = candidates = [peer for peer in candidates if not self._shuns(peer, now)]
        if self.done or self._complete or self.source is not None or self._retry_at is not None or not candidates:
            return
        fresh = [peer for peer in candidates if peer not in self.refusals]
        if not fresh:
            self.refusals.clear()
            fresh = candidates
        self.source = self._random.choice(fresh)
        self._transfer += 1
        self._fetching, self._sought_at, self._frozen = False, now, 0
        self._leave_at = now + MOST_PATIENCE * self._config.manifest
        self._request(now)

    def beckoned(self, peer: bytes, now: float) -> None:
        """`peer` has the model by now: whoever paused because all were joining asks it at once."""
        if self.source is None and self.refusals.get(peer, "joining") == "joining":
            self.refusals.pop(peer, None)
            self._retry_at, self._failures = None, 0
            self.seek([peer], now)

    def _request(self, now: float) -> None:
        assert self.source is not None
        self._requested_at = now
        self._outputs.send(self.source, StateRequest(self._transfer))

    def receive(
        self,
        message: Giving,
        buffers: list[Buffer],
        source: bytes,
        now: float,
    ) -> None:
        if isinstance(message, StateSample):
            self._judge.heard(message, buffers, source)
            self._settle(now)
            return
        if isinstance(message, StateRefuse) and source != self.source:
            self._judge.excused(source, message.transfer)
            self._settle(now)
            return
        if source != self.source or message.transfer != self._transfer or self.done:
            return
        match message:
            case StateRefuse(_, reason):
                self._abandon(reason, now)
            case StateWait(_, chunks):
                if chunks > self._frozen and now < self._leave_at:
                    self._frozen, self._sought_at = chunks, now
            case StateManifest():
                self._begin(message, buffers, now)
            case StateChunk(_, snapshot, chunk, asking):
                if snapshot == self._snapshot and chunk in self._missing and chunk not in self._working:
                    self._requests.came(chunk, asking, now)
                    self._came(now)
                    self._working[chunk] = self.giver = source
                    digest = _hash_of(self._hashes, chunk)
                    if chunk >= self._first_piece:
                        self._outputs.ask(jobs.CheckPiece(chunk, buffers[0], digest))
                    else:
                        self._judge.came(chunk, self._transfer)
                        self._outputs.ask(self._take(chunk, buffers[0], digest))

    def _begin(self, manifest: StateManifest, buffers: list[Buffer], now: float) -> None:
        if self._fetching:
            return
        assert self.source is not None
        if manifest.settings != self._settings:
            # First of all, for what a manifest looks like follows from the settings: nobody is blamed for its own.
            self.mismatch = unlike("the network", self._settings, manifest.settings, self._keys)
            return self._abandon("settings", now)
        if manifest.clock > LARGEST or manifest.rounds > MOST_ROUNDS:
            # Others could not read what is said by whoever took this over, and nor may its source have made it up.
            return self._abandon("clock", now)
        if manifest.clock <= self._newer_than:
            return self._abandon(OLD, now)
        if len(buffers) != 3 + self._exact:
            return self._distrust("manifest", now)
        schema_bytes, hashes, signature, *rest = (bytes(buffer) for buffer in buffers)
        summary = rest[0] if rest else None
        try:
            schema = Schema.from_bytes(schema_bytes)
        except (ValueError, RemoteProtocolError):
            return self._distrust("schema", now)
        width = chunk_parameters(schema.size, self._most)
        spans = schema.spans(self._most)
        chunks, own = len(spans), pieces(manifest.reference)
        of = chunks + own + pieces(manifest.state)
        sound = (
            schema.size == manifest.parameters
            and schema.digest == manifest.schema
            and width == manifest.chunk_parameters
            and len(hashes) == HASH * of
            and schema.reference == reference_digest(hashes[HASH * chunks : HASH * (chunks + own)])
            and self._verify(self.source, signed_part(manifest, schema_bytes, hashes, summary), signature)
        )
        if not sound:
            return self._distrust("manifest", now)
        if schema.size > self._config.max_parameters:
            self.mismatch = "size"
            return self._abandon("size", now)
        if self.schema is not None and self.schema.digest != schema.digest:
            return self._distrust("schema", now)
        if self.schema is None:
            self.schema, self.schema_bytes, self.manifest = schema, schema_bytes, manifest
            self._missing, self._first_piece = set(range(chunks)), chunks
            if self._take is jobs.Adopt:
                self._outputs.ask(jobs.Allocate(schema.size, schema.trainable, width))
        assert self.manifest is not None
        kept = {chunk for chunk, here in self._here.items() if here == _hash_of(hashes, chunk)}
        if summary is not None:
            self.manifest, self.summary = manifest, summary
            self._missing = set(range(chunks)) - kept | self._working.keys()
        elif manifest.clock < self.manifest.clock:
            self.manifest = manifest  # a patchwork is as old as its oldest part
        self._carrier, self._carry = self.source, (own, of)
        self._pieces = {chunk: piece for chunk, piece in self._pieces.items() if chunk in kept}
        self._missing = {chunk for chunk in self._missing if chunk < chunks} | (set(range(chunks, of)) - kept)
        self._failures, self.begun = 0, max(self._clock(), manifest.clock)
        self._hashes, self._snapshot = hashes, manifest.snapshot
        self._fetching = True
        self._requests.begin(now)
        missing = [chunk for chunk in sorted(self._missing) if chunk < chunks]
        self._judge.summon(self._transfer, self.source, manifest, spans, missing, self._members)
        self._go_on(now)

    def _go_on(self, now: float) -> None:
        if self._complete:
            self.source, self._fetching = None, False
            self._settle(now)
        elif self._fetching:
            self._ask(now)

    def _ask(self, now: float) -> None:
        wanted = self._requests.ask(self._missing - self._working.keys(), len(self._working), now)
        if wanted and self.source is not None:
            self._outputs.send(self.source, StateAsk(self._transfer, self._snapshot, wanted, self._requests.number))

    @property
    def carried(self) -> Carried:
        """What goes with the model, once all of it is here."""
        own, of = self._carry
        parts = [self._pieces[self._first_piece + number] for number in range(of - self._first_piece)]
        return Carried(b"".join(parts[:own]), b"".join(parts[own:]))

    def adopted(self, job: jobs.Adopt | jobs.Resync | jobs.CheckPiece, result: jobs.Checked, now: float) -> None:
        """The result of the job that takes a chunk in, or a piece."""
        chunk = job.chunk
        source = self._working.pop(chunk)
        if not result.finite:
            self._judge.lost(chunk)
            self._outputs.emit(UpdateRefused(source, "hash"))
            if source == self.source:
                self._abandon("hash", now)
            else:
                self._go_on(now)
            return
        self._here[chunk] = job.hash
        piece = isinstance(job, jobs.CheckPiece)
        if job.hash == _hash_of(self._hashes, chunk) or not (piece or self._exact):
            self._missing.discard(chunk)
            if piece:
                self._pieces[chunk] = job.payload
        assert self.schema is not None and self.manifest is not None
        of = len(self._hashes) // HASH
        self._outputs.emit(TransferProgress(source, of - len(self._missing), of))
        self._go_on(now)

    def compared(self, result: jobs.Compared | None, now: float) -> None:
        """The result of a Compare."""
        self._judge.compared(result)
        self._settle(now)

    def _settle(self, now: float) -> None:
        """Everything is here: is it plausible?"""
        if self.done or not self._complete or not self._judge.settled(now):
            return
        refused = self._judge.sentence()
        for source, chunks in refused.items():
            self.refusals[source] = "implausible"
            lost = {*chunks, *(self._pieces if source == self._carrier else ())}
            self._missing |= lost
            for chunk in lost:
                self._here.pop(chunk, None)
        if refused:
            self._denials += 1
            self._retry_at = now + min(60.0, 2.0**self._denials) * (1.0 + self._random.random())
        self.done = not refused

    def outdone(self, candidates: Sequence[bytes]) -> bool:
        """Has each of `candidates` shown a state that is no newer than the one here?"""
        return bool(candidates) and all(self.refusals.get(peer) == OLD for peer in candidates)

    @property
    def _complete(self) -> bool:
        return self.schema is not None and not self._missing

    @property
    def busy(self) -> bool:
        """Chunks are coming, are being taken in, or are judged; or the source says that it is getting them ready."""
        freezing = self.source is not None and self._frozen > 0
        return self._fetching or bool(self._working) or self._complete or freezing

    def gone(self, peer: bytes, now: float) -> None:
        """`peer` has left or failed."""
        self._judge.excused(peer)
        self._settle(now)
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
        # A source that is gone is soon replaced by another; one that cannot be used will not be better in a second.
        longest = 5 if reason == "joining" else 8  # but one that is joining will be, and perhaps soon
        self._failures = 0 if reason in ("gone", "silent", OLD) else min(self._failures + 1, longest)
        self._retry_at = now + 0.1 * 2.0**self._failures * (1.0 + self._random.random())

    def timer(self) -> float | None:
        if self.done:
            return None
        if self._complete:
            return self._judge.timer()
        if self.source is None:
            return self._retry_at
        if not self._fetching:
            return min(self._sought_at + self._config.manifest, self._requested_at + self._config.chunk)
        return self._requests.timer()

    def handle_timer(self, now: float) -> None:
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
        self._settle(now)
        if self.done or self.source is None:
            return
        if not self._fetching:
            if now >= self._sought_at + self._config.manifest:
                self._abandon("silent", now)
            elif now >= self._requested_at + self._config.chunk:
                self._request(now)
        elif self._requests.silent(now):
            self._abandon("silent", now)
        else:
            again = self._requests.repeat(now)
            if again is not None:
                self._outputs.send(
                    self.source, StateAsk(self._transfer, self._snapshot, (again,), self._requests.number)
                )
            self._ask(now)
