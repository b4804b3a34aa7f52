"""Whose model this peer holds, and whether it fetches another: the machine `COURSE` (protocol sections 7 to 9).

`Peer` passes on all inputs about models and exchanges. The course hands each to its machine, and draws the conclusions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from gossipdp.protocol import jobs
from gossipdp.protocol.carried_state import Carried
from gossipdp.protocol.causes import Unused
from gossipdp.protocol.contribution import Contribution
from gossipdp.protocol.course.attachment import Attachment, Entry, Process
from gossipdp.protocol.course.election import Election
from gossipdp.protocol.course.ending import Ending
from gossipdp.protocol.course.facts import Age, Facts
from gossipdp.protocol.course.joiner import Joiner
from gossipdp.protocol.course.lag import BEHIND, Clocks, Lag
from gossipdp.protocol.course.meeting import Meeting
from gossipdp.protocol.course.rules import NO_LINE, keeps_parameters, more_than_a_copy, outdated, renewal
from gossipdp.protocol.course.sides import Sides
from gossipdp.protocol.course.table import COURSE, HAVE_MODEL, SPARE, Action, Event, Reason, State
from gossipdp.protocol.events import (
    CheckpointAhead,
    Notice,
    ResyncBegan,
    ResyncEnded,
    RoundSettled,
    SnapshotTaken,
    StateReady,
    StateRenewed,
    TookOver,
    WeightsLoaded,
)
from gossipdp.protocol.membership.progress import Own
from gossipdp.protocol.membership.view import LIVE
from gossipdp.protocol.model import Model
from gossipdp.protocol.pairwise.averaging import Averaging, News
from gossipdp.protocol.parts import Parts
from gossipdp.protocol.rounds.pacing import Pacing
from gossipdp.protocol.rounds.rounds import Arrival, Done, Rounds, Snapshot
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.state_machine import next_state
from gossipdp.protocol.transfer.arrived import Arrived, Origin
from gossipdp.protocol.transfer.claims import Held, Live
from gossipdp.protocol.transfer.moments import MomentsMessage
from gossipdp.protocol.transfer.moments_holder import MomentsHolder
from gossipdp.protocol.transfer.source import Asking, Giving, Source
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import (
    Lineage,
    Member,
    Message,
    Offer,
    Phase,
    Standing,
    StateAsk,
    StateProbe,
    StateRequest,
    StateSketches,
)
from gossipdp.protocol.wire.messages import State as Liveness
from gossipdp.protocol.wire.table import since

__all__ = ["WANTED", "Course", "Replacement"]

TELLS: Final = 4
"""Members of each side that are told per period."""
GREETED: Final = 32
"""Members told at once by a peer that has changed sides."""

DRY: Final = {Reason.APART: 32, Reason.LAG: 4, Reason.IDLE: 4, Reason.LATE: 4}
"""Periods without any source after which the peer gives up. A peer that lags can be averaged as it is. A peer held
apart has to follow some day, so it waits longer."""
WANTED: Final = 4
"""The same, once another peer asks for the model that is given up: there may be no other model."""
STALLED: Final = {Reason.APART: 128, Reason.LAG: 128, Reason.IDLE: 64, Reason.LATE: 64}
"""Periods with sources that all refuse, after which the peer gives up; times 1 to 2 at random. Two peers may have begun
to follow each other. One of them must stop first."""


@dataclass
class Replacement:
    """One model that replaces another."""

    reason: Reason
    joiner: Joiner
    began: float
    """time at which this began"""
    kept: bool
    """the checkpoint of the own model is saved, or not wanted"""
    source: bytes = b""
    """the member that it fetched from last"""
    taken: set[int] = field(default_factory=set)
    """chunks that are replaced"""
    dry_at: float = math.inf
    """when the peer gives up for want of sources"""
    stalled_at: float = math.inf
    """when it gives up for want of progress"""

    def saved(self) -> None:
        """The checkpoint of the own model is saved, or cannot be."""
        self.kept = True

    def seek(self, candidates: Sequence[bytes], period: float, random: Random, now: float) -> None:
        """Fetch from one of `candidates`, and count the time without a source or without progress."""
        if self.joiner.outdone(candidates):
            self.dry_at = now
            return
        self.joiner.seek(candidates, now)
        self.source = self.joiner.source or self.source
        if self.joiner.busy:
            self.dry_at = self.stalled_at = math.inf
            return
        if candidates:
            self.dry_at = math.inf
        elif math.isinf(self.dry_at):
            self.dry_at = now + DRY[self.reason] * period
        if math.isinf(self.stalled_at):
            self.stalled_at = now + STALLED[self.reason] * period * (1.0 + random.random())

    def wanted(self, period: float, now: float) -> None:
        """Another peer asks for the model that is given up, and gets none of it."""
        if not math.isinf(self.dry_at):
            self.dry_at = min(self.dry_at, now + WANTED * period)

    @property
    def over_at(self) -> float:
        """When the peer gives up. Infinite while a model is coming: its jobs end without a timer."""
        return math.inf if self.joiner.busy else min(self.dry_at, self.stalled_at)


class Course:
    """Holds the model, fetches it, gives it, and replaces it.

    Args:
        sides: which members are held apart. Exchanges read it too.
        ending: how the run of this peer ends.
    """

    def __init__(
        self,
        parts: Parts,
        contribution: Contribution,
        age: Age,
        sides: Sides,
        pacing: Pacing,
        rounds: Rounds,
        averaging: Averaging,
        moments: MomentsHolder,
        attachment: Attachment,
        ending: Ending,
    ) -> None:
        self._config, self._membership, self._progress = parts.config, parts.membership, parts.progress
        self._strikes, self._outputs, self._random, self._parts = parts.strikes, parts.outputs, parts.random, parts
        self.contribution, self._age, self._sides, self.pacing = contribution, age, sides, pacing
        self.rounds, self.averaging, self.moments = rounds, averaging, moments
        self._attachment, self.ending = attachment, ending
        self._period = parts.membership.config.join_interval
        self._tolerance = 2 * parts.config.every
        """Steps of the network's clock by which a checkpoint may be ahead of a fetched model. A peer may have told no
        other of its last rounds before a stop. A live training process may be as far behind another's model and keeps
        its own: replicas that near are averaged."""
        self.source = Source(
            parts.config.transfer,
            parts.outputs,
            parts.sign,
            ahead=parts.config.ahead,
            incarnation=parts.membership.me.incarnation,
        )
        self._election = Election(parts, tolerance=self._tolerance)
        self._meeting = Meeting(parts, sides)
        self._lag = Lag(every=parts.config.every, period=self._period)
        self.state = State.EMPTY
        self.founds = False
        """this peer gives the network its model, or has given it"""
        self.model: Model | None = None
        """the network's model without its vectors; None until this peer has it"""
        self.giver = b""
        """the last source of the first model; b"" for this peer's own"""
        self._remembered: Sequence[Member] = ()
        """members known before the start. If the model is this peer's own, they may be lost since."""
        self._first: Joiner | None = None
        """fetches the first model"""
        self._taking: Held | None = None
        """the claim with which a live training process's parameters are being taken over"""
        self._replacement: Replacement | None = None
        self._wanted = NO_LINE
        """The line that is followed. It stays wanted when it loses holders."""
        self._number = 0
        """of the last line told"""
        self._tick_at = math.inf
        """When members are told next."""
        self._unsettled = 0
        """the snapshot whose exchanges training waits for"""
        self._buried = 0
        """How often this peer was thought dead, when last looked at."""

    # -- what it is -------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """The network's model is here."""
        return self.model is not None

    @property
    def whole(self) -> bool:
        """The model is here, and no other one replaces it right now."""
        return self.model is not None and self._replacement is None

    @property
    def resyncing(self) -> Reason | None:
        """Why this peer fetches the network's model anew right now."""
        return None if self._replacement is None else self._replacement.reason

    @property
    def resumes(self) -> Held | None:
        """The progress of this host's newest checkpoint, until the model is here."""
        return self._election.held

    @property
    def fetched_in(self) -> int:
        """Steps of the network's clock that the last fetch of the model took."""
        return self._age.transfer

    @property
    def apart(self) -> list[bytes]:
        """Live members that nothing is exchanged with, because they trained apart for too long."""
        return self._sides.present()

    @property
    def clock(self) -> int:
        """Steps of the network's clock, as far as this peer knows."""
        return self.contribution.clock

    @property
    def state_clock(self) -> int:
        """The network's clock when the model was current: that may be long ago, also if it was old when it came here.

        It falls only if another model replaces this one. All peers that finish together have the same.
        """
        counts = self.ending.counts
        return self._age.current(self.contribution.clock) if counts is None else counts.clock

    def _facts(self) -> Facts:
        """What the decisions about the model rest on now."""
        ending = self.ending
        return Facts(
            clock=self.contribution.clock,
            every=self.pacing.ages_every,
            waits=self._attachment.waiting is not None,
            begins=self.rounds.open,
            ends=ending.begun,
            spare=ending.spare,
            last=ending.begun and not ending.trainers(),
            closing=ending.begun and ending.closing(),
            closes=self._membership.me.phase >= Phase.CLOSING,
        )

    def _within_reach(self) -> list[bytes]:
        return [member.id for member in self._membership.alive() if self._membership.reaches(member.id)]

    def givers(self) -> list[bytes]:
        """Members to fetch the model from: those of this peer's side."""
        return [peer for peer in self._within_reach() if peer not in self._sides.apart]

    def _current_model(self) -> Model | None:
        """The model, at the clock when it was current."""
        clock = self.contribution.clock
        if self.model is None:
            return None
        return replace(self.model, clock=clock - self._age.at(clock), rounds=self.rounds.rounds)

    @property
    def _own(self) -> Own:
        """This peer's progress."""
        return self.pacing.own(self.contribution.own_clock)

    def _clocks(self) -> Clocks:
        """How far this peer's side of the network is, as members with a voice report it."""
        reports = (self._progress.of(peer) for peer in self._membership.voices(self._sides.own()))
        return Clocks(self._progress.clock(), self._own, [report for report in reports if report is not None])

    def _renewal(self) -> Reason | None:
        """Why this peer, which does not train, fetches the model anew now."""
        reason = renewal(self._age, self._facts()) if self._age.idle else None
        return reason if reason is not None and self.givers() else None

    @property
    def _holds_back(self) -> bool:
        """The model is being replaced, or is to be before a training process begins with it."""
        # The verdict names the side to fetch from, if this peer's own side has no newer model.
        undecided = math.isfinite(self._meeting.due_at)
        old = outdated(self._age, self.contribution.clock, self.pacing.ages_every)
        return self._replacement is not None or self._renewal() is not None or (undecided and old)

    # -- the first model --------------------------------------------------------------------------------------

    def join(self, remembered: Sequence[Member], resume: Held | None, now: float, *, founds: bool, alone: bool) -> None:
        """As in `Peer.join`. alone: no address of another peer is known."""
        self._remembered = remembered
        if self._membership.me.only_carries:
            return None
        if founds:
            self.founds = True
            return self._fire(Event.FOUND, now)
        self._first = self._new_joiner()
        self._election.begin(now, remembered, resume, alone=alone)
        return self._fire(Event.JOIN, now)

    @property
    def _joiner(self) -> Joiner | None:
        """Fetches the model, or the one that replaces it."""
        return self._first if self._replacement is None else self._replacement.joiner

    def _new_joiner(self, *, newer_than: int = -1) -> Joiner:
        layout = b"" if self.model is None else self.model.schema.digest
        return Joiner(self._parts, layout=layout, newer_than=newer_than)

    def _fetch_first(self, now: float) -> None:
        """Fetch, meet others, restore, or take a live training process over."""
        joiner = self._first
        assert joiner is not None
        alive = self._within_reach()
        # Where only strangers are in reach, the ones that this peer has known for long may still come.
        voices = self._membership.voices(alive)
        alive = voices if voices or now < self._election.deadline else alive
        if self._election.claim is None:
            return joiner.seek(alive, now)
        joiner.seek(self._election.meet(alive, now), now)
        if joiner.busy or self._election.waits(now):
            return None
        return self._fire(Event.PROCESS_WINS if self._election.process_first else Event.CHECKPOINT_WINS, now)

    def _follow_up(self, now: float) -> None:
        """The joiner has had an input. Take the first model if it is complete."""
        arrived = self._first.arrived if self._first is not None and self.state is State.FETCHING else None
        if arrived is None:
            return
        held = self.resumes
        if held is not None and held.clock > arrived.clock + self._tolerance:
            self._outputs.emit(CheckpointAhead(held.clock, held.rounds, arrived.clock))
        self._take(Event.FETCHED, arrived, now)

    def _restored(self, result: jobs.Restored | None, now: float) -> None:
        """The result of a Restore. None: no checkpoint can be read."""
        if result is None:
            return self._fire(Event.UNREADABLE, now)
        held = Held(result.clock, result.rounds)
        if self.resumes is not None and held < self.resumes:
            # The newest one was damaged. Another peer's may be the latest now.
            self._election.holds(held)
            if self._election.waits(now):
                return self._fire(Event.EARLIER, now)
        carried = Carried(result.reference, result.state)
        arrived = Arrived(
            origin=Origin.RESTORED, schema=result.schema, clock=result.clock, rounds=result.rounds, carried=carried
        )
        return self._take(Event.RESTORED, arrived, now)

    def _founded(self, now: float) -> None:
        """A training process's model is now this peer's: the network's first, or that of a live process."""
        process, claim, held = self._attachment.founding, self._taking, self.resumes
        assert process is not None
        live = process.live
        if live is not None:
            self._outputs.emit(TookOver(live.clock, live.steps, None if held is None else held.clock))
            self._progress.recover(live.steps, live.samples)
        origin, clock, rounds, event = Origin.FOUNDED, 0 if live is None else live.clock, 0, Event.FOUNDED
        if claim is not None:
            self._taking = None
            origin, (clock, rounds), event = Origin.TAKEN_OVER, claim, Event.TAKEN
        arrived = Arrived(origin=origin, schema=process.schema, clock=clock, rounds=rounds, carried=process.carried)
        self._take(event, arrived, now)

    def _unusable(self, now: float) -> None:
        """The model of the training process that gives it has NaN or Inf."""
        founding = self._attachment.founding
        if founding is not None and founding.live is not None:
            self._attachment.unusable()
            if self._taking is not None:
                self._taking = None
                self._fire(Event.NOT_FINITE, now)

    def _take(self, event: Event, came: Arrived, now: float) -> None:
        """A model is here for the first time."""
        self._fire(event, now)
        self.model = model = Model.of(came.schema, self._config.settings, came.clock, came.rounds, came.carried)
        self.giver = came.giver
        self.rounds.allocate(model.chunks, model.schema.trainable, model.schema.averaged())
        self.rounds.resume(came.rounds)
        # Some parts of the model may be older than the last source's.
        self.contribution.came(max(came.clock, came.begun), came.rounds)
        at = self.contribution.own_clock
        self._came(came, at)
        self.averaging.ready(model)
        self.pacing.began(came.rounds, fresh=came.origin is not Origin.FOUNDED)
        self.contribution.report(self.rounds.rounds)
        self._outputs.emit(StateReady(came.origin, at))
        self.pacing.set()
        self._meeting.take(self._sides.said(came.giver), now)
        for member in self._remembered if came.own else ():
            self._sides.missing(member)
        self._lag.fetched(self._clocks(), now)
        self._let_in()

    # -- a training process -----------------------------------------------------------------------------------

    def attach(self, schema: bytes, carried: Carried, live: Live | None, now: float, *, moments: bool) -> None:
        """As in `Peer.attach`."""
        others_train = bool(self.ending.trainers())
        self._age.arrives(doubted=live is not None and live.loaded and others_train)
        process = Process(schema=schema, carried=carried, live=live)
        self._attachment.came(process, moments=moments and self._config.moments)
        if self.model is not None and self._holds_back:
            self.moments.outdated()
        self._let_in()
        if self.model is None and not self.founds:
            self._election.lives(live)

    def detach(self) -> None:
        """The training process is gone."""
        self._attachment.gone()
        self._election.lives(None)
        self._unsettled = 0
        self.pacing.detached()
        self.rounds.detach()

    def submit(
        self,
        session: int,
        snapshot: int,
        applied: int,
        steps: int,
        samples: int,
        state: Buffer | None,
        losses: tuple[float, float],
        now: float,
    ) -> bool:
        """As in `Peer.submit`. Returns whether the snapshot is of the open session."""
        self.contribution.note_losses(*losses)
        self.pacing.submitted(steps if session == self.rounds.session else 0, now)
        clock = self.contribution.own_clock + steps
        submitted = Snapshot(snapshot, applied, self.pacing.outer(), clock, steps, samples, state)
        if not self.rounds.submit(session, submitted):
            self._outputs.emit(SnapshotTaken(snapshot, Unused.SESSION))
            return False
        self._unsettled = snapshot if self._config.sync else 0
        return True

    def _let_in(self) -> None:
        """Open a session for the waiting process, found the network with it, or let it wait for the model."""
        process = self._attachment.waiting
        if process is None:
            return
        if self.model is None:
            if self.rounds.founding:
                # Another process has replaced the one that gives the model. It waits for the outcome.
                self.rounds.detach()
            elif self.founds:
                self._found()
            return
        live, others_train = process.live, bool(self.ending.trainers())
        every, clock = self._config.every, self.contribution.clock
        keeps = live is not None and keeps_parameters(live, clock, every, others_train=others_train)
        match self._attachment.enters(self.model, held=self._holds_back, keeps=keeps):
            case Entry.KEEP if live is not None:
                self.rounds.attach(Arrival(keeps=live, carried=process.carried))
            case Entry.BEGIN:
                self.rounds.attach(Arrival())

    def _found(self) -> None:
        """Take the model from the waiting process."""
        process = self._attachment.found()
        schema = Schema.from_bytes(process.schema)
        width = chunk_parameters(schema.size)
        self._outputs.ask(jobs.Allocate(schema.size, schema.trainable, width, schema.tensors))
        self.rounds.allocate(len(schema.spans()), schema.trainable, schema.averaged())
        self.rounds.attach(Arrival(founds=True, keeps=process.live))

    def _trained(self, clock: int, steps: int, samples: int, state: Buffer | None) -> None:
        """A finite snapshot of this clock has come: the steps and samples since the one before count.

        Args:
            state: what is not exchanged, as of this snapshot (`carried_state`); None if it is unchanged.
        """
        if state is not None and self.model is not None:
            self.model = replace(self.model, carried=replace(self.model.carried, state=state))
        moved = self.contribution.added(clock, steps, samples)
        self._age.stepped(moved, self.contribution.clock)
        self.contribution.report(self.rounds.rounds)

    def _kept(self, live: Live, carried: Carried) -> None:
        """The parameters of a live training process become the model."""
        clock = self.contribution.clock
        before = None if self.model is None else clock
        self._outputs.emit(WeightsLoaded(True) if live.loaded else TookOver(live.clock, live.steps, before))
        self._progress.recover(live.steps, live.samples)
        self._trained(live.clock, 0, 0, carried.state)
        self._age.kept(self.contribution.clock)

    # -- another peer's model in place of this one ------------------------------------------------------------

    def _follow(self, reason: Reason, now: float) -> None:
        """Give up this peer's model. Unless it is a mere copy, the driver saves a checkpoint of it first."""
        spare, age, clock = reason in SPARE, self._age, self.contribution.clock
        self._tick_at = now + self._period
        members, others = 1 + len(self._sides.own()), len(self._sides.present())
        joiner = self._new_joiner(newer_than=age.least(clock) if spare else -1)
        keep = age.trained or not spare
        self._replacement = Replacement(reason, joiner, now, not keep)
        self.averaging.hold(True, now)
        self._outputs.emit(ResyncBegan(reason, members, others, age.at(clock) if spare else 0))
        if keep:
            self._outputs.ask(jobs.Keep(reason))

    def _replace(self, replacement: Replacement, now: float) -> None:
        """Go on fetching from any live member that holds the model wanted, or end it."""
        if replacement.joiner.done:
            return self._fire(Event.REPLACED, now)
        if now >= replacement.over_at:
            return self._fire(Event.GAVE_UP, now)
        if replacement.reason is Reason.LAG:
            wanted: Sequence[bytes] = self._lag.vouchers
        elif replacement.reason in SPARE:
            wanted = self.givers()
        else:
            wanted = self._holders()
        alive, training = set(self._within_reach()), set(self._membership.training())
        present = [peer for peer in wanted if peer in alive]
        # A member that does not train holds an older model.
        candidates = [peer for peer in present if peer in training] or present
        if replacement.kept and self.averaging.hold(True, now):
            replacement.seek(candidates, self._period, self._random, now)
        return None

    def _holders(self) -> list[bytes]:
        """Holders of the line followed, or of another line that is greater than this peer's."""
        return self._sides.holders(self._wanted) or self._sides.greater(self._meeting.line)

    def _adopt(self, now: float) -> None:
        """Another peer's model is here."""
        replacement = self._replacement
        assert replacement is not None and replacement.joiner.arrived is not None and self.model is not None
        came, duration = replacement.joiner.arrived, now - replacement.began
        # Whatever the reason was: a model of the other side brings this peer to that side.
        if replacement.reason is Reason.APART or replacement.source in self._sides.apart:
            self._meeting.change_sides(self._sides.said(replacement.source), now)
            self._tick_at = now
        ahead = max(0, came.rounds - self.rounds.rounds)
        self.contribution.replaced(max(came.clock, came.begun), ahead)
        clock = self.contribution.clock
        self.averaging.fetched()
        self.model = replace(self.model, carried=came.carried)
        if memoryview(came.carried.state).nbytes:
            self._outputs.emit(StateRenewed())
        self._came(came, clock)
        self.source.forget()
        self.rounds.resume(self.rounds.rounds + ahead)
        self.pacing.resynced(self.rounds.rounds, duration)
        self.contribution.report(self.rounds.rounds)
        if replacement.reason is Reason.IDLE:
            self.moments.outdated()
        self._end(now, complete=True)

    def _came(self, came: Arrived, clock: int) -> None:
        """A fetched model is here, when the network's clock is `clock`."""
        self._age.came(clock - came.clock, clock - max(came.clock, came.begun), self.contribution.clock)

    def _end(self, now: float, *, complete: bool) -> None:
        """Exchange again, with a model that is whole. complete: all of the other model is here."""
        replacement = self._replacement
        assert replacement is not None
        # A peer that gave up does not try again at once: `step` says when.
        self._age.attempted(replacement.reason, self._facts(), complete=complete)
        self._lag.fetched(self._clocks(), now)
        self._replacement = None
        for chunk in sorted(replacement.taken):
            self._outputs.ask(jobs.Conclude(chunk, not complete))
        reason, source = replacement.reason, replacement.source
        self._outputs.emit(ResyncEnded(reason, source, complete, now - replacement.began))
        self.averaging.hold(False, now)
        for peer in self._sides.own()[:GREETED]:
            self._tell(peer)

    def _watch_lag(self, now: float) -> None:
        if self._membership.buried != self._buried:
            self._buried = self._membership.buried
            self._lag.cut_off()
        if self.state is State.DOUBTING:
            if self._lag.proven(self._clocks(), now):
                self._fire(Event.VOUCHED, now)
            elif self._lag.disproven(now):
                self._fire(Event.UNVOUCHED, now)
        elif self._lag.possible(self._own.alone, now) and self._lag.far(self._clocks()):
            self._fire(Event.SUSPECTED, now)

    # -- the table --------------------------------------------------------------------------------------------

    def _fire(self, event: Event, now: float) -> None:
        """Handle `event`. The state changes first, then the action runs."""
        self.state, action = next_state(COURSE, self.state, event)
        match action:
            case Action.ADOPT:
                self._first = None
                self._election.end()
            case Action.RESTORE:
                self._outputs.ask(jobs.Restore())
            case Action.TAKE_OVER:
                self._taking = self._election.claim
                self._found()
            case Action.RESTART:
                # The checkpoint has replaced the chunks that were fetched.
                self._first = self._new_joiner()
            case Action.FORGET:
                self._election.holds(None)
                if self._election.live is None:
                    text = "no state from the network and no checkpoint here: looking for a member that has the model"
                    self._outputs.emit(Notice("GD-101", text))
            case Action.DISMISS:
                self._election.lives(None)
            case Action.ASK:
                self._lag.ask(now)
                self.averaging.hold(True, now)
                self._tick_at = now
            case Action.RESUME:
                self.averaging.hold(False, now)
            case Action.TRUST:
                self._lag.fetched(self._clocks(), now)
                self.averaging.hold(False, now)
            case Action.FOLLOW_SIDE:
                self._follow_side(now)
            case Action.FOLLOW_NETWORK:
                self._follow(Reason.LAG, now)
            case Action.RENEW:
                reason = self._renewal()
                assert reason is not None
                self._follow(reason, now)
            case Action.TURN:
                self._end(now, complete=False)
                self._follow_side(now)
            case Action.CHANGE:
                self._adopt(now)
            case Action.KEEP:
                self._end(now, complete=False)

    def _follow_side(self, now: float) -> None:
        self._wanted = self._sides.theirs[self._sides.greater(self._meeting.line)[0]]
        self._follow(Reason.APART, now)

    # -- inputs -----------------------------------------------------------------------------------------------

    def stop(self, now: float) -> None:
        """This peer leaves: it begins no exchange or transfer. One that does not train keeps the model that it has."""
        replacement = self._replacement
        if replacement is not None and replacement.reason in SPARE:
            self._fire(Event.REPLACED if replacement.joiner.done else Event.GAVE_UP, now)
        self.averaging.stop(now)

    def receive(self, message: Message, buffers: list[Buffer], source: bytes, size: int, now: float) -> None:
        """A message about models or exchanges. size: bytes of all its frames."""
        match message:
            case _ if isinstance(message, Asking):
                self._asked(message, source, now)
            case _ if isinstance(message, Giving):
                self._given(message, buffers, source, now)
            case Lineage():
                self._line_told(message, source, now)
            case _ if isinstance(message, MomentsMessage):
                self.moments.receive(message, buffers, source, self.model.schema if self.model else None, now)
            case Standing():
                if message.reply:
                    model = None if self.model is None else replace(self.model, clock=self.state_clock)
                    self._election.tell(source, model, reply=False, spare=self._age.idle)
                self._election.hear(message, source, now)
            case _:
                if isinstance(message, Offer):
                    self._offered(source, message.schema, now)
                self.averaging.receive(message, buffers, source, size, now)

    def member_changed(self, member: Member, now: float) -> None:
        """Membership has news of `member`."""
        self.ending.member_changed(member, now)
        self.averaging.member_changed(member, now)
        gone = member.state in (Liveness.FAILED, Liveness.LEFT)
        if gone:
            # First, because a model that is complete then is of the line that its giver said.
            self._gone(member.id, now)
        self._election.member_changed(member)
        self._sides.prune()
        if gone:
            self._sides.lost(member)
            self._lag.dismiss(member.id)
        elif self.state not in HAVE_MODEL:
            self._sides.seen(member)
        else:
            self._back(member, now)

    def _back(self, member: Member, now: float) -> None:
        back = self._sides.back(member, now)
        if back.lost:
            self._lag.cut_off()
        if back.new or member.id in self._sides.apart:
            self._lag.dismiss(member.id)
        if member.id in self._sides.apart:
            # It may have changed sides, and its message may be lost.
            self._tick_at = min(self._tick_at, now)

    def part(self, peer: bytes, now: float) -> None:
        """End the exchange and the transfers with `peer`, as if it had failed. It stays a member."""
        self.averaging.part(peer, now)
        self._gone(peer, now)

    def _gone(self, peer: bytes, now: float) -> None:
        """`peer` gives this peer nothing any more."""
        if self._joiner is not None:
            self._joiner.gone(peer, now)
            self._follow_up(now)
        self.moments.gone(peer, now)

    def slept(self, seconds: float, now: float) -> None:
        """This peer did not run for `seconds`."""
        self.averaging.slept(seconds)
        self.pacing.slept(now)

    def _heard(self, news: News, now: float) -> None:
        """An exchange begins, or has mixed chunks. Then this peer is in step, unless it has slept meanwhile."""
        clocks = self._clocks()
        if news is News.BEGAN:
            return self._lag.began(clocks)
        self._lag.mixed(clocks, now)
        if self.state is State.DOUBTING and not self._lag.far(clocks):
            self._fire(Event.CAUGHT_UP, now)
        return None

    def _offered(self, peer: bytes, layout: bytes, now: float) -> None:
        """`peer` offers an exchange of a model of this layout: if it is alive, it has the model."""
        member, joiner = self._membership.members.get(peer), self._first
        if joiner is None:
            return
        joiner.shown(peer, layout, now)
        self._follow_up(now)
        if self._first is joiner and self._election.claim is None and member is not None and member.state in LIVE:
            joiner.found_ready(peer, now)

    def _asked(self, message: Asking, source: bytes, now: float) -> None:
        """A peer asks for this peer's model, or for a sample of it."""
        given = self._current_model() if self._gives(message, source) else None
        member = self._membership.members.get(source)
        sketches = member is not None and member.version >= since(StateSketches)
        self.source.receive(message, source, given, now, sketches=sketches)
        if not isinstance(message, StateRequest):
            return
        # A peer follows a side for long, but not if no member of it can be reached and another peer has no model.
        replacement, trusted = self._replacement, not self._strikes.shuns(source, now)
        if trusted and replacement is not None and replacement.reason is Reason.APART:
            holders = [peer for peer in self._holders() if self._membership.reaches(peer)]
            if self._sides.followers.issuperset(holders):
                replacement.wanted(self._period, now)
        if self._meeting.line != NO_LINE:
            # The joiner will be of this peer's side.
            self._tell(source)

    def _gives(self, message: StateRequest | StateAsk | StateProbe, peer: bytes) -> bool:
        """Whether `peer` may have this peer's state.

        Not while it is partly another model, or perhaps long out of date. While there are two sides, this peer is no
        witness for a transfer of the other side.
        """
        foreign = isinstance(message, StateProbe) and peer not in self._sides.theirs and self._sides.present()
        # Two idle peers may ask each other at once. Neither has replaced a chunk yet.
        replacement = self._replacement
        whole = replacement is None or (replacement.reason in SPARE and not replacement.taken)
        return whole and self.state is not State.DOUBTING and not foreign

    def _given(self, message: Giving, buffers: list[Buffer], source: bytes, now: float) -> None:
        """A peer sends a part of its model, or a sample of it."""
        # While a checkpoint or a training process's parameters are read, no other model may take their room.
        if self._joiner is None or self.state not in (State.FETCHING, State.REPLACING):
            return
        if self._joiner.receive(message, buffers, source, now):
            self.averaging.chunk_received(now)
        self._follow_up(now)

    def _line_told(self, word: Lineage, source: bytes, now: float) -> None:
        """`source` says which line it holds."""
        # What was said to an earlier life of this peer is void: its side may differ.
        void = word.apart and word.life != self._membership.me.incarnation
        if void or not self._sides.hear(word, source) or self.state not in HAVE_MODEL:
            return
        heeded = bool(self._membership.voices([source]))
        if self._sides.place(word, source, self._meeting.line) and heeded:
            self._meeting.offered(word.line, source, now)
        self._sides.settle(source, gives_up=word.lag == BEHIND)
        if source in self._sides.apart:
            self._lag.dismiss(source)
        elif heeded:
            self._lag.heard(source, word.lag)
        if word.reply:
            self._tell(source)

    def _tell(self, peer: bytes, *, reply: bool = False) -> None:
        """Say which line this peer holds. `reply`: ask for the line of `peer`."""
        lag = BEHIND if self._replacement is not None else self._lag.told(self._clocks())
        me, member = self._membership.me, self._membership.members.get(peer)
        life = 0 if member is None else member.incarnation
        self._number += 1
        apart = peer in self._sides.apart
        self._outputs.send(peer, Lineage(me.incarnation, self._number, life, apart, reply, lag, self._meeting.line))

    def _tell_some(self, peers: Iterable[bytes]) -> None:
        reached = [peer for peer in peers if self._membership.reaches(peer)]
        for peer in self._random.sample(reached, min(TELLS, len(reached))):
            self._tell(peer, reply=True)

    def job_done(self, job: jobs.Job[object], result: object, now: float) -> None:
        """The driver has carried out a job. A result that nothing waits for any more is dropped."""
        if isinstance(job, jobs.OfExchange):
            return self.averaging.job_done(job, result, now)
        model, joiner = self._current_model(), self._joiner
        match job:
            case jobs.CheckMoments():
                self.moments.checked(job, job.typed(result), now)
            case jobs.Freeze() if model is not None:
                self.source.frozen(job, job.typed(result), model)
            case jobs.HashPiece() if model is not None:
                self.source.hashed(job, job.typed(result), model)
            case jobs.Sample() if model is not None:
                self.source.sampled(job.typed(result), model)
            case jobs.CheckPiece() | jobs.Adopt() if joiner is not None:
                joiner.adopted(job, job.typed(result), now)
                self._follow_up(now)
            case jobs.Compare() if joiner is not None:
                joiner.compared(job.typed(result), now)
                self._follow_up(now)
            case jobs.Resync() if self._replacement is not None:
                replaced = job.typed(result)
                if replaced.finite:
                    self._replacement.taken.add(job.chunk)
                self._replacement.joiner.adopted(job, replaced, now)
            case jobs.Keep() if self._replacement is not None:
                self._replacement.saved()
            case jobs.Restore():
                self._restored(job.typed(result), now)
            case _:
                self._round_job_done(job, result, now)
        return None

    def _round_job_done(self, job: jobs.Job[object], result: object, now: float) -> None:
        """The result of a job of a round or of an attachment."""
        rounds = self.rounds
        done = rounds.job_done(job, result)
        if done is Done.FOUNDING and self._attachment.founding is not None and self.model is None:
            self._founded(now)
        elif isinstance(job, jobs.Found):
            if not job.typed(result).finite:
                self._unusable(now)
            self._let_in()
        if done is Done.KEPT and rounds.process.keeps is not None:
            self._kept(rounds.process.keeps, rounds.process.carried)
        if done is Done.ACCEPTED:
            snapshot = rounds.snapshot
            self._trained(snapshot.clock, snapshot.steps, snapshot.samples, snapshot.state)
        if done is Done.ROUND:
            self.pacing.round_done(rounds.rounds, rounds.length, rounds.movement, rounds.open, now)
            self.averaging.round_done(now)

    # -- time -------------------------------------------------------------------------------------------------

    def timer(self) -> float:
        """When `handle_timer` wants to be called next, or infinity."""
        machines = (self.averaging, self.source, self.moments, self.pacing, self.ending)
        times = [self._tick_at, *(machine.timer() for machine in machines)]
        if self._joiner is not None:
            times.append(self._joiner.timer())
        if self._sides.apart and self._judges:
            times.append(self._meeting.due_at)
        if self._replacement is not None:
            times.append(self._replacement.over_at)
        if self.state in (State.FETCHING, State.TAKING_OVER) and self._election.claim is not None:
            times.append(self._election.timer())
        return min(time for time in times if time is not None)

    def handle_timer(self, now: float) -> None:
        """The time that `timer` named has come."""
        self.averaging.handle_timer(now)
        self.source.handle_timer(now)
        if self._joiner is not None:
            self._joiner.handle_timer(now)
            self._follow_up(now)
        if self.state not in HAVE_MODEL and self._election.claim is not None:
            self._election.handle_timer(now)
        if now >= self._tick_at:
            self._tell_sides(now)
        self.moments.handle_timer(now)

    def _tell_sides(self, now: float) -> None:
        """Tell members of this peer's side once a period, and ask for theirs."""
        present, asking = self._sides.present(), self.state is State.DOUBTING
        self._tick_at = now + self._period if present or asking or self._replacement is not None else math.inf
        if present:
            self._tell_some(present)
        if present or asking or self.resyncing is Reason.LAG:
            self._tell_some(self._sides.own())

    @property
    def _judges(self) -> bool:
        """Whether this peer follows a greater line as soon as one is proven."""
        return self._replacement is None or self._replacement.reason in SPARE

    def step(self, now: float) -> None:
        """Draw conclusions after any input."""
        for news in self.averaging.take_news():
            self._heard(news, now)
        if self.state is State.FETCHING:
            self._fetch_first(now)
        self._age.trains(self.rounds.trains, self.contribution.clock)
        self.pacing.watch(self.rounds.open, now)
        if self.state in HAVE_MODEL:
            self._judge(now)
        if self.model is not None:
            self._let_in()
            if self._attachment.wants_moments:
                peers = [peer for peer in self._within_reach() if not self._strikes.shuns(peer, now)]
                if self._attachment.seek_moments(self.model, peers, self.giver, now):
                    self._let_in()
        self._hold_rounds(self._replacement is not None)
        if self.rounds.waits and self.averaging.satisfied:
            self.rounds.waits_no_more()
        if self._unsettled and self.rounds.handed_out and self.averaging.satisfied:
            self._outputs.emit(RoundSettled(self._unsettled))
            self._unsettled = 0
        if self.ending.due(now):
            before = self._membership.me.phase
            whole, sources = self.whole, bool(self.givers())
            self.ending.look(self._facts(), now, ready=self.ready, whole=whole, sources=sources)
            if before is Phase.RUNNING and self._membership.me.phase is not before:
                self.source.forget()  # the model has changed, because training is over

    def _hold_rounds(self, replacing: bool) -> None:
        """Rounds pause while the model is replaced."""
        if self.rounds.held == replacing:
            return
        self.rounds.hold(replacing)
        if replacing:
            self.source.forget()
        else:
            self.rounds.mixed()
            self._let_in()

    def _judge(self, now: float) -> None:
        """Whether the model here stays, or which one replaces it."""
        trains = more_than_a_copy(self._age, ends=self.ending.begun)
        if self._sides.take_noticed():
            self._meeting.found_apart(self._own, now, trains=trains)
            self._tick_at = now
        replacement = self._replacement
        meets = self._judges and (self._sides.apart or self._meeting.under_way)
        follows = meets and self._meeting.judge(now, trains=trains)
        if follows and not (replacement is not None and replacement.joiner.busy):
            self._fire(Event.OUTRANKED, now)
        elif replacement is not None:
            self._replace(replacement, now)
        if self._replacement is None and self._renewal() is not None:
            self._fire(Event.OUTDATED, now)
        elif self._replacement is None and not self.ending.begun:
            self._watch_lag(now)
        elif self.state is State.DOUBTING:
            # The run ends. The model is not given up, so there is nothing left to ask for.
            self._fire(Event.UNVOUCHED, now)
