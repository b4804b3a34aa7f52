"""Rumours: what one peer publishes, every other gets once, whole and verified, and all agree on what there was.

Plumtree (Leitao, Pereira, Rodrigues 2007, "Epidemic broadcast trees"): a rumour goes eagerly along the links of a tree,
and is announced along the others, so that the payload crosses about as many links as there are peers; who misses what
was announced grafts the link, who gets what it has prunes it. Three things differ from the paper. Payloads are large:
the header goes ahead, and each part follows as soon as it is here, checked by its own hash, so a rumour crosses many
links at once; and over a link not tried before the payload waits until it is wanted. Every origin has a tree of its
own, for all publish at the same pace, and one tree would load its inner peers with everything. Each answer says which
parts the receiver has, so loss, repetition and a change of source need no other word.

A rumour is known by (origin, incarnation, epoch, sequence); `epochs` says which count. Two that are signed for one
place are both proof that neither counts, for replicas have to agree whichever they saw first: the proof is told to
everybody, and the origin's rumours of that epoch are taken back. The limit: a proof that comes when the epoch has
settled here, or that an origin and its friends show to some shortly before, leaves replicas that differ; their digests
tell them so, and who is outnumbered fetches the state anew.

The network's clock is believed, as everywhere (`progress`). What a rumour is of, and what is done with it, is the
application's: no vector is touched here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from gossipdp.errors import LocalProtocolError
from gossipdp.protocol.epidemic import state_summary as rumour_summary
from gossipdp.protocol.epidemic.epoch_digests import EpochTalk
from gossipdp.protocol.epidemic.epochs import MAX_HELD, Epochs, EpochSet, Verdict
from gossipdp.protocol.epidemic.events import EpochClosed, EpochGathered, RumourReceived, RumourVoided
from gossipdp.protocol.epidemic.fetching import Fetches
from gossipdp.protocol.epidemic.links import Links
from gossipdp.protocol.epidemic.signing import make, name_of, part_hash, unpack_table, void_name
from gossipdp.protocol.epidemic.store import Record, Store
from gossipdp.protocol.epidemic.trees import Trees
from gossipdp.protocol.events import EpochSettled, Notice, UpdateRefused
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import (
    MAX_PART,
    MAX_PARTS,
    MAX_SEQUENCE,
    NO_BASE,
    NO_RUN,
    EpochDigest,
    Got,
    Graft,
    IHave,
    Prune,
    Rumour,
    RumourPart,
)

__all__ = ["RumourMessage", "Rumours", "RumoursConfig"]

RumourMessage: TypeAlias = Rumour | RumourPart | Got | IHave | Graft | Prune | EpochDigest


@dataclass(frozen=True, kw_only=True)
class RumoursConfig:
    """Times in seconds. `run` and `span` have to be the same for all."""

    run: bytes = NO_RUN
    """16 bytes that name the run and its settings: what was signed for another counts nothing"""
    span: int = 50
    """steps of the network's clock in an epoch"""
    retain: int = 1 << 30
    """bytes of payloads kept for others"""
    gather: bool = False
    """what is done with an epoch is done with all of it, as it settles: payloads are kept until then, and, if there is
    room, for whoever has taken a state over"""
    neighbours: int = 3
    """chosen by this peer; it has about as many more that chose it"""
    window: int = 8
    """parts under way to one neighbour, at the most"""
    again: float = 10.0
    """without an answer what was sent is sent again, on a slow link later (`credit`); the largest part takes 8.4 s at
    the least rate, 1 Mbit/s"""
    wait: float = 1.0
    """for the tree to bring what was announced"""
    patience: float = 20.0
    """for the next part, before another is asked; on a slow link longer"""
    sync: float = 5.0
    """between two comparisons with some other member"""


