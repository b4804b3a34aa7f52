"""`epidemic` for one peer: its rounds become increments that everybody gets, and others' increments move its anchor.

What `Averaging` is for pairwise. A round is published whole or not at all, and what is published is in the anchor of
its origin at that moment; a rumour that comes is looked at whole, and then applied whole, or refused by all alike, for
what decides is in the rumour. So the state of a peer is what it was founded with and the set of rumours inside it:
peers of one founding whose sets are equal hold the same bits. Whoever takes a state over learns both. With a robust
rule only settled epochs are in the state that peers share, as the rule has judged them (`judging`).

A peer alone does not publish (algorithms section 4): it steps plainly, until it gives its state away. From then on
every step is in a rumour, for somebody may have the rest. After `LONELY` epochs without company it is alone again, and
that is a new founding: those who come back later do not have its state, and can tell so. Of peers with states of
different foundings, or that have settled different sets, the fewer fetch the state of the others, as a whole.

Which rumours there are is decided in `rumours`, when a state is fetched anew in `reunion`. No vector is touched here.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final

from gossipdp.protocol import jobs
from gossipdp.protocol.epidemic import packing as increments
from gossipdp.protocol.epidemic.applying import Applying, Terms, length_of
from gossipdp.protocol.epidemic.broadcast import Rumours, RumoursConfig
from gossipdp.protocol.epidemic.epochs import AHEAD, GRACE, QUORUM, SETTLE
from gossipdp.protocol.epidemic.events import EpochClosed, EpochGathered, RumourReceived, RumourVoided
from gossipdp.protocol.epidemic.exclusive import Exclusive
from gossipdp.protocol.epidemic.fingerprints import Fingerprints
from gossipdp.protocol.epidemic.robust import RobustEpochs
from gossipdp.protocol.epidemic.shares import Shares
from gossipdp.protocol.events import EpochDiverged, EpochFingerprinted, EpochSettled, IncrementPublished, UpdateRefused
from gossipdp.protocol.model import Model, Outer
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.strategy import Surroundings
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.epidemic_messages import NO_BASE, EpochDigest, Got, Graft, IHave, Prune, Rumour, RumourPart
from gossipdp.protocol.wire.messages import Member, Message, State

__all__ = ["EpidemicConfig", "EpidemicStrategy"]

LONELY: Final = GRACE + SETTLE + 1
"""epochs without anybody else alive after which a peer is alone again: what it publishes would come too late"""
WHOLE: Final = "whole"
"""the compressor that leaves nothing out, 2 bytes a parameter"""
AGAIN: Final = 16
"""periods until a state that could not be fetched anew is tried for again"""


@dataclass(frozen=True, kw_only=True)
class EpidemicConfig:
    """All of it but times has to be the same for all peers of a network."""

    name: ClassVar[str] = "epidemic"
    exact: ClassVar[bool] = True

    rumours: RumoursConfig = field(default_factory=RumoursConfig)
    compressor: str = "topk256"
    whole_until: int = 0
    """steps of the network's clock until which increments travel whole, if the model is small enough: in the warm start
    peers agree on all of every step, not on the largest of it. What a slow link cannot carry of that, 2 bytes a
    parameter of everybody's each round, comes late, and after GRACE epochs counts no more"""
    lr: float = 2.0
    """alpha; 1 where increments travel whole, for then nothing waits in the residual, and all of the way is gone"""
    beta: float = 0.95
    """share of the residual that is kept from round to round"""
    rule: str = ""
    """by which increments are judged when their epoch has settled; "": they are applied as they come"""


@dataclass
class _Round:
    """The own increment while it is made."""

    weight: float
    clock: int
    samples: int
    payloads: list[Buffer] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    share: float = 1.0
    fingerprint: int = 0
    made: bool = False


