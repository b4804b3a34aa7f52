"""Increments that arrive: headers are checked, claimed and fetched; parts are checked, stored and handed out.

`trees` moves them between peers, and `epochs` decides which count. No timer runs here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from gossipdp.protocol.epidemic.config import BroadcastConfig
from gossipdp.protocol.epidemic.epoch_set import EpochSet, Outcome, Verdict
from gossipdp.protocol.epidemic.events import RumourReceived, RumourVoided
from gossipdp.protocol.epidemic.signing import name_of, part_hash, unpack_table, void_name
from gossipdp.protocol.epidemic.store import Record
from gossipdp.protocol.epidemic.trees import Known, Trees
from gossipdp.protocol.events import Event, Notice, UpdateRefused
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import MAX_PART, MAX_PARTS, Got, Prune, Rumour

__all__ = ["Incoming"]


class Incoming:
    """The increments that come to one peer.

    Args:
        verify: whether (peer, bytes, signature) is valid.
        knows: whether an id is that of a member.
        report: takes events.
        counts: counters that the broadcast shares.
    """

    def __init__(
        self,
        config: BroadcastConfig,
        known: Known,
        trees: Trees,
        *,
        verify: Callable[[bytes, bytes, bytes], bool],
        knows: Callable[[bytes], bool],
        outputs: Outputs,
        report: Callable[[Event], None],
        counts: Counter[str],
    ) -> None:
        self._config = config
        self._epochs, self._links, self._store, self._fetches = known
        self._trees = trees
        self._verify, self._knows, self._counts = verify, knows, counts
        self._outputs, self._report = outputs, report
        self.largest = MAX_PARTS * MAX_PART
        """most bytes of a payload. The model lowers it to a number that all peers with the model share"""
        self._cramped = False
        """a notice said that payloads do not fit"""

    def limit(self, largest: int) -> None:
        """The model is known: a payload has at most `largest` bytes."""
        self.largest = largest

    def header(self, rumour: Rumour, buffers: Sequence[Buffer], source: bytes, now: float) -> None:
        """A header comes from `source`, with the table of its parts, or without as part of a proof."""
        name = name_of(rumour, rumour.run)
        if rumour.run != self._config.run:
            # Other settings are the operator's mistake, and prove no fault.
            self._fetches.denied(name, source, now)
            return self._refuse(name, source, "settings")
        record = self._store.get(name)
        if record is not None and not buffers:
            return
        if record is not None and not record.complete:
            return self._header_again(record, source)
        if not self._epochs.admits(rumour.epoch):
            return self._refuse(name, source, "epoch")
        kept = self._epochs.of(rumour.epoch)
        if record is not None or kept.holds(name):
            self._outputs.send(source, Prune((name,)))
            return
        if not self._knows(rumour.origin):
            return self._refuse(name, source, "origin")
        if rumour.clock // self._epochs.span != rumour.epoch:
            return self._deny(name, source, "terms", now)
        if not self._verify(rumour.origin, name, rumour.signature):
            return self._deny(name, source, "signature", now)
        if rumour.size > self.largest:
            # A sender without a model passes it on in good faith. The origin signed it, so the fault is the origin's.
            self._fetches.denied(name, source, now)
            return self.strike(rumour.origin, "size")
        wanted = unpack_table(buffers[0], rumour) if buffers else None
        if buffers and wanted is None:
            return self._deny(name, source, "table", now)
        verdict = kept.claim(name, rumour)
        if verdict.outcome is Outcome.PROOF:
            self.void(rumour.origin, kept, verdict)
        elif verdict.outcome is Outcome.FULL:
            self._refuse(name, source, "full")
        elif verdict.outcome is Outcome.VOID and buffers:
            self._outputs.send(source, Prune((name,)))
            self._trees.show(verdict.proof, source)
        elif wanted is not None and verdict.outcome in (Outcome.NEW, Outcome.KNOWN):
            self._begin(Record(name, rumour, buffers[0], wanted, source), source, now)

    def _header_again(self, record: Record, source: bytes) -> None:
        """The header of an increment under way comes again: `source` sends it if no other peer does, else prune."""
        fetch = self._fetches.get(record.name)
        assert fetch is not None
        if fetch.source in (b"", source):
            self._fetches.switch(fetch, source)
            self._outputs.send(source, Got(record.name, record.have))
        else:
            self._fetches.offered(fetch, source)
            self._outputs.send(source, Prune((record.name,)))

    def _begin(self, record: Record, source: bytes, now: float) -> None:
        """Fetch a new increment, if there is room for it."""
        if self._store.admit(record):
            return self._trees.shown(record, source, now)
        if self._config.gather and not self._cramped and self._store.bytes + record.rumour.size > self._config.retain:
            self._cramped = True
            text = "the increments of some epochs do not fit in memory until they settle: they come late or never"
            self._report(Notice("GD-507", text))
        self._fetches.postponed(record.name, now, self._config.wait, self._config.patience)
        self._refuse(record.name, source, "room")

    def part(self, name: bytes, part: int, payload: Buffer, source: bytes, now: float) -> bool:
        """A part comes from `source`. True if it completes a payload that was lacking inside the state."""
        size = memoryview(payload).nbytes
        record = self._store.get(name)
        if record is None or (part < len(record.wanted) and record.have >> part & 1):
            known = record is not None or any(each.holds(name) for each in self._epochs.live())
            self._counts["repeated" if known else "unasked"] += size
            if record is not None:
                self._outputs.send(source, Got(name, record.have))
            elif known:
                self._outputs.send(source, Prune((name,)))
            # Otherwise its header may still be on its way.
            return False
        if part >= len(record.wanted) or record.wanted[part] != (size, part_hash(payload)):
            self._outputs.send(source, Prune((name,)))
            self._deny(name, source, "hash", now)
            return False
        self._store.put(record, part, payload)
        self._counts["payload"] += size
        self._trees.part_stored(record, source, now)
        if not record.complete:
            return False
        news = self._epochs.of(record.rumour.epoch).complete(name, record.rumour)
        if news and not self._epochs.held:
            self.hand_out(record)
        return not (news or self._epochs.held)

    def hand_out(self, record: Record) -> None:
        """Give a complete increment to the application."""
        record.need(True)
        self._report(RumourReceived(record.name, record.rumour, tuple(record.parts)))

    def void(self, origin: bytes, kept: EpochSet, verdict: Verdict) -> None:
        """No increment of `origin` counts in this epoch: forget them, and tell the neighbours the proof."""
        received = []
        for name, rumour in verdict.fallen:
            record = self._store.get(name)
            received.append((rumour, () if record is None else tuple(record.parts)))
        for record in self._store.records():
            if record.rumour.origin == origin and record.rumour.epoch == kept.epoch:
                self._trees.forget(record.name)
        self._fetches.end(void_name(origin, kept.epoch, self._config.run))
        if not self._epochs.held:
            self._report(RumourVoided(origin, kept.epoch, tuple(received)))
        for link in self._links.neighbours():
            self._trees.show(verdict.proof, link.peer)

    def _refuse(self, name: bytes, source: bytes, reason: str) -> None:
        """Refuse an increment that may be taken later. No peer is at fault."""
        self._counts[reason] += 1
        self._outputs.send(source, Prune((name,)))

    def _deny(self, name: bytes, source: bytes, reason: str, now: float) -> None:
        """Refuse what no honest peer sends under this name, and ask another peer."""
        self._fetches.denied(name, source, now)
        self.strike(source, reason)

    def strike(self, source: bytes, reason: str) -> None:
        """Report a fault that no honest peer makes. Its consequences are decided elsewhere."""
        self._counts[reason] += 1
        self._report(UpdateRefused(source, reason))