class Rumours:
    """`counts` are of bytes (payload, repeated, unasked), and of what was refused, by reason.

    Until `found` or `adopt` this peer has no state for rumours to change: it gathers them, and hands none out.

    Args:
        verify: of a peer, some bytes and its signature.
        knows: whether an id is that of some member; rumours of nobody are refused until it is.
        shuns: whether a peer is set aside at this time; it is not listened to.
    """

    def __init__(
        self,
        config: RumoursConfig,
        me: bytes,
        *,
        incarnation: int,
        random: Random,
        outputs: Outputs,
        sign: Callable[[bytes], bytes],
        verify: Callable[[bytes, bytes, bytes], bool],
        knows: Callable[[bytes], bool],
        shuns: Callable[[bytes, float], bool],
        now: float,
    ) -> None:
        self._config, self._me, self._incarnation, self._outputs = config, me, incarnation, outputs
        self._sign, self._verify, self._knows, self._shuns = sign, verify, knows, shuns
        self._epochs = Epochs(config.span, config.run)
        self._links = Links(me, config.neighbours, config.window, config.again)
        self._store = Store(config.retain, self._links.stop)
        self._fetches = Fetches()
        self._talk = EpochTalk(
            self._epochs,
            self._links,
            run=config.run,
            incarnation=incarnation,
            every=config.sync,
            serves=lambda name: self._store.get(name) is not None,
            random=random,
            outputs=outputs,
            sign=sign,
            verify=verify,
            now=now,
        )
        self.counts: Counter[str] = Counter()
        self.largest = MAX_PARTS * MAX_PART
        """bytes of one payload; less once the model is known, and then the same for all who know it"""
        self._trees = Trees(
            self._epochs,
            self._links,
            self._store,
            self._fetches,
            wait=config.wait,
            patience=config.patience,
            outputs=outputs,
            counts=self.counts,
        )
        self._clock = 0
        self._cramped = False
        """payloads had no room, and it was told"""
        self._published = (-1, 0)
        """the epoch of the last own rumour, and how many there are of it"""

    # -- commands ---------------------------------------------------------------------------------------------

    def found(self, now: float, base: bytes = NO_BASE) -> None:
        """This peer has the network's first state, or goes on from its own alone: `base` names this founding. What was
        published until now may be in that state, or may not: it counts no more, and the next epoch is the first."""
        self._epochs.restart(self._clock // self._config.span + 1 if self._clock else 0, {}, base)
        self._open(set(), now)

    def hold(self) -> None:
        """The state is going to be replaced: rumours are gathered, and none is handed out until `adopt`."""
        self._epochs.held = True

    def summary(self) -> bytes:
        """What is inside the state, for whoever takes a copy of it made at this moment."""
        if self._epochs.held:
            raise LocalProtocolError("no state, so nothing is inside it")
        return rumour_summary.pack(self._epochs)

    def adopt(self, summary: Buffer, now: float) -> bool:
        """The state is now a copy that came with `summary`: what is not inside it is handed out, be it for a second
        time. False if that is no summary, or one of a time to come."""
        config = self._config
        taken = rumour_summary.unpack(
            summary, span=config.span, run=config.run, largest=self.largest, verify=self._verify
        )
        if taken is None or taken.first > self._clock // config.span + 1:
            return False
        self._epochs.restart(taken.first, taken.settled(), taken.base, taken.usual())
        self._epochs.held = True
        self._epochs.advance(self._clock)
        inside = set()
        for rumour in taken.inside:
            name = name_of(rumour, self._config.run)
            if self._epochs.admits(rumour.epoch) and self._epochs.of(rumour.epoch).claim(name, rumour).word == "new":
                self._epochs.of(rumour.epoch).complete(name, rumour)
                inside.add(name)
        for proof in taken.proofs:
            for rumour in proof:
                if self._epochs.admits(rumour.epoch):
                    self._epochs.of(rumour.epoch).claim(name_of(rumour, self._config.run), rumour)
        self._open(inside, now)
        return True

    def _open(self, inside: set[bytes], now: float) -> None:
        """The state holds what is `inside`, and all that is settled."""
        gather = self._config.gather
        self._epochs.held = True
        self._epochs.advance(self._clock)
        self._epochs.held = False
        for record in self._store.records():
            name, rumour = record.name, record.rumour
            if name in inside and (record.complete or gather):
                record.given = not gather
            elif name in inside or not self._epochs.admits(rumour.epoch) or rumour.size > self.largest:
                self._trees.forget(name)
            else:
                kept = self._epochs.of(rumour.epoch)
                verdict = kept.claim(name, rumour)
                if verdict.word == "proof":
                    self._void(rumour.origin, kept, verdict)
                elif verdict.word != "new":
                    self._trees.forget(name)
                elif record.complete:
                    kept.complete(name, rumour)
                    self._give(record)
        for each in self._epochs.live():
            if gather:
                records = map(self._store.get, each.inside)
                here = {record.name for record in records if record is not None and record.complete}
                each.lacking.update(each.inside.keys() - here)
            for name in each.names():
                if name not in each.lacking:
                    self._fetches.end(name)
        self._ask_for_lacking(now)
        for epoch in range(self._epochs.first, self._epochs.closes(self._clock) + 1):
            self._emit_closed(self._epochs.of(epoch))
        self.advance(self._clock, now)
        self._talk.soon()
        self._trees.step(now)

    def takes(self, clock: int) -> bool:
        """Would `publish` take an increment cut at `clock`, of lawful size?"""
        epoch = clock // self._config.span
        sequence = self._published[1] if self._published[0] == epoch else 0
        if self._epochs.held or not self._epochs.admits(epoch) or sequence > MAX_SEQUENCE:
            return False
        return self._epochs.of(epoch).takes(self._me, self._incarnation)

    @property
    def base(self) -> bytes:
        """Names the founding that this peer's state goes back to."""
        return self._epochs.base

    @property
    def bases(self) -> Mapping[bytes, bytes]:
        """And those of the others who are alive, as far as they said so."""
        return self._talk.bases

    @property
    def quiet(self) -> bool:
        """Nothing that was asked for from here is on its way."""
        return not any(push.wanted for link in self._links for push in link.pushes.values())

    def longest(self, rumour: Rumour) -> float:
        """How far it may move an anchor; the same for all who agree on what is settled."""
        return rumour.weight * self._epochs.longest(rumour.epoch)

    def publish(
        self, parts: Sequence[Buffer], *, weight: float, clock: int, samples: int, length: float = 0.0, now: float
    ) -> tuple[bytes, Rumour] | None:
        """Tell everybody of this peer's increment, cut at `clock`. None if that cannot be now: this peer has no state,
        the clock is not this time's, or the epoch has too many rumours already, or lives of this peer; then it is to
        stay in the residual.

        Raises:
            LocalProtocolError: parts too many, too large or empty.
        """
        if not self.takes(clock):
            return None
        epoch = clock // self._config.span
        sequence = self._published[1] if self._published[0] == epoch else 0
        draft = Rumour(
            *(self._me, self._incarnation, epoch, sequence, weight, clock, samples, 1, 1, bytes(32), bytes(64)),
            run=self._config.run,
            length=length,
        )
        rumour, table = make(draft, parts, self._config.run, self._sign)
        wanted = unpack_table(table, rumour)
        name = name_of(rumour, self._config.run)
        assert wanted is not None
        record = Record(name, rumour, table, wanted, b"")
        record.parts, record.have, record.hops = list(parts), record.full, 0
        record.given = not self._config.gather
        if rumour.size > self.largest or not self._store.admit(record, own=True):
            return None
        if self._epochs.of(epoch).claim(name, rumour).word != "new":
            self._store.drop(name)
            return None
        self._published = epoch, sequence + 1
        self._epochs.of(epoch).complete(name, rumour)
        self._trees.offer(record, now)
        self._trees.announce(record, ())
        self._trees.step(now)
        return name, rumour

    def applied(self, name: bytes) -> None:
        """What was handed out has been applied, or refused: its payload is not needed here any more, unless all of its
        epoch is to be handed out."""
        record = self._store.get(name)
        if record is not None:
            record.given = not self._config.gather

    def advance(self, clock: int, now: float) -> None:
        """The network's clock, in steps."""
        self._clock = max(self._clock, clock)
        closed, settled = self._epochs.advance(self._clock)
        for each in closed if not self._epochs.held else ():
            self._emit_closed(each)
        for each in settled:
            if not self._epochs.held:
                self._gather(each)
                self._outputs.emit(EpochSettled(each.epoch, each.digest, len(each.inside), each.samples))
        if settled:
            self._forget_settled()
        if closed or settled:
            self._ask_for_lacking(now)
            self._talk.soon()
        self._trees.step(now)

    def _gather(self, each: EpochSet) -> None:
        if self._config.gather:
            rumours = []
            for name, rumour in each.inside.items():
                record = self._store.get(name)
                rumours.append((rumour, tuple(record.parts) if record is not None and record.complete else ()))
            rumours.sort(key=lambda item: (item[0].origin, item[0].incarnation, item[0].sequence))
            self._outputs.emit(EpochGathered(each.epoch, tuple(rumours)))

    def _forget_settled(self) -> None:
        first = self._epochs.first
        for record in self._store.records():
            if record.rumour.epoch < first:
                # Whoever has taken over a state of before may still ask for it.
                if self._config.gather and record.complete and record.rumour.epoch >= first - MAX_HELD:
                    record.given = True
                else:
                    self._trees.forget(record.name)
        for fetch in self._fetches.of(first):
            self._fetches.end(fetch.name)

    def _ask_for_lacking(self, now: float) -> None:
        """Nobody announces what both know: the neighbours are asked."""
        for each in self._epochs.live():
            for name in each.lacking:
                if name not in self._fetches:
                    for link in self._links.near():
                        self._fetches.announced(name, each.epoch, link.peer, now, self._config.wait)

    def neighbours(self, live: Iterable[bytes], now: float) -> None:
        """Who of the members is alive, can be reached and is listened to, whenever that changes."""
        lost, left = self._links.follow(live)
        for peer in lost:
            self._fetches.lost(peer, now)
        for peer in left:
            self._outputs.send(peer, Prune(link=False))
        self._talk.greet()
        self._trees.step(now)

    def link_down(self, peer: bytes, now: float) -> None:
        """The transport has lost its link to `peer`."""
        link = self._links.get(peer)
        if link is not None:
            link.cut()
        self._fetches.lost(peer, now)
        self._talk.greet()
        self._trees.step(now)

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, message: RumourMessage, buffers: Sequence[Buffer], source: bytes, now: float) -> None:
        if self._shuns(source, now):
            self.counts["shunned"] += 1
            return
        match message:
            case Rumour():
                self._header(message, buffers, source, now)
            case RumourPart(name, part):
                self._part(name, part, buffers[0], source, now)
            case Got() | IHave() | Graft() | Prune():
                self._trees.receive(message, source, now)
            case EpochDigest():
                if not self._talk.receive(message, buffers, source, now):
                    self._strike(source, "signature")
        self._trees.step(now)

    def timer(self) -> float | None:
        at = min(self._trees.timer(), self._talk.timer())
        return None if at == float("inf") else at

    def handle_timer(self, now: float) -> None:
        self._trees.handle_timer(now)
        self._talk.handle_timer(now)
        self._trees.step(now)

    # -- a rumour comes ---------------------------------------------------------------------------------------

    def _header(self, rumour: Rumour, buffers: Sequence[Buffer], source: bytes, now: float) -> None:
        name = name_of(rumour, rumour.run)
        if rumour.run != self._config.run:
            # What its operator has written is no proof against anybody.
            self._fetches.denied(name, source, now)
            return self._refuse(name, source, "settings")
        record = self._store.get(name)
        if record is not None and not buffers:
            return
        if record is not None and not record.complete:
            fetch = self._fetches.get(name)
            assert fetch is not None
            if fetch.source in (b"", source):
                fetch.source = source
                self._outputs.send(source, Got(name, record.have))
            else:
                self._fetches.offered(fetch, source)
                self._outputs.send(source, Prune((name,)))
            return
        if not self._epochs.admits(rumour.epoch):
            return self._refuse(name, source, "epoch")
        kept = self._epochs.of(rumour.epoch)
        if record is not None or kept.holds(name):
            self._outputs.send(source, Prune((name,)))
            return
        if not self._knows(rumour.origin):
            return self._refuse(name, source, "origin")
        if rumour.clock // self._config.span != rumour.epoch:
            return self._deny(name, source, "terms", now)
        if not self._verify(rumour.origin, name, rumour.signature):
            return self._deny(name, source, "signature", now)
        if rumour.size > self.largest:
            # Who has no model yet passes it on in good faith: the fault is the origin's, who has signed it.
            self._fetches.denied(name, source, now)
            return self._strike(rumour.origin, "size")
        wanted = unpack_table(buffers[0], rumour) if buffers else None
        if buffers and wanted is None:
            return self._deny(name, source, "table", now)
        verdict = kept.claim(name, rumour)
        if verdict.word == "proof":
            self._void(rumour.origin, kept, verdict)
        elif verdict.word == "full":
            self._refuse(name, source, "full")
        elif verdict.word == "void" and buffers:
            self._outputs.send(source, Prune((name,)))
            self._trees.show(verdict.proof, source)
        elif wanted is not None and verdict.word in ("new", "known"):
            self._begin(Record(name, rumour, buffers[0], wanted, source), source, now)

    def _begin(self, record: Record, source: bytes, now: float) -> None:
        if not self._store.admit(record):
            if (
                self._config.gather
                and not self._cramped
                and self._store.bytes + record.rumour.size > self._config.retain
            ):
                self._cramped = True
                text = (
                    "the increments of some epochs do not fit in memory until they are judged: they come late, or never"
                )
                self._outputs.emit(Notice("GD-507", text))
            self._fetches.postponed(record.name, now, self._config.wait, self._config.patience)
            return self._refuse(record.name, source, "room")
        self._trees.shown(record, source, now)

    def _part(self, name: bytes, part: int, payload: Buffer, source: bytes, now: float) -> None:
        size = memoryview(payload).nbytes
        record = self._store.get(name)
        if record is None or (part < len(record.wanted) and record.have >> part & 1):
            known = record is not None or any(each.holds(name) for each in self._epochs.live())
            self.counts["repeated" if known else "unasked"] += size
            if record is not None:
                self._outputs.send(source, Got(name, record.have))
            elif known:
                self._outputs.send(source, Prune((name,)))
            # Else its header may be on its way, and nothing can be said of it.
            return
        if part >= len(record.wanted) or record.wanted[part] != (size, part_hash(payload)):
            self._outputs.send(source, Prune((name,)))
            return self._deny(name, source, "hash", now)
        self._store.put(record, part, payload)
        self.counts["payload"] += size
        self._trees.came(record, source, now)
        if record.complete:
            news = self._epochs.of(record.rumour.epoch).complete(name, record.rumour)
            if not self._epochs.held and news:
                self._give(record)
            elif not self._epochs.held:
                self.advance(self._clock, now)  # an epoch may have waited for it

    def _give(self, record: Record) -> None:
        record.given = False
        self._outputs.emit(RumourReceived(record.name, record.rumour, tuple(record.parts)))

    def _void(self, origin: bytes, kept: EpochSet, verdict: Verdict) -> None:
        """Nothing of `origin` counts in this epoch, and everybody is to know it."""
        received = []
        for name, rumour in verdict.fallen:
            record = self._store.get(name)
            received.append((rumour, () if record is None else tuple(record.parts)))
        for record in self._store.records():
            if record.rumour.origin == origin and record.rumour.epoch == kept.epoch:
                self._trees.forget(record.name)
        self._fetches.end(void_name(origin, kept.epoch, self._config.run))
        if not self._epochs.held:
            self._outputs.emit(RumourVoided(origin, kept.epoch, tuple(received)))
        for link in self._links.near():
            self._trees.show(verdict.proof, link.peer)

    # -- inside -----------------------------------------------------------------------------------------------

    def _refuse(self, name: bytes, source: bytes, reason: str) -> None:
        """It may be taken later, so nobody is to blame."""
        self.counts[reason] += 1
        self._outputs.send(source, Prune((name,)))

    def _deny(self, name: bytes, source: bytes, reason: str, now: float) -> None:
        """No honest peer gives this for that name: another is asked."""
        self._fetches.denied(name, source, now)
        self._strike(source, reason)

    def _strike(self, source: bytes, reason: str) -> None:
        """No honest peer says this; what follows from it is not decided here."""
        self.counts[reason] += 1
        self._outputs.emit(UpdateRefused(source, reason))

    def _emit_closed(self, each: EpochSet) -> None:
        origins = len({rumour.origin for rumour in each.inside.values()})
        self._outputs.emit(EpochClosed(each.epoch, each.digest, len(each.inside), each.samples, origins, each.middle))
