"""`epidemic` for one peer: its rounds become increments that every peer gets, and received increments move its anchor.

A round is published whole or not at all, and its origin's anchor contains it at that moment. A received increment is
inspected whole, then applied whole or refused, by the same decision at all peers. The state of a peer is therefore its
founding plus a set of increments: peers of one founding with equal sets hold the same bits. With a robust rule only
settled epochs are in the shared state, as the rule aggregated them (see `robust`).

A peer alone does not publish (algorithms section 4). It steps plainly until it gives its state away. From then on every
step is in an increment, because another peer may have the rest. After `LONELY` epochs without company it is alone
again, which is a new founding: a peer that comes back later does not have its state, and can tell. Of peers with
different foundings, or different settled sets, the minority fetches the state of the others as a whole.

`broadcast` decides which increments there are, and `partition.reunion` fetches a state anew. No vector is touched here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from gossipdp.protocol import jobs
from gossipdp.protocol.epidemic import packing
from gossipdp.protocol.epidemic.applying import Applying, length_of
from gossipdp.protocol.epidemic.broadcast import Broadcast
from gossipdp.protocol.epidemic.closing import Closing
from gossipdp.protocol.epidemic.config import EpidemicConfig
from gossipdp.protocol.epidemic.divergence import Divergence
from gossipdp.protocol.epidemic.epochs import AHEAD
from gossipdp.protocol.epidemic.events import EpochClosed, EpochGathered, RumourReceived, RumourVoided
from gossipdp.protocol.epidemic.exclusive import Exclusive
from gossipdp.protocol.epidemic.fingerprints import Fingerprints
from gossipdp.protocol.epidemic.live_members import LiveMembers
from gossipdp.protocol.epidemic.own_rounds import OwnIncrement, OwnRounds
from gossipdp.protocol.epidemic.robust import RobustEpochs
from gossipdp.protocol.epidemic.shared_state import SharedState
from gossipdp.protocol.epidemic.shares import Shares
from gossipdp.protocol.epidemic.standing import LONELY, Standing
from gossipdp.protocol.epidemic.terms import Schedule
from gossipdp.protocol.events import Closeness, EpochDiverged, EpochSettled, Event, IncrementPublished, UpdateRefused
from gossipdp.protocol.model import Model
from gossipdp.protocol.strategy import Surroundings
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import EpochDigest, Got, Graft, IHave, Prune, Rumour, RumourPart
from gossipdp.protocol.wire.messages import Member, Message

__all__ = ["EpidemicStrategy"]


class EpidemicStrategy:
    """Implements `Strategy`."""

    partner = None
    in_doubt = 0

    def __init__(self, config: EpidemicConfig, surroundings: Surroundings) -> None:
        membership, outputs = surroundings.membership, surroundings.outputs
        self._config, self._surroundings, self._outputs, self._now = config, surroundings, outputs, surroundings.now
        self._news: deque[Event] = deque()
        """events of the broadcast that are not handled yet"""
        self._broadcast = Broadcast(
            replace(config.broadcast, gather=bool(config.rule)),
            membership.me.id,
            incarnation=membership.me.incarnation,
            random=surroundings.random,
            outputs=outputs,
            report=self._news.append,
            sign=surroundings.sign,
            verify=surroundings.verify,
            knows=membership.members.__contains__,
            shuns=surroundings.shuns,
            now=surroundings.now,
        )
        self._standing = Standing(membership, config.broadcast.span)
        self._divergence = Divergence(membership.config.join_interval)
        self._exclusive, self._schedule = Exclusive(), Schedule(config)
        self._members = LiveMembers(membership, surroundings.progress, surroundings.shuns)
        longest = self._broadcast.longest
        self._applying = Applying(self._exclusive, outputs, self._schedule.at, longest, self._increment_applied)
        self._robust = RobustEpochs(
            config.rule, self._exclusive, outputs, self._schedule.at, longest, self._epoch_applied, membership.me.id
        )
        self._fingerprints = Fingerprints(self._standing, self._exclusive, outputs)
        self._shares = Shares(config.broadcast.span)
        self._rounds = OwnRounds(
            config,
            self._standing,
            self._broadcast,
            self._exclusive,
            self._shares,
            surroundings.random,
            terms=self._schedule.at,
            publishers=self._members.publishers,
            refound=self._refound,
        )
        self.shared = SharedState(self._standing, self._exclusive, self._broadcast)
        """for joiners"""
        self._closing = Closing(
            config.broadcast.sync,
            agrees=self._broadcast.agrees,
            ask=self._broadcast.ask,
            idle=lambda: self._exclusive.idle and self._broadcast.complete,
            settle=self._settle,
        )
        self._model: Model | None = None
        self._newest: dict[bytes, int] = {}
        """clock of the newest applied increment of each live member"""
        self._before: bytes | None = None
        """summary of the state that is being replaced"""

    @property
    def steps(self) -> OwnRounds:
        """The rounds of this peer."""
        return self._rounds

    # -- the model --------------------------------------------------------------------------------------------

    def ready(self, model: Model, summary: Buffer | None, clock: int) -> None:
        """The model is here. `summary` is the content of a received state; None for a state of this peer's own."""
        if summary is not None:
            return self.adopt(model, summary, clock)
        self._begin_with(model, clock)
        self._found()

    def adopt(self, model: Model, summary: Buffer, clock: int) -> None:
        """The state is now a copy of another peer's, with this content."""
        self._before = None
        self._begin_with(model, clock)
        if self._broadcast.adopt(summary, self._now):
            self._divergence.agreed()
            self._robust.forget()
        else:
            # Its source signed the summary, but nothing is known of this state, except that no other peer has it.
            self._found()
            self._divergence.diverged(self._members.live)
        self._standing.share()
        self._begin_fingerprints()
        self._handle_news()

    def _begin_with(self, model: Model, clock: int) -> None:
        self._model = model
        self._schedule.ready(model)
        self._applying.ready(model)
        self._robust.ready(model)
        self._fingerprints.ready(model.chunks)
        self._broadcast.limit(packing.largest(model.chunks, model.chunk_parameters))
        self._standing.advance(clock)
        self._rounds.restart()
        self._broadcast.advance(self._standing.clock, self._now)

    def _found(self) -> None:
        """Begin a founding: no other peer has this state."""
        base = self._standing.found()
        self._divergence.agreed()
        self._shares.forget()
        self._robust.forget()
        self._begin_fingerprints()
        self._broadcast.found(self._now, base)
        self._handle_news()

    def _refound(self) -> None:
        self._found()
        self._surroundings.refounded()

    def _begin_fingerprints(self) -> None:
        """Begin anew, AHEAD epochs from now: the source of the state may have been that far ahead."""
        self._fingerprints.begin(self._standing.clock // self._config.broadcast.span + AHEAD)

    def hold(self, held: bool, now: float) -> bool:
        """While `held` the state is being replaced, and no other operation runs. True once none is under way."""
        self._now = now
        if held:
            self._standing.hold(True)
            if self._before is None and not self._exclusive.busy:
                self._before = self._broadcast.summary()
                self._broadcast.hold()
            return self._before is not None
        if self._standing.held:
            if self._before is not None:
                # No member gave another state, so this one goes on.
                self._broadcast.adopt(self._before, now)
                self._before = None
            self._divergence.pause(now)
        self._standing.hold(False)
        self._handle_news()
        return True

    @property
    def strays(self) -> tuple[bytes, ...]:
        """Members whose state is to be fetched now, because this peer's is not the network's."""
        return self._divergence.holders(self._members.live, self._now)

    # -- own rounds -------------------------------------------------------------------------------------------

    def submitted(self, samples: int, steps: int, clock: int) -> None:
        """A good snapshot has come, with the samples and steps since the one before. Its round is cut at this clock."""
        self._rounds.submitted(samples, steps)
        self._advance(clock)

    def _publish(self, made: OwnIncrement) -> None:
        parts = packing.pack(made.payloads)
        published = self._broadcast.publish(
            parts,
            weight=made.weight,
            clock=made.clock,
            samples=made.samples,
            length=length_of(made.lengths),
            now=self._now,
        )
        epoch = made.clock // self._config.broadcast.span
        if self._config.rule:
            self._robust.leads(epoch, self._schedule.at(made.clock).compressor, made.payloads)
        elif published is None:
            # The round asked before, so this is very rare. The anchor holds the round, and no other peer's does.
            self._divergence.diverged(self._members.live)
        else:
            self._applying.cut(published[1], parts)
        self._fingerprints.added(epoch, made.fingerprint)
        self._outputs.emit(IncrementPublished(sum(map(len, parts)), made.weight, made.share))
        self._exclusive.over()

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, message: Message, buffers: Sequence[Buffer], source: bytes, size: int, now: float) -> None:
        """Handle a message of the broadcast from `source`."""
        self._now = now
        if isinstance(message, Rumour | RumourPart | Got | IHave | Graft | Prune | EpochDigest):
            self._broadcast.receive(message, buffers, source, now)
        if isinstance(message, EpochDigest) and self._model is not None and not self._standing.held:
            self._divergence.compare(self._broadcast.base, self._broadcast.bases, len(self._members.heard))
        self._handle_news()

    def member_changed(self, member: Member, now: float) -> None:
        """Membership has news."""
        if self._members.changed(member):
            self._broadcast.link_down(member.id, now)  # the new life knows nothing of what was under way
        self._follow(now)

    def link_down(self, peer: bytes, now: float) -> None:
        """The transport has lost its link to `peer`."""
        self._broadcast.link_down(peer, now)
        self._follow(now)

    def reputation_changed(self, now: float) -> None:
        """A member has been set aside, or its time aside is over."""
        self._follow(now)

    def slept(self, seconds: float) -> None:
        """Nothing: no time is measured here."""

    def chunk_received(self, now: float) -> None:
        """Nothing: the transfer says nothing about increments."""

    def round_done(self, now: float) -> None:
        """Nothing: a round is published as its outer step is made."""

    def paced(self) -> None:
        """Nothing: rounds are counted in steps of the network's clock."""

    def _follow(self, now: float) -> None:
        """Members have come or gone, or been set aside."""
        if self._members.follow(now):
            self._now, live = now, self._members.live
            self._newest = {peer: self._newest[peer] for peer in live if peer in self._newest}
            self._broadcast.neighbours(self._members.heard, now)
            self._handle_news()

    def timer(self) -> float | None:
        """When `handle_timer` is due, or None."""
        times = (self._broadcast.timer(), self._divergence.timer(self._now), self._closing.timer())
        return min((at for at in times if at is not None), default=None)

    def handle_timer(self, now: float) -> None:
        self._now = now
        self._follow(now)
        self._broadcast.handle_timer(now)
        self._closing.handle_timer(now)
        self._handle_news()

    def advance(self, clock: int, now: float) -> None:
        """Every input ends with this call. `clock` is the network's, in steps."""
        self._now = now
        made = self._rounds.take()
        if made is not None:
            self._publish(made)
        self._advance(clock)
        self._handle_news()

    def _advance(self, clock: int) -> None:
        # A round belongs to the epoch in which it began, and that must not settle before it is published.
        if self._rounds.increment is None and clock > self._standing.clock:
            self._standing.advance(clock)
            self._broadcast.advance(clock, self._now)
            self._handle_news()  # a settled epoch is aggregated before a snapshot claims to contain it
        if self._standing.shared and self._members.live:
            self._standing.share()

    def stop(self, now: float) -> None:
        """Publish no more."""
        self._rounds.stop()

    def close(self, others: Sequence[Member], now: float) -> None:
        self._now = now
        self._closing.meet([member.id for member in others], now)
        self._handle_news()

    @property
    def closeness(self) -> Closeness:
        return self._closing.closeness

    @property
    def needed(self) -> float:
        return 0.0

    def _settle(self) -> None:
        """No increment comes any more. With a rule, the last ones count once their epochs have settled."""
        if self._config.rule:
            self._advance(self._standing.clock + LONELY * self._config.broadcast.span)

    @property
    def satisfied(self) -> bool:
        """Whether the next round may begin in mode `sync`.

        The last round is published and received increments are applied. Besides, each member that published between
        this peer's two rounds before the last one has published again. If an epoch is as long as a round, that is the
        content of the epoch. A fast peer thus waits for the slowest one, and once for a member that stopped.
        """
        since, before = self._rounds.since, self._rounds.before_since
        late = (before < at <= since for peer, at in self._newest.items() if peer in self._members.live)
        return self._exclusive.idle and (self._standing.held or not any(late))

    @property
    def traffic(self) -> dict[str, int]:
        """Bytes of received increments: payload, repeated (already here) and unasked (of an unknown increment)."""
        return {kind: self._broadcast.counts[kind] for kind in ("payload", "repeated", "unasked")}

    @property
    def at_rest(self) -> bool:
        """Nothing is under way, and every payload that a neighbour wants is delivered."""
        return self._exclusive.idle and self._broadcast.quiet

    # -- events of the broadcast --------------------------------------------------------------------------------

    def _handle_news(self) -> None:
        while self._news:
            event = self._news.popleft()
            match event:
                case RumourReceived(rumour=rumour) if self._config.rule:
                    self._came(rumour)
                case RumourReceived(name, rumour, parts):
                    self._applying.take(rumour, parts, partial(self._broadcast.applied, name))
                case RumourVoided():
                    self._outputs.emit(UpdateRefused(event.origin, "void"))
                    if not self._config.rule:  # with a rule none of its increments is applied yet
                        self._take_back(event)
                case EpochDiverged(holders=holders):
                    self._divergence.diverged(holders)
                    self._outputs.emit(event)
                case EpochClosed():
                    self._shares.closed(event)
                    self._outputs.emit(event)
                case EpochGathered(epoch, rumours):
                    self._aggregate(epoch, rumours)
                case EpochSettled(epoch):
                    self._outputs.emit(event)
                    self._fingerprints.take(epoch)
                case _:
                    self._outputs.emit(event)

    def _take_back(self, event: RumourVoided) -> None:
        if not all(parts for _, parts in event.received):
            self._divergence.lost(self._members.live)
        for rumour, parts in event.received:
            if parts:
                self._applying.take(rumour, parts, back=True)

    def _aggregate(self, epoch: int, rumours: Sequence[tuple[Rumour, Sequence[Buffer]]]) -> None:
        if not all(parts for _, parts in rumours):
            # Other peers aggregated an increment whose payload this peer can no longer get.
            self._divergence.lost(self._members.live)
            self._begin_fingerprints()
        self._robust.take(epoch, [(rumour, parts) for rumour, parts in rumours if parts])

    def job_done(self, job: jobs.Job[object], result: object, now: float) -> None:
        """The result of a job on increments."""
        self._now = now
        if isinstance(job, jobs.Fingerprint):
            self._fingerprints.job_done(job.chunk, job.typed(result))
        elif isinstance(job, jobs.MeasureEpoch | jobs.ApplyEpoch):
            self._robust.job_done(job, result)
        else:
            self._applying.job_done(job, result)

    def _came(self, rumour: Rumour) -> None:
        self._newest[rumour.origin] = max(rumour.clock, self._newest.get(rumour.origin, 0))

    def _increment_applied(self, rumour: Rumour, fingerprint: int) -> None:
        self._came(rumour)
        self._epoch_applied(rumour.epoch, fingerprint)

    def _epoch_applied(self, epoch: int, fingerprint: int) -> None:
        self._fingerprints.added(epoch, fingerprint)
        self._surroundings.applied()
