"""The broadcast of increments: every peer gets each increment once, complete and verified, and all agree on the set.

Plumtree (Leitao, Pereira, Rodrigues 2007, "Epidemic broadcast trees"): an increment is pushed along the links of a tree
and announced along the others, so its payload crosses about as many links as there are peers. A peer that misses an
announced increment grafts the link; a peer that gets a duplicate prunes it. Three things differ from the paper:

* Payloads are large. The header goes ahead, and each part follows as soon as it is here, checked by its own hash. An
  increment thus crosses many links at once. Over an untried link the payload waits until it is wanted.
* Every origin has a tree of its own. All peers publish at the same pace, and one tree would overload its inner peers.
* Each answer lists the parts that the receiver has. Loss, repetition and a change of source need no other message.

(origin, incarnation, epoch, sequence) identifies an increment, and `epochs` says which count. Two headers signed for
one place prove a fault, and then neither counts, because replicas must agree whichever they saw first. Every peer hears
the proof and takes back the origin's increments of that epoch. A proof may come after the epoch has settled here, or an
origin may show it to some peers only, shortly before. Then replicas differ. Their digests show it, and the minority
fetches the state anew.

The network's clock is believed (see `membership.progress`). The application knows the content of an increment. No
vector is touched here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import TypeAlias

from gossipdp.errors import LocalProtocolError
from gossipdp.protocol.epidemic import state_summary
from gossipdp.protocol.epidemic.config import BroadcastConfig
from gossipdp.protocol.epidemic.epoch_digests import EpochDigests
from gossipdp.protocol.epidemic.epoch_set import EpochSet, Outcome
from gossipdp.protocol.epidemic.epochs import MAX_HELD, Epochs
from gossipdp.protocol.epidemic.events import EpochClosed, EpochGathered
from gossipdp.protocol.epidemic.fetching import Fetches
from gossipdp.protocol.epidemic.incoming import Incoming
from gossipdp.protocol.epidemic.links import Links
from gossipdp.protocol.epidemic.publishing import Publisher
from gossipdp.protocol.epidemic.signing import name_of
from gossipdp.protocol.epidemic.store import Record, Store
from gossipdp.protocol.epidemic.trees import Known, Trees
from gossipdp.protocol.events import EpochSettled, Event
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import (
    NO_BASE,
    EpochDigest,
    Got,
    Graft,
    IHave,
    Prune,
    Rumour,
    RumourPart,
)

__all__ = ["Broadcast", "BroadcastMessage"]

BroadcastMessage: TypeAlias = Rumour | RumourPart | Got | IHave | Graft | Prune | EpochDigest


class Broadcast:
    """The broadcast at one peer.

    Until `found` or `adopt` this peer has no state that an increment could change. It collects increments, and hands
    none to the application.

    Args:
        me: this peer's id.
        incarnation: number of this peer's life.
        outputs: takes messages.
        report: takes events, in their order.
        sign: signs bytes with this peer's key.
        verify: whether (peer, bytes, signature) is valid.
        knows: whether an id is that of a member. Increments of other origins are refused.
        shuns: whether a peer is set aside at this time. Its messages are ignored.
    """

    def __init__(
        self,
        config: BroadcastConfig,
        me: bytes,
        *,
        incarnation: int,
        random: Random,
        outputs: Outputs,
        report: Callable[[Event], None],
        sign: Callable[[bytes], bytes],
        verify: Callable[[bytes, bytes, bytes], bool],
        knows: Callable[[bytes], bool],
        shuns: Callable[[bytes, float], bool],
        now: float,
    ) -> None:
        self._config, self._outputs, self._report = config, outputs, report
        self._verify, self._shuns = verify, shuns
        self.counts: Counter[str] = Counter()
        """bytes of payload, repeated and unasked parts, and refused messages by reason"""
        self._epochs = Epochs(config.span, config.run)
        self._links = Links(me, config.neighbours, config.window, config.again)
        self._store = Store(config.retain, self._links.stop)
        self._fetches = Fetches()
        self._digests = EpochDigests(
            config,
            self._epochs,
            self._links,
            incarnation=incarnation,
            serves=lambda name: self._store.get(name) is not None,
            random=random,
            outputs=outputs,
            report=report,
            sign=sign,
            verify=verify,
            now=now,
        )
        known = Known(self._epochs, self._links, self._store, self._fetches)
        self._trees = Trees(config, known, outputs=outputs, counts=self.counts)
        self._incoming = Incoming(
            config,
            known,
            self._trees,
            verify=verify,
            knows=knows,
            outputs=outputs,
            report=report,
            counts=self.counts,
        )
        self._publisher = Publisher(
            config, self._epochs, self._store, self._trees, me, incarnation=incarnation, sign=sign
        )
        self._clock = 0

    # -- commands ---------------------------------------------------------------------------------------------

    def found(self, now: float, base: bytes = NO_BASE) -> None:
        """Begin a founding: this peer has the network's first state, or goes on alone from its own.

        Increments published until now may be in that state or not, so they no longer count. The next epoch is the
        first.

        Args:
            base: name of the founding.
        """
        self._epochs.restart(self._clock // self._config.span + 1 if self._clock else 0, {}, base)
        self._open(set(), now)

    def hold(self) -> None:
        """The state will be replaced: collect increments, and hand none out until `adopt`."""
        self._epochs.hold()

    def limit(self, largest: int) -> None:
        """The model is known: an increment has at most `largest` bytes of payload."""
        self._incoming.limit(largest)

    def summary(self) -> bytes:
        """The content of the state, for a peer that takes a copy made now.

        Raises:
            LocalProtocolError: this peer has no state.
        """
        if self._epochs.held:
            raise LocalProtocolError("this peer has no state to summarise")
        return state_summary.pack(self._epochs)

    def adopt(self, summary: Buffer, now: float) -> bool:
        """The state is now a copy that came with `summary`. Hand out again what is not inside it.

        Returns:
            False if the summary is malformed, or belongs to a later time than this peer's clock.
        """
        config = self._config
        taken = state_summary.unpack(
            summary, span=config.span, run=config.run, largest=self._incoming.largest, verify=self._verify
        )
        if taken is None or taken.first > self._clock // config.span + 1:
            return False
        self._epochs.restart(taken.first, taken.settled(), taken.base, taken.usual())
        self._epochs.advance(self._clock)
        inside = set()
        for rumour in taken.inside:
            name = name_of(rumour, config.run)
            if not self._epochs.admits(rumour.epoch):
                continue
            if self._epochs.of(rumour.epoch).claim(name, rumour).outcome is Outcome.NEW:
                self._epochs.of(rumour.epoch).complete(name, rumour)
                inside.add(name)
        for proof in taken.proofs:
            for rumour in proof:
                if self._epochs.admits(rumour.epoch):
                    self._epochs.of(rumour.epoch).claim(name_of(rumour, config.run), rumour)
        self._open(inside, now)
        return True

    def _open(self, inside: set[bytes], now: float) -> None:
        """The state holds the increments `inside`, and everything settled."""
        self._epochs.resume(self._clock)
        for record in self._store.records():
            self._keep_or_forget(record, inside)
        for each in self._epochs.live():
            if self._config.gather:
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
        self._digests.soon()
        self._trees.step(now)

    def _keep_or_forget(self, record: Record, inside: set[bytes]) -> None:
        """Treat a stored increment as one that comes again, now that the state is another."""
        name, rumour, gather = record.name, record.rumour, self._config.gather
        if name in inside and (record.complete or gather):
            record.need(gather)
        elif name in inside or not self._epochs.admits(rumour.epoch) or rumour.size > self._incoming.largest:
            self._trees.forget(name)
        else:
            kept = self._epochs.of(rumour.epoch)
            verdict = kept.claim(name, rumour)
            if verdict.outcome is Outcome.PROOF:
                self._incoming.void(rumour.origin, kept, verdict)
            elif verdict.outcome is not Outcome.NEW:
                self._trees.forget(name)
            elif record.complete:
                kept.complete(name, rumour)
                self._incoming.hand_out(record)

    def takes(self, clock: int) -> bool:
        """Whether `publish` would take an increment that is cut at `clock`."""
        return self._publisher.takes(clock)

    def publish(
        self, parts: Sequence[Buffer], *, weight: float, clock: int, samples: int, length: float = 0.0, now: float
    ) -> tuple[bytes, Rumour] | None:
        """Broadcast an own increment, see `Publisher.publish`. Sends at once what the links have room for."""
        published = self._publisher.publish(
            parts, weight=weight, clock=clock, samples=samples, length=length, largest=self._incoming.largest, now=now
        )
        if published is not None:
            self._trees.step(now)
        return published

    @property
    def base(self) -> bytes:
        """Name of the founding of this peer's state."""
        return self._epochs.base

    @property
    def bases(self) -> Mapping[bytes, bytes]:
        """Founding of each live member's state, by its last digest."""
        return self._digests.bases

    @property
    def quiet(self) -> bool:
        """Whether no payload that a neighbour wants is under way."""
        return not any(push.wanted for link in self._links for push in link.pushes.values())

    @property
    def complete(self) -> bool:
        """No announced payload is missing."""
        return not self._fetches

    def agrees(self, peer: bytes) -> bool:
        """Whether the last digest that `peer` sent since it was asked shows the increments that are here."""
        return self._digests.agrees(peer)

    def ask(self, peers: Sequence[bytes]) -> None:
        """Ask `peers` for digests of their epochs."""
        self._digests.ask(peers)

    def longest(self, rumour: Rumour) -> float:
        """The largest movement by this increment; the same at peers that agree on the settled epochs."""
        return rumour.weight * self._epochs.longest(rumour.epoch)

    def applied(self, name: bytes) -> None:
        """An increment that was handed out is applied or refused. Its payload is needed only with `gather`."""
        record = self._store.get(name)
        if record is not None:
            record.need(self._config.gather)

    def advance(self, clock: int, now: float) -> None:
        """Take the network's clock, in steps: close and settle epochs."""
        self._clock = max(self._clock, clock)
        closed, settled = self._epochs.advance(self._clock)
        for each in closed if not self._epochs.held else ():
            self._emit_closed(each)
        for each in settled:
            if not self._epochs.held:
                self._gather(each)
                self._report(EpochSettled(each.epoch, each.digest, len(each.inside), each.samples))
        if settled:
            self._forget_settled()
        if closed or settled:
            self._ask_for_lacking(now)
            self._digests.soon()
        self._trees.step(now)

    def _gather(self, each: EpochSet) -> None:
        """Hand out a settled epoch as a whole."""
        if self._config.gather:
            rumours = []
            for name, rumour in each.inside.items():
                record = self._store.get(name)
                rumours.append((rumour, tuple(record.parts) if record is not None and record.complete else ()))
            rumours.sort(key=lambda item: (item[0].origin, item[0].incarnation, item[0].sequence))
            self._report(EpochGathered(each.epoch, tuple(rumours)))

    def _forget_settled(self) -> None:
        first = self._epochs.first
        for record in self._store.records():
            if record.rumour.epoch < first:
                # A peer that took over an older state may still ask for it.
                if self._config.gather and record.complete and record.rumour.epoch >= first - MAX_HELD:
                    record.need(False)
                else:
                    self._trees.forget(record.name)
        for fetch in self._fetches.before(first):
            self._fetches.end(fetch.name)

    def _ask_for_lacking(self, now: float) -> None:
        """Ask the neighbours for lacking payloads, because no peer announces a name that both sides know."""
        for each in self._epochs.live():
            for name in each.lacking:
                if name not in self._fetches:
                    for link in self._links.neighbours():
                        self._fetches.announced(name, each.epoch, link.peer, now, self._config.wait)

    def neighbours(self, live: Iterable[bytes], now: float) -> None:
        """Take the members that are live, reachable and not set aside, whenever they change."""
        lost, left = self._links.follow(live)
        for peer in lost:
            self._fetches.lost(peer, now)
        for peer in left:
            self._outputs.send(peer, Prune(link=False))
        self._digests.greet()
        self._trees.step(now)

    def link_down(self, peer: bytes, now: float) -> None:
        """The transport has lost its link to `peer`."""
        link = self._links.get(peer)
        if link is not None:
            link.disconnected()
        self._fetches.lost(peer, now)
        self._digests.greet()
        self._trees.step(now)

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, message: BroadcastMessage, buffers: Sequence[Buffer], source: bytes, now: float) -> None:
        """Handle a message of the broadcast from `source`."""
        if self._shuns(source, now):
            self.counts["shunned"] += 1
            return
        match message:
            case Rumour():
                self._incoming.header(message, buffers, source, now)
            case RumourPart(name, part):
                if self._incoming.part(name, part, buffers[0], source, now):
                    self.advance(self._clock, now)  # an epoch may have waited for the payload
            case Got() | IHave() | Graft() | Prune():
                self._trees.receive(message, source, now)
            case EpochDigest():
                if not self._digests.receive(message, buffers, source, now):
                    self._incoming.strike(source, "signature")
        self._trees.step(now)

    def timer(self) -> float | None:
        """When `handle_timer` is due, or None."""
        at = min(self._trees.timer(), self._digests.timer())
        return None if at == float("inf") else at

    def handle_timer(self, now: float) -> None:
        """Send lost items again, ask for late ones, and compare epochs."""
        self._trees.handle_timer(now)
        self._digests.handle_timer(now)
        self._trees.step(now)

    def _emit_closed(self, each: EpochSet) -> None:
        origins = len({rumour.origin for rumour in each.inside.values()})
        self._report(EpochClosed(each.epoch, each.digest, len(each.inside), each.samples, origins, each.middle))
