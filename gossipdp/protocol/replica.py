"""The replica of one peer: builds the machines of its model in order, and passes inputs on to them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gossipdp.protocol import jobs
from gossipdp.protocol.carried_state import Carried
from gossipdp.protocol.causes import Unused
from gossipdp.protocol.contribution import Contribution
from gossipdp.protocol.course.attachment import Attachment, Process
from gossipdp.protocol.course.course import Course, TransferJob
from gossipdp.protocol.course.ending import Ending
from gossipdp.protocol.course.facts import Age
from gossipdp.protocol.course.sides import Absences, Sides
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.events import RoundSettled, SnapshotTaken
from gossipdp.protocol.model import Model
from gossipdp.protocol.pairwise.averaging import Averaging
from gossipdp.protocol.parts import Parts
from gossipdp.protocol.rounds.pacing import Pacing
from gossipdp.protocol.rounds.rounds import Done, Rounds, Snapshot
from gossipdp.protocol.transfer.claims import Held, Live
from gossipdp.protocol.transfer.moments import MomentsMessage
from gossipdp.protocol.transfer.moments_holder import MomentsHolder
from gossipdp.protocol.transfer.source import Asking, Giving
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lineage, Member, Message, Offer, Phase, Standing, State

__all__ = ["Replica"]


class Replica:
    """The model of one peer, its rounds, and its exchanges. Every input is followed by `step`."""

    def __init__(self, parts: Parts) -> None:
        config, outputs, membership = parts.config, parts.outputs, parts.membership
        self._membership, self._strikes, self._outputs = membership, parts.strikes, outputs
        self._moments_wanted, self._sync = config.moments, config.sync
        self.contribution = contribution = Contribution(parts.progress)
        self._age = age = Age()
        absences = Absences(parts.progress, contribution, config.apart_rounds * config.every)
        self._sides = sides = Sides(membership, absences, membership.config.join_interval)
        self.pacing = Pacing(config.pacing, outputs, membership, parts.speed, contribution)
        self.rounds = Rounds(outputs, config.ahead)
        self.averaging = Averaging(parts, self.pacing, self.rounds, contribution, age, sides.apart)
        self.moments = MomentsHolder(
            config.transfer,
            outputs,
            sign=parts.sign,
            verify=parts.verify,
            random=parts.random,
            incarnation=membership.me.incarnation,
            enabled=config.moments,
        )
        self.ending = Ending(parts, contribution, age, sides.apart, self.pacing, self.rounds, self.averaging)
        self._attachment = Attachment(self.moments, outputs)
        self.course = Course(
            parts,
            contribution,
            age,
            sides,
            self.pacing,
            self.rounds,
            self.averaging,
            self.moments,
            self._attachment,
            self.ending,
        )
        self._unsettled = 0
        """the snapshot whose exchanges training waits for"""

    # -- commands ---------------------------------------------------------------------------------------------

    def join(self, remembered: Sequence[Member], resume: Held | None, now: float, *, founds: bool, alone: bool) -> None:
        """As in `Peer.join`. alone: no address of another peer is known."""
        self.course.join(remembered, resume, now, founds=founds, alone=alone)

    def stop(self, now: float) -> None:
        """This peer leaves. Begin no more exchanges or transfers."""
        self.course.stop(now)
        self.averaging.stop(now)

    # -- the training process ---------------------------------------------------------------------------------

    def attach(self, schema: bytes, carried: Carried, live: Live | None, now: float, *, moments: bool) -> None:
        """As in `Peer.attach`."""
        process = Process(schema=schema, carried=carried, live=live)
        self.course.attach(process, now, moments=moments and self._moments_wanted)

    def detach(self) -> None:
        """The training process is gone."""
        self.course.detach()
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
        self._unsettled = snapshot if self._sync else 0
        return True

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, message: Message, buffers: list[Buffer], source: bytes, size: int, now: float) -> None:
        """A message about models or exchanges. size: bytes of all its frames."""
        course = self.course
        match message:
            case _ if isinstance(message, Asking):
                course.asked(message, source, now, trusted=not self._strikes.shuns(source, now))
            case _ if isinstance(message, Giving):
                course.given(message, buffers, source, now)
            case Lineage():
                course.line_told(message, source, now)
            case _ if isinstance(message, MomentsMessage):
                self.moments.receive(message, buffers, source, self.model.schema if self.model else None, now)
            case Standing():
                course.standing(message, source, now)
            case _:
                if isinstance(message, Offer):
                    course.offered(source, message.schema, now)
                self.averaging.receive(message, buffers, source, size, now)

    def member_changed(self, member: Member, now: float) -> None:
        """Membership has news of `member`."""
        self.ending.member_changed(member, now)
        self.averaging.member_changed(member, now)
        self.course.member_changed(member, now)
        if member.state in (State.FAILED, State.LEFT):
            self.moments.gone(member.id, now)

    def part(self, peer: bytes, now: float) -> None:
        """End the exchange and the transfers with `peer`, as if it had failed. It stays a member."""
        self.averaging.part(peer, now)
        self.course.gone(peer, now)
        self.moments.gone(peer, now)

    def slept(self, seconds: float, now: float) -> None:
        """This peer did not run for `seconds`."""
        self.averaging.slept(seconds)
        self.pacing.slept(now)

    def job_done(self, job: jobs.Job[object], result: object, now: float) -> None:
        """The driver has carried out a job."""
        match job:
            case _ if isinstance(job, jobs.OfExchange):
                self.averaging.job_done(job, result, now)
            case _ if isinstance(job, TransferJob):
                self.course.job_done(job, result, now)
            case jobs.CheckMoments():
                self.moments.checked(job, job.typed(result), now)
            case _:
                self._round_job_done(job, result, now)

    def _round_job_done(self, job: jobs.Job[object], result: object, now: float) -> None:
        """The result of a job of a round or of an attachment."""
        rounds = self.rounds
        done = rounds.job_done(job, result)
        if done is Done.FOUNDING and self._attachment.founding is not None and self.model is None:
            self.course.founded(now)
        elif isinstance(job, jobs.Found):
            if not job.typed(result).finite:
                self.course.unusable(now)
            self.course.let_in()
        if done is Done.KEPT and rounds.process.keeps is not None:
            self.course.kept(rounds.process.keeps, rounds.process.carried)
        if done is Done.ACCEPTED:
            snapshot = rounds.snapshot
            self.course.trained(snapshot.clock, snapshot.steps, snapshot.samples, snapshot.state)
        if done is Done.ROUND:
            self.pacing.round_done(rounds.rounds, rounds.length, rounds.movement, rounds.open, now)
            self.averaging.round_done(now)

    def timer(self) -> float:
        """When `handle_timer` wants to be called next, or infinity."""
        machines = (self.averaging, self.course, self.moments, self.pacing, self.ending)
        times = [machine.timer() for machine in machines]
        return min([time for time in times if time is not None], default=math.inf)

    def handle_timer(self, now: float) -> None:
        """The time that `timer` named has come."""
        for machine in (self.averaging, self.course, self.moments):
            machine.handle_timer(now)

    def step(self, now: float) -> None:
        """Draw conclusions after any input."""
        course, rounds = self.course, self.rounds
        for news in self.averaging.take_news():
            course.heard(news, now)
        course.step(now)
        replacing = course.reason is not None
        if self.model is not None:
            course.let_in()
            if self._attachment.wants_moments:
                course.seek_moments(self._trusted(now), now)
        if rounds.held != replacing:
            rounds.hold(replacing)
            if replacing:
                course.source.forget()
            else:
                rounds.mixed()
                course.let_in()
        if self._unsettled and rounds.handed_out and self.averaging.satisfied:
            self._outputs.emit(RoundSettled(self._unsettled))
            self._unsettled = 0
        if self.ending.due(now):
            before = self._membership.me.phase
            whole, sources = course.whole, bool(course.givers())
            self.ending.look(course.facts(), now, ready=self.model is not None, whole=whole, sources=sources)
            if before is Phase.RUNNING and self._membership.me.phase is not before:
                course.source.forget()  # the model has changed, because training is over

    # -- what it is -------------------------------------------------------------------------------------------

    @property
    def model(self) -> Model | None:
        """The network's model without its vectors; None until this peer has it."""
        return self.course.model

    @property
    def ready(self) -> bool:
        """The network's model is here."""
        return self.course.model is not None

    @property
    def whole(self) -> bool:
        """The model is here, and no other one replaces it right now."""
        return self.course.whole

    @property
    def founds(self) -> bool:
        """This peer gives the network its model, or has given it."""
        return self.course.founds

    @property
    def resumes(self) -> Held | None:
        """The progress of this host's newest checkpoint, until the model is here."""
        return self.course.held

    @property
    def resyncing(self) -> Reason | None:
        """Why this peer fetches the network's model anew right now."""
        return self.course.reason

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
        """The network's clock when the model was current (`Course.state_clock`)."""
        return self.course.state_clock

    def _trusted(self, now: float) -> list[bytes]:
        """Members that are alive, within reach and not set aside."""
        live = [member.id for member in self._membership.alive() if self._membership.reaches(member.id)]
        return [peer for peer in live if not self._strikes.shuns(peer, now)]
