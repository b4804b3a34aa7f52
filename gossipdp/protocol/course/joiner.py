"""A joiner fetches the model from one member at a time, in verified chunks (protocol section 7, algorithms section 8).

What goes with the model and is not averaged (`carried_state`) follows the chunks in pieces, exactly. All pieces come
from the source of the last manifest. Pieces that are here are kept if their hashes are in that manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gossipdp.protocol import jobs
from gossipdp.protocol.carried_state import Carried
from gossipdp.protocol.causes import Fault
from gossipdp.protocol.events import Notice, TransferProgress, UpdateRefused
from gossipdp.protocol.membership.progress import LARGEST
from gossipdp.protocol.parts import Parts
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.settings_digest import difference
from gossipdp.protocol.transfer.arrived import Arrived, Origin
from gossipdp.protocol.transfer.layouts import Layouts, Opinion
from gossipdp.protocol.transfer.manifest import Contents, hash_of, read_manifest, signed_part
from gossipdp.protocol.transfer.plausibility import Judge
from gossipdp.protocol.transfer.refusals import Refusal
from gossipdp.protocol.transfer.requests import Requests
from gossipdp.protocol.transfer.source import Giving
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
"""Rounds that a state may claim."""
MOST_PATIENCE: Final = 30
"""A source that goes on freezing is waited for this many times as long as a silent one."""


class Joiner:
    """Fetches a model: one source at a time, verified chunks kept across sources.

    `done` turns True when every chunk is taken in and found plausible. `manifest` and `schema` say what was fetched.

    Args:
        layout: Digest of the schema that the model must have, because it replaces one here (`Resync`). b"": there is no
            model here. It gets its room (`Adopt`), and the operator is told why the network's model cannot be used.
        newer_than: A state of this clock or an older one is refused.
    """

    def __init__(self, parts: Parts, *, layout: bytes = b"", newer_than: int = -1) -> None:
        config = parts.config
        self._config, self._settings, self._keys = config.transfer, config.settings, config.keys
        self._outputs, self._verify, self._random = parts.outputs, parts.verify, parts.random
        self._membership, self._strikes, self._progress = parts.membership, parts.strikes, parts.progress
        self._layout, self._newer_than = layout, newer_than
        self._judge = Judge(parts.outputs, parts.random, config.transfer.witness)
        self._members: Sequence[bytes] = ()
        self.source: bytes | None = None
        self.giver = b""
        """The source of the last chunk that came."""
        self.manifest: StateManifest | None = None
        self.schema: Schema | None = None
        self.schema_bytes = b""
        self.refusals: dict[bytes, Refusal | Fault | str] = {}
        """Why each source was left. A word that the source sent may be no `Refusal`."""
        self._hashes = b""
        self._first_piece = 0
        """Chunks of the vector. Pieces of what goes with it follow."""
        self._pieces: dict[int, Buffer] = {}
        self._carrier: bytes | None = None
        """The source of the pieces."""
        self._reference = self._total = 0
        """Pieces of the reference; chunks and pieces in all."""
        self._here: dict[int, bytes] = {}
        """The hashes of chunks that are taken in."""
        self._transfer = parts.random.getrandbits(48)
        self._layouts = Layouts(parts.outputs, self._transfer, self._config.chunk, self._config.manifest)
        self._snapshot = 0
        self._missing: set[int] = set()
        self._requests = Requests(self._config.window, self._config.chunk, self._config.silence)
        self._working: dict[int, bytes] = {}
        """The source of each chunk that is being taken in; b"" if the chunk was given up meanwhile."""
        self._sought_at = self._requested_at = 0.0
        self._retry_at: float | None = None
        self._failures = self._denials = 0
        self.begun = 0
        """The network's clock when the last manifest came."""
        self._frozen = 0
        """Chunks that the source has frozen, as it says."""
        self._leave_at = 0.0
        """When the source is left if it is still freezing then."""
        self._fetching = self._judged = False
        self.done = False

    def seek(self, candidates: Sequence[bytes], now: float) -> None:
        """Request the state from one of `candidates`, unless a source is at work. The others may become witnesses."""
        self._members = candidates = [peer for peer in candidates if not self._strikes.shuns(peer, now)]
        if self.done or self._complete or self.source is not None or self._retry_at is not None or not candidates:
            return
        fresh = [peer for peer in candidates if peer not in self.refusals]
        if not fresh:
            self.refusals.clear()
            fresh = candidates
        # A model is ten exchanges' worth of bytes, and a relay has exchanges to carry.
        direct = [peer for peer in fresh if self._membership.direct(peer)]
        self.source = self._random.choice(direct or fresh)
        self._transfer += 1
        self._fetching, self._sought_at, self._frozen = False, now, 0
        self._leave_at = now + MOST_PATIENCE * self._config.manifest
        self._request(now)

    def found_ready(self, peer: bytes, now: float) -> None:
        """`peer` has the model by now. A joiner that pauses because all members were joining asks it at once."""
        if self.source is None and self.refusals.get(peer, Refusal.JOINING) == Refusal.JOINING:
            self.refusals.pop(peer, None)
            self._retry_at, self._failures = None, 0
            self.seek([peer], now)

    def shown(self, peer: bytes, layout: bytes, now: float) -> None:
        """`peer` shows the digest of its schema beside this transfer."""
        if peer != self.source and self._membership.voices([peer]) and not self.done:
            self._layouts.shows(peer, layout)
            self._follow_layouts(now)

    def _request(self, now: float) -> None:
        assert self.source is not None
        self._requested_at = now
        self._outputs.send(self.source, StateRequest(self._transfer))

    def receive(self, message: Giving, buffers: list[Buffer], source: bytes, now: float) -> bool:
        """A message of a source or of a witness. Returns whether it is a chunk that was requested."""
        if isinstance(message, StateSample):
            self._judge.heard(message, buffers, source)
            self._settle(now)
            return False
        if self._layouts.expects(source, message.transfer) and not self.done:
            self._second(message, buffers, source, now)
            return False
        if isinstance(message, StateRefuse) and source != self.source:
            self._judge.excused(source, message.transfer)
            self._settle(now)
            return False
        if source != self.source or message.transfer != self._transfer or self.done:
            return False
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
                    self._take_in(chunk, buffers[0])
                    self._working[chunk] = self.giver = source
                    return True
        return False

    def _take_in(self, chunk: int, payload: Buffer) -> None:
        digest = hash_of(self._hashes, chunk)
        if chunk >= self._first_piece:
            return self._outputs.ask(jobs.CheckPiece(chunk, payload, digest))
        self._judge.came(chunk, self._transfer)
        take = jobs.Resync if self._layout else jobs.Adopt
        return self._outputs.ask(take(chunk, payload, digest))

    def _begin(self, manifest: StateManifest, buffers: list[Buffer], now: float) -> None:
        """The source is ready to give chunks: check its manifest."""
        if self._fetching:
            return
        assert self.source is not None
        if manifest.settings != self._settings:
            # First, because the settings decide how a manifest looks. A source is not blamed for its own settings.
            self._tell("GD-303", difference("the network", self._settings, manifest.settings, self._keys))
            return self._abandon(Refusal.SETTINGS, now)
        if manifest.clock > LARGEST or manifest.rounds > MOST_ROUNDS:
            # A peer that took this over could not report it. The source may not have made it up either.
            return self._abandon(Refusal.CLOCK, now)
        if manifest.clock <= self._newer_than:
            return self._abandon(Refusal.OLD, now)
        contents = self._read(manifest, buffers, self.source)
        if isinstance(contents, Fault):
            return self._distrust(contents, now)
        if contents.schema.size > self._config.max_parameters:
            self._tell("GD-502", "the network's model does not fit this host's memory")
            return self._abandon(Refusal.SIZE, now)
        layout, before = contents.schema.digest, b"" if self.schema is None else self.schema.digest
        if layout != (self._layout or (before if self._layouts.agreed(before) else layout)):
            return self._distrust(Fault.SCHEMA, now)
        self._layouts.shows(self.source, layout)
        if self._layouts.opinion(layout) is Opinion.DENIED:
            return self._abandon(Fault.SCHEMA, now)
        if before not in (b"", layout):
            if self._working:
                return self._abandon(Refusal.GONE, now)  # chunks of the layout before are being taken in
            self._drop()
            self.schema = self.manifest = None
        return self._accept(manifest, contents, now)

    def _read(self, manifest: StateManifest, buffers: list[Buffer], source: bytes) -> Contents | Fault:
        """The parts of a manifest that agree and that `source` has signed."""
        contents = read_manifest(manifest, buffers)
        if isinstance(contents, Fault):
            return contents
        signed = signed_part(manifest, contents.schema_bytes, contents.hashes)
        return contents if self._verify(source, signed, contents.signature) else Fault.MANIFEST

    def _second(self, message: Giving, buffers: list[Buffer], peer: bytes, now: float) -> None:
        """Another member shows its layout, or will not. Drop that of the source if two members show another one."""
        match message:
            case StateWait(_, chunks):
                self._layouts.waits(chunks, now)
            case StateManifest() if message.settings == self._settings:
                contents = self._read(message, buffers, peer)
                if isinstance(contents, Fault):
                    self._outputs.emit(UpdateRefused(peer, contents))
                    self._layouts.excused(peer)
                else:
                    self._layouts.shows(peer, contents.schema.digest)
            case _:
                self._layouts.excused(peer)
        self._follow_layouts(now)

    def _follow_layouts(self, now: float) -> None:
        """Drop the source's layout if two members show another one."""
        if self.schema is not None and self._layouts.opinion(self.schema.digest) is Opinion.DENIED:
            self.refusals |= dict.fromkeys(self._layouts.showing(self.schema.digest), Fault.SCHEMA)
            self._drop()
            self._abandon(Fault.SCHEMA, now)
        self._settle(now)

    def _drop(self) -> None:
        """Give up all that was fetched."""
        for chunk in {*self._here, *self._working}:
            self._judge.lost(chunk)
        self._working = dict.fromkeys(self._working, b"")
        self._here.clear()
        self._pieces.clear()
        self._missing = set(range(self._first_piece))

    def _accept(self, manifest: StateManifest, contents: Contents, now: float) -> None:
        """Fetch what is missing under this manifest, and ask witnesses about it."""
        chunks, total, hashes = contents.chunks, contents.total, contents.hashes
        if self.schema is None:
            if not self._layout:
                size, trainable = contents.schema.size, contents.schema.trainable
                self._outputs.ask(jobs.Allocate(size, trainable, contents.width, contents.schema.tensors))
            self.schema, self.schema_bytes, self.manifest = contents.schema, contents.schema_bytes, manifest
            self._missing, self._first_piece = set(range(chunks)), chunks
        assert self.manifest is not None and self.source is not None
        kept = {chunk for chunk, here in self._here.items() if here == hash_of(hashes, chunk)}
        if manifest.clock < self.manifest.clock:
            self.manifest = manifest  # a patchwork is as old as its oldest part
        self._carrier, self._reference, self._total = self.source, contents.reference, total
        self._pieces = {chunk: piece for chunk, piece in self._pieces.items() if chunk in kept}
        self._missing = {chunk for chunk in self._missing if chunk < chunks} | (set(range(chunks, total)) - kept)
        self._failures, self.begun = 0, max(self._progress.clock(), manifest.clock)
        self._hashes, self._snapshot = hashes, manifest.snapshot
        self._fetching = True
        self._requests.begin(now)
        missing = [chunk for chunk in sorted(self._missing) if chunk < chunks]
        self._judge.summon(self._transfer, self.source, manifest, contents.spans, missing, self._others)
        self._go_on(now)

    def _tell(self, code: str, text: str) -> None:
        """Tell the operator why the network's model cannot be used, if this peer has none yet."""
        if not self._layout:
            self._outputs.emit(Notice(code, text))

    def _go_on(self, now: float) -> None:
        if self._complete:
            self.source, self._fetching = None, False
            self._settle(now)
        elif self._fetching:
            self._ask(self._requests.ask(self._missing, self._working, now))

    def _ask(self, chunks: tuple[int, ...]) -> None:
        if chunks and self.source is not None:
            self._outputs.send(self.source, StateAsk(self._transfer, self._snapshot, chunks, self._requests.number))

    @property
    def arrived(self) -> Arrived | None:
        """The fetched model, once all of it is here."""
        if not self.done or self.manifest is None:
            return None
        pieces = [self._pieces[number] for number in range(self._first_piece, self._total)]
        carried = Carried(b"".join(pieces[: self._reference]), b"".join(pieces[self._reference :]))
        return Arrived(
            origin=Origin.RECEIVED,
            schema=self.schema_bytes,
            clock=self.manifest.clock,
            rounds=self.manifest.rounds,
            carried=carried,
            begun=self.begun,
            giver=self.giver,
        )

    def adopted(self, job: jobs.Adopt | jobs.Resync | jobs.CheckPiece, result: jobs.Checked, now: float) -> None:
        """The result of the job that takes a chunk or a piece in."""
        chunk = job.chunk
        source = self._working.pop(chunk)
        if not source:
            return
        if not result.finite:
            self._judge.lost(chunk)
            self._outputs.emit(UpdateRefused(source, Fault.HASH))
            if source == self.source:
                self._abandon(Fault.HASH, now)
            else:
                self._go_on(now)
            return
        self._here[chunk] = job.hash
        piece = isinstance(job, jobs.CheckPiece)
        if not piece or job.hash == hash_of(self._hashes, chunk):
            self._missing.discard(chunk)
            if piece:
                self._pieces[chunk] = job.payload
        self._outputs.emit(TransferProgress(source, self._total - len(self._missing), self._total))
        self._go_on(now)

    def compared(self, result: jobs.Compared | None, now: float) -> None:
        """The result of a Compare."""
        self._judge.compared(result)
        self._settle(now)

    def _settle(self, now: float) -> None:
        """Once all chunks are here and judged: accept them, or fetch the implausible ones again."""
        self._judged = False
        if self.done or self.schema is None or self._missing:
            return
        if not self._layout:
            # One more member shows its layout, if no offer has shown it meanwhile.
            self._layouts.ask(self.schema.digest, self._others, now)
        undecided = not self._layout and self._layouts.opinion(self.schema.digest) is Opinion.OPEN
        self._judged = self._judge.settled(now)
        if not self._judged or undecided:
            return
        refused = self._judge.sentence()
        for source, chunks in refused.items():
            self.refusals[source] = Fault.IMPLAUSIBLE
            self._layouts.distrusts(source)
            lost = {*chunks, *(self._pieces if source == self._carrier else ())}
            self._missing |= lost
            for chunk in lost:
                self._here.pop(chunk, None)
        if refused:
            self._denials += 1
            self._retry_at = now + min(60.0, 2.0**self._denials) * (1.0 + self._random.random())
            return
        self.done = True

    @property
    def _others(self) -> list[bytes]:
        """Members other than the source whose word counts; all others if no such word counts."""
        others = [peer for peer in self._members if peer != (self.source or self.giver)]
        return self._membership.voices(others) or others

    def outdone(self, candidates: Sequence[bytes]) -> bool:
        """Whether each of `candidates` has shown a state that is not newer than the one here."""
        return bool(candidates) and all(self.refusals.get(peer) == Refusal.OLD for peer in candidates)

    @property
    def _complete(self) -> bool:
        return self.schema is not None and not self._missing

    @property
    def busy(self) -> bool:
        """Chunks are coming, are taken in or are judged, or the source says that it is freezing them."""
        freezing = self.source is not None and self._frozen > 0
        return self._fetching or bool(self._working) or self._complete or freezing

    def gone(self, peer: bytes, now: float) -> None:
        """`peer` has left or failed."""
        self._judge.excused(peer)
        self._layouts.excused(peer)
        self._settle(now)
        if peer == self.source and not self.done:
            self._abandon(Refusal.GONE, now)

    def _distrust(self, fault: Fault, now: float) -> None:
        """Leave the source, and count it as a refused update."""
        if self.source is not None:
            self._outputs.emit(UpdateRefused(self.source, fault))
            self._layouts.distrusts(self.source)
            self._abandon(fault, now)

    def _abandon(self, reason: Refusal | Fault | str, now: float) -> None:
        """Leave the source, and pause."""
        if self.source is not None:
            self.refusals[self.source] = reason
        self.source, self._fetching = None, False
        # A source that is gone is replaced at once. One that cannot be used will not be better in a second. One that is
        # joining may soon be.
        longest = 5 if reason == Refusal.JOINING else 8
        at_once = reason in (Refusal.GONE, Refusal.SILENT, Refusal.OLD)
        self._failures = 0 if at_once else min(self._failures + 1, longest)
        self._retry_at = now + 0.1 * 2.0**self._failures * (1.0 + self._random.random())

    def timer(self) -> float | None:
        """When `handle_timer` wants to be called next, or None."""
        if self.done:
            return None
        times = [self._own_timer(), self._layouts.timer()]
        return min((time for time in times if time is not None), default=None)

    def _own_timer(self) -> float | None:
        if self._complete:
            return None if self._judged else self._judge.timer()
        if self.source is None:
            return self._retry_at
        if not self._fetching:
            return min(self._sought_at + self._config.manifest, self._requested_at + self._config.chunk)
        return self._requests.timer()

    def handle_timer(self, now: float) -> None:
        """Repeat requests, or leave a silent source."""
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
        self._layouts.handle_timer(now)
        self._settle(now)
        if self.done or self.source is None:
            return
        if not self._fetching:
            if now >= self._sought_at + self._config.manifest:
                self._abandon(Refusal.SILENT, now)
            elif now >= self._requested_at + self._config.chunk:
                self._request(now)
        elif self._requests.silent(now):
            self._abandon(Refusal.SILENT, now)
        else:
            self._ask(self._requests.repeat(now))
            self._ask(self._requests.ask(self._missing, self._working, now))