class EpidemicStrategy:
    """Implements `Strategy`, with the outer step (`rounds.Steps`) and the shared state (`transfer.Shared`)."""

    partner = None
    in_doubt = 0

    def __init__(self, config: EpidemicConfig, surroundings: Surroundings) -> None:
        membership, outputs, now = surroundings.membership, surroundings.outputs, surroundings.now
        self._config, self._membership, self._progress = config, membership, surroundings.progress
        self._surroundings, self._shuns = surroundings, surroundings.shuns
        self._random, self._outputs = surroundings.random, outputs
        self._news = Outputs()
        self._news.messages = outputs.messages
        self._rumours = Rumours(
            replace(config.rumours, gather=bool(config.rule)),
            membership.me.id,
            incarnation=membership.me.incarnation,
            random=surroundings.random,
            outputs=self._news,
            sign=surroundings.sign,
            verify=surroundings.verify,
            knows=membership.members.__contains__,
            shuns=surroundings.shuns,
            now=now,
        )
        self._turns = Exclusive()
        longest = self._rumours.longest
        self._applying = Applying(self._turns, outputs, self._terms, longest, self._moved)
        self._robust = RobustEpochs(
            config.rule, self._turns, outputs, self._terms, longest, self._judged, membership.me.id
        )
        self._shares = Shares(config.rumours.span)
        self._fingerprints = Fingerprints()
        self._fingerprinted = (0, 0)
        """the epoch of which a fingerprint is being taken, and that of the chunks so far"""
        self._newest: dict[bytes, int] = {}
        """the network's clock at the last increment that was applied of each other who is there"""
        self._since = self._before_last = 0
        """the network's clock at the own round before this one, and at the one before that"""
        self.model: Model | None = None
        self._live: list[bytes] = []
        self._heard: list[bytes] = []
        """of them those who are not set aside"""
        self._lives: dict[bytes, int] = {}
        self._now, self._clock = now, 0
        self._round: _Round | None = None
        self._lone = False
        """the round under way is a lone peer's"""
        self._published_at = 0
        """the network's clock at the last round that counted"""
        self._samples = self._steps = 0
        """this peer's own since then"""
        self._shared_at: int | None = None
        """the network's clock when somebody else was last there who may have the state; None: nobody has it"""
        self._foundings = 0
        self._held = self._stopped = False
        self._before: bytes | None = None
        """what is inside the state that is to be replaced"""
        self._astray: tuple[bytes, ...] = ()
        self._astray_from = 0.0

    @property
    def steps(self) -> EpidemicStrategy:
        return self

    @property
    def shared(self) -> EpidemicStrategy:
        return self

    # -- the model --------------------------------------------------------------------------------------------

    def ready(self, model: Model, summary: Buffer | None, clock: int) -> None:
        """The model is here, with this inside; with None, it is this peer's own, and nothing is."""
        if summary is not None:
            return self.adopt(model, summary, clock)
        self._clock = max(self._clock, clock)
        self._model_is(model)
        self._published_at = self._clock
        self._rumours.advance(self._clock, self._now)
        self._found()

    def _found(self) -> None:
        self._foundings += 1
        me = self._membership.me
        name = b"%s%d,%d" % (me.id, me.incarnation, self._foundings)
        # In the order of foundings, as far as there is one.
        base = self._clock.to_bytes(8, "big") + hashlib.blake2b(name, digest_size=8).digest()
        self._shared_at, self._astray = None, ()
        self._shares.forget()
        self._robust.forget()
        self._begin_fingerprints()
        self._rumours.found(self._now, base)
        self._hear()

    def adopt(self, model: Model, summary: Buffer, clock: int) -> None:
        """The state is a copy of another's, with this inside."""
        self._model_is(model)
        self._before = None
        self._clock = self._published_at = max(self._clock, clock)
        self._rumours.advance(self._clock, self._now)
        if not self._rumours.adopt(summary, self._now):
            # Its giver has signed for it: nothing is known of what this state is, but that it is nobody else's.
            self._found()
            self._astray = tuple(self._live)
        else:
            self._astray = ()
            self._robust.forget()
        self._shared_at = self._clock
        self._begin_fingerprints()
        self._hear()

    def _model_is(self, model: Model) -> None:
        self.model = model
        self._applying.ready(model)
        self._robust.ready(model)
        self._rumours.limit(increments.largest(model.chunks, model.chunk_parameters))

    def _begin_fingerprints(self) -> None:
        """Whoever gave this state has what it has from clocks that were not much ahead of this one."""
        self._fingerprints.begin(self._clock // self._config.rumours.span + AHEAD)

    def hold(self, held: bool, now: float) -> bool:
        """While `held` the state is being replaced: nothing else is done to it. True once nothing is under way."""
        self._now = now
        if held:
            self._held = True
            if self._before is None and not self._turns.busy:
                self._before = self._rumours.summary()
                self._rumours.hold()
            return self._before is not None
        if self._held and self._before is not None:
            # Nobody had another state to give: it is what it was.
            self._rumours.adopt(self._before, now)
            self._before = None
        if self._held and self._astray:
            self._astray_from = now + AGAIN * self._membership.config.join_interval
        self._held = False
        self._hear()
        return True

    @property
    def strays(self) -> tuple[bytes, ...]:
        """Members whose state is to be fetched now, because this peer's is not the network's."""
        return tuple(filter(self._live.__contains__, self._astray)) if self._now >= self._astray_from else ()

    # -- what a round does: see `rounds.Steps` ----------------------------------------------------------------

    def submitted(self, samples: int, steps: int, clock: int) -> None:
        """A good snapshot has come, of so many samples and steps more: the round that follows is cut at this clock."""
        self._samples += samples
        self._steps += steps
        self._advance(clock)

    def begin(self, run: Callable[[Outer | None], None]) -> None:
        self._turns.ask(partial(self._begin_round, run))

    def _begin_round(self, run: Callable[[Outer | None], None]) -> bool:
        if not self._held and self._alone():
            if self._shared_at is not None:
                self._found()
                self._surroundings.refounded()
            self._lone = True
            run(Outer(1.0, 0.0))
        elif self._held or self._stopped or not self._rumours.takes(self._clock):
            run(None)
            return False
        else:
            steps = max(self._clock - self._published_at, self._steps)
            weight = self._shares.of(self._samples, steps, self._members())
            self._round = _Round(weight, self._clock, self._samples)
            run(Outer(self._terms(self._clock).lr, 0.0))
        self._before_last, self._since = self._since, self._published_at
        self._samples, self._steps, self._published_at = 0, 0, self._clock
        return True

    def _alone(self) -> bool:
        return self._shared_at is None or self._clock > self._shared_at + LONELY * self._config.rumours.span

    def _members(self) -> int:
        """Who publish, as far as this peer knows: itself, and whoever lives and has ever trained."""
        reports = map(self._progress.of, self._live)
        return 1 + sum(report is not None and report.steps > 0 for report in reports)

    def job(self, chunk: int, applied: int) -> jobs.OuterStep | jobs.Publish:
        if self._lone:
            return jobs.OuterStep(chunk, 1.0, 0.0, applied)
        assert self._round is not None
        beta, seed = self._config.beta, self._random.getrandbits(63)
        compressor, lr = self._terms(self._round.clock)
        lead = bool(self._config.rule)
        return jobs.Publish(chunk, compressor, lr, beta, self._round.weight, applied, seed, lead=lead)

    def _terms(self, clock: int) -> Terms:
        """How an increment cut at `clock` travels, and how far it moves: it follows from what all know."""
        assert self.model is not None
        whole = clock < self._config.whole_until and increments.fit(
            self.model.chunks, increments.EXACT * self.model.chunk_parameters
        )
        return Terms(WHOLE, 1.0) if whole else Terms(self._config.compressor, self._config.lr)

    def published(self, chunk: int, result: jobs.Published) -> None:
        assert self._round is not None and chunk == len(self._round.payloads)
        self._round.payloads.append(result.payload)
        if memoryview(result.payload).nbytes:
            self._round.lengths.append(result.movement)
        self._round.share = min(self._round.share, result.share)
        self._round.fingerprint += result.fingerprint

    def end(self) -> None:
        if self._round is not None:
            self._round.made = True  # `advance` tells of it
            return
        self._lone = False
        self._turns.over()

    def _announce(self, made: _Round) -> None:
        parts = increments.pack(made.payloads)
        told = self._rumours.publish(
            parts,
            weight=made.weight,
            clock=made.clock,
            samples=made.samples,
            length=length_of(made.lengths),
            now=self._now,
        )
        epoch = made.clock // self._config.rumours.span
        if self._config.rule:
            self._robust.leads(epoch, self._terms(made.clock).compressor, made.payloads)
        elif told is None:
            # It was asked for before, so this is as good as never; and then this peer's state is nobody's.
            self._astray = tuple(self._live)
        else:
            self._applying.cut(told[1], parts)
        self._fingerprints.added(epoch, made.fingerprint)
        self._outputs.emit(IncrementPublished(sum(map(len, parts)), made.weight, made.share))
        self._round = None
        self._turns.over()

    # -- state for others: see `transfer.source.Shared` --------------------------------------------------------------

    def freeze(self, begin: Callable[[], bool]) -> None:
        def begun() -> bool:
            if self._held or not begin():
                return False
            self._shared_at = self._clock
            return True

        self._turns.ask(begun)

    def frozen(self) -> None:
        self._turns.over()

    def summary(self) -> bytes:
        return self._rumours.summary()

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, message: Message, buffers: Sequence[Buffer], source: bytes, size: int, now: float) -> None:
        self._now = now
        if isinstance(message, Rumour | RumourPart | Got | IHave | Graft | Prune | EpochDigest):
            self._rumours.receive(message, buffers, source, now)
        if isinstance(message, EpochDigest):
            self._compare_foundings()
        self._hear()

    def member_changed(self, member: Member, now: float) -> None:
        """Membership has news."""
        before = self._lives.get(member.id)
        if member.state in (State.FAILED, State.LEFT):
            self._lives.pop(member.id, None)
        else:
            self._lives[member.id] = member.incarnation
        if before is not None and before < member.incarnation:
            self._rumours.link_down(member.id, now)  # that life has forgotten what was under way
        self._follow(now)

    def link_down(self, peer: bytes, now: float) -> None:
        """The transport has lost its link to `peer`."""
        self._rumours.link_down(peer, now)
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
        members = self._membership
        live = [member.id for member in members.alive() if members.reaches(member.id)]
        heard = [peer for peer in live if not self._shuns(peer, now)]
        if (live, heard) != (self._live, self._heard):
            self._live, self._heard, self._now = live, heard, now
            self._newest = {peer: self._newest[peer] for peer in live if peer in self._newest}
            self._rumours.neighbours(heard, now)
            self._hear()

    def timer(self) -> float | None:
        at = self._rumours.timer()
        if self._astray and self._astray_from > self._now:
            return self._astray_from if at is None else min(at, self._astray_from)
        return at

    def handle_timer(self, now: float) -> None:
        self._now = now
        self._follow(now)
        self._rumours.handle_timer(now)
        self._hear()

    def advance(self, clock: int, now: float) -> None:
        """Every input ends with this call. clock: the network's, in steps."""
        self._now = now
        if self._round is not None and self._round.made:
            self._announce(self._round)
        self._advance(clock)
        self._hear()

    def _advance(self, clock: int) -> None:
        # A round belongs to the epoch it began in, and that may not settle before it is told.
        if self._round is None and clock > self._clock:
            self._clock = clock
            self._rumours.advance(clock, self._now)
            self._hear()  # what has settled is judged before a snapshot is said to have it inside
        if self._shared_at is not None and self._live:
            # However far it has come at once: they are here.
            self._shared_at = self._clock

    def stop(self, now: float) -> None:
        """Publish no more."""
        self._stopped = True

    @property
    def satisfied(self) -> bool:
        """The round is on its way, whatever has come is applied, and a round of everybody else who takes part has come:
        of whom one came since this peer's last but one, another since its last. If an epoch is as long as a round, that
        is what the epoch has. A fast peer so waits for the slowest, and for who has stopped once."""
        late = (self._before_last < at <= self._since for peer, at in self._newest.items() if peer in self._live)
        return self._turns.idle and (self._held or not any(late))

    @property
    def traffic(self) -> dict[str, int]:
        """Bytes of increments that came: payload, repeated (here already) and unasked (of none that is known)."""
        return {kind: self._rumours.counts[kind] for kind in ("payload", "repeated", "unasked")}

    @property
    def at_rest(self) -> bool:
        """Besides, what this peer was to hand on it has handed on."""
        return self._turns.idle and self._rumours.quiet

    # -- what rumours bring -----------------------------------------------------------------------------------

    def _hear(self) -> None:
        while self._news.events:
            event = self._news.events.popleft()
            match event:
                case RumourReceived(rumour=rumour) if self._config.rule:
                    self._came(rumour)
                case RumourReceived(name, rumour, parts):
                    self._applying.take(rumour, parts, partial(self._rumours.applied, name))
                case RumourVoided(origin) if self._config.rule:
                    self._outputs.emit(UpdateRefused(origin, "void"))  # nothing of it has been applied
                case RumourVoided(origin, _, received):
                    self._outputs.emit(UpdateRefused(origin, "void"))
                    if not all(parts for _, parts in received):
                        self._astray = self._astray or tuple(self._live)
                    for rumour, parts in received:
                        if parts:
                            self._applying.take(rumour, parts, back=True)
                case EpochDiverged(holders=holders):
                    self._astray = holders
                    self._outputs.emit(event)
                case EpochClosed():
                    self._shares.closed(event)
                    self._outputs.emit(event)
                case EpochGathered(epoch, rumours):
                    self._judge(epoch, rumours)
                case EpochSettled(epoch):
                    self._outputs.emit(event)
                    self._turns.ask(partial(self._begin_fingerprint, epoch))
                case _:
                    self._outputs.emit(event)

    def job_done(self, job: jobs.Job[object], result: object, now: float) -> None:
        """The result of a job on increments."""
        self._now = now
        if isinstance(job, jobs.Fingerprint):
            self._chunk_fingerprinted(job.chunk, job.typed(result))
        elif isinstance(job, jobs.MeasureEpoch | jobs.ApplyEpoch):
            self._robust.job_done(job, result)
        else:
            self._applying.job_done(job, result)

    def _came(self, rumour: Rumour) -> None:
        self._newest[rumour.origin] = max(rumour.clock, self._newest.get(rumour.origin, 0))

    def _moved(self, rumour: Rumour, fingerprint: int) -> None:
        self._came(rumour)
        self._fingerprints.added(rumour.epoch, fingerprint)
        self._surroundings.applied()

    def _judge(self, epoch: int, rumours: Sequence[tuple[Rumour, Sequence[Buffer]]]) -> None:
        if not all(parts for _, parts in rumours):
            # Others have judged what this peer cannot look at any more.
            self._astray = self._astray or tuple(self._live)
            self._begin_fingerprints()
        self._robust.take(epoch, [(rumour, parts) for rumour, parts in rumours if parts])

    def _judged(self, epoch: int, fingerprint: int) -> None:
        self._fingerprints.added(epoch, fingerprint)
        self._surroundings.applied()

    def _begin_fingerprint(self, epoch: int) -> bool:
        # A state that nobody shares is not in integers, and one that is to be replaced is nobody's.
        if self._held or self._alone() or not self._fingerprints.tells(epoch):
            return False
        self._fingerprinted = epoch, 0
        self._outputs.ask(jobs.Fingerprint(0))
        return True

    def _chunk_fingerprinted(self, chunk: int, result: jobs.Fingerprinted) -> None:
        assert self.model is not None
        epoch, anchor = self._fingerprinted[0], self._fingerprinted[1] + result.value
        self._fingerprinted = epoch, anchor
        if chunk + 1 < self.model.chunks:
            return self._outputs.ask(jobs.Fingerprint(chunk + 1))
        self._outputs.emit(EpochFingerprinted(epoch, self._fingerprints.at(epoch, anchor)))
        self._turns.over()

    # -- whose state is the network's ---------------------------------------------------------------------------

    def _compare_foundings(self) -> None:
        """Of states that go back to different foundings, that of most counts, of as many the later."""
        said, own = self._rumours.bases, self._rumours.base
        if self.model is None or self._held or len(said) < min(QUORUM, len(self._heard)):
            return
        counts = Counter([own, *(base for base in said.values() if base != NO_BASE)])
        greatest = max(counts, key=lambda base: (counts[base], base))
        if greatest != own:
            self._astray = tuple(peer for peer, base in said.items() if base == greatest)
