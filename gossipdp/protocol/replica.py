"""The replica of one peer: its model, and the machines that change it.

Rounds of the training process, exchanges and transfers of the model meet here. `peer` owns this object
and passes on what concerns it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from gossipdp.protocol import jobs
from gossipdp.protocol.contribution import Contribution
from gossipdp.protocol.course.age import Age
from gossipdp.protocol.finishing import Finishing
from gossipdp.protocol.model import Model
from gossipdp.protocol.model_holder import ModelHolder
from gossipdp.protocol.pairwise.averaging import Averaging
from gossipdp.protocol.partition.reasons import Reason
from gossipdp.protocol.parts import Parts
from gossipdp.protocol.round_machines import RoundMachines
from gossipdp.protocol.rounds.attachment import Attachment
from gossipdp.protocol.rounds.pacing import Pacing
from gossipdp.protocol.rounds.rounds import Rounds
from gossipdp.protocol.training import Training
from gossipdp.protocol.transfer.arrived import Arrived
from gossipdp.protocol.transfer.claims import Held
from gossipdp.protocol.transfer.moments import MomentsMessage
from gossipdp.protocol.transfer.moments_holder import MomentsHolder
from gossipdp.protocol.transfer.source import Asking, Giving
from gossipdp.protocol.transfers import TransferJob, Transfers
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lineage, Member, Message, Offer, Standing, State

__all__ = ["Replica"]


class Replica:
    """Builds the machines in order. What a machine needs of a later one, it reads when it is asked for.

    Args:
        wake: as in `Training`.
        settle: as in `Training`.
    """

    def __init__(self, parts: Parts, *, wake: Callable[[float], None], settle: Callable[[float], None]) -> None:
        config, outputs, membership = parts.config, parts.outputs, parts.membership
        self._membership, self._strikes = membership, parts.strikes
        self.contribution = Contribution(parts.progress)
        self.pacing = Pacing(
            config.pacing,
            outputs,
            parts.speed,
            clock=lambda: self.contribution.clock,
            changed=self._paced,
        )
        self.rounds = Rounds(outputs, config.ahead)
        self._age = Age()
        self.averaging = Averaging(
            parts,
            self.pacing,
            self.rounds,
            apart=lambda: self._transfers.reunion.apart,
            drift=lambda: self._age.drift(self.contribution.clock),
            began=self._exchange_began,
            ended=self._exchange_ended,
        )
        self.moments = MomentsHolder(
            config.transfer,
            outputs,
            sign=parts.sign,
            verify=parts.verify,
            random=parts.random,
            incarnation=membership.me.incarnation,
            enabled=config.moments,
        )
        self.finishing = Finishing(
            parts,
            self.averaging,
            self.pacing,
            self.contribution,
            self._age,
            over=lambda: self.rounds.at_rest,
            ready=lambda: self.ready,
            current=lambda: self.whole and not self._transfers.outdated,
            rested=self._rested,
            apart=lambda: self._transfers.reunion.apart,
        )
        machines = RoundMachines(self.contribution, self.pacing, self.averaging, self.rounds)
        self._transfers = Transfers(
            parts,
            machines,
            self.finishing,
            self._age,
            waits=lambda: self._attachment.waits,
            take_over=self._take_over,
            layout=lambda: b"" if self.model is None else self.model.schema.digest,
            arrived=self._arrived,
            replaced=self._replaced,
        )
        self._holder = ModelHolder(parts, machines, self.finishing, self._transfers)
        self._attachment = Attachment(
            self.rounds,
            self.moments,
            outputs,
            founds=lambda: self.founds,
            held=lambda: self._transfers.held,
            keeps=self._holder.keeps,
            kept=self._holder.kept,
        )
        self.training = Training(
            parts, machines, self._transfers, self._attachment, self._holder, wake=wake, settle=settle
        )

    # -- commands ---------------------------------------------------------------------------------------------

    def join(self, remembered: Sequence[Member], resume: Held | None, now: float, *, founds: bool, alone: bool) -> None:
        """As in `Peer.join`. alone: no address of another peer is known."""
        self._holder.remember(remembered)
        if founds:
            self._transfers.bootstrap.found()
        self._transfers.bootstrap.join(now, remembered, resume, alone=alone)

    def stop(self, now: float) -> None:
        """This peer leaves. Begin no more exchanges or transfers."""
        self._transfers.reunion.stop(now)
        self.averaging.stop(now)

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, message: Message, buffers: list[Buffer], source: bytes, size: int, now: float) -> None:
        """A message about models or exchanges. size: bytes of all its frames."""
        model, transfers = self.model, self._transfers
        match message:
            case _ if isinstance(message, Asking):
                trusted = not self._strikes.shuns(source, now)
                transfers.asked(message, source, self._current_model(), now, trusted=trusted)
            case _ if isinstance(message, Giving):
                transfers.given(message, buffers, source, now, ready=self.ready)
            case Lineage():
                transfers.reunion.receive(message, source, now)
            case _ if isinstance(message, MomentsMessage):
                self.moments.receive(message, buffers, source, model.schema if model else None, now)
            case Standing():
                standing = None if model is None else replace(model, clock=self.state_clock)
                transfers.bootstrap.standing(message, source, standing, now, spare=transfers.spare)
            case _:
                if model is None and isinstance(message, Offer):
                    transfers.bootstrap.offered(source, message.schema, now)
                self.averaging.receive(message, buffers, source, size, now)

    def member_changed(self, member: Member, now: float) -> None:
        """Membership has news of `member`."""
        self.finishing.member_changed(member, now)
        self.averaging.member_changed(member, now)
        self._transfers.bootstrap.member_changed(member, now)
        self._transfers.reunion.member_changed(member, now)
        if member.state in (State.FAILED, State.LEFT):
            self.moments.gone(member.id, now)

    def part(self, peer: bytes, now: float) -> None:
        """End the exchange and the transfers with `peer`, as if it had failed. It stays a member."""
        self.averaging.part(peer, now)
        self._transfers.bootstrap.gone(peer, now)
        self._transfers.reunion.follower.gone(peer, now)
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
                self._transfers.job_done(job, result, self._current_model(), now)
            case jobs.CheckMoments():
                self.moments.checked(job, job.typed(result), now)
            case _:
                self.training.job_done(job, result, now)

    def timer(self) -> float:
        """When `handle_timer` wants to be called next, or infinity."""
        transfers = self._transfers
        machines = (self.averaging, transfers.source, transfers.bootstrap, transfers.reunion, self.moments, self.pacing)
        times = [machine.timer() for machine in machines]
        return min([time for time in (*times, self.finishing.timer()) if time is not None], default=math.inf)

    def handle_timer(self, now: float) -> None:
        """The time that `timer` named has come."""
        transfers = self._transfers
        for machine in (self.averaging, transfers.source, transfers.bootstrap, transfers.reunion, self.moments):
            machine.handle_timer(now)

    def step(self, now: float) -> None:
        """Draw conclusions after any input."""
        self._transfers.bootstrap.step(now)
        self._transfers.trains(self.rounds.trains)
        self.pacing.watch(self.rounds.open, now)
        self._transfers.reunion.step(now)
        self.training.step(lambda: self._trusted(now), now)
        self.finishing.step(now)

    # -- what its machines report -----------------------------------------------------------------------------

    def _arrived(self, came: Arrived, now: float) -> None:
        self._holder.arrived(came, now)
        self._attachment.let_in(self.model)

    def _replaced(self, came: Arrived, reason: Reason, duration: float) -> None:
        self._holder.replaced(came, duration)
        if reason is Reason.IDLE:
            self.moments.outdated()

    def _rested(self) -> None:
        self._transfers.source.forget()

    def _take_over(self) -> None:
        self._attachment.found()

    def _exchange_began(self) -> None:
        self._transfers.reunion.began()

    def _paced(self) -> None:
        self.averaging.paced()

    def _exchange_ended(self, chunks: int, duration: float, distance: float, now: float) -> None:
        if chunks:
            self.rounds.mixed()
            self._transfers.mixed(now)
            self.pacing.mixed(duration, distance)
        else:
            self.pacing.in_vain()

    # -- what it is -------------------------------------------------------------------------------------------

    @property
    def model(self) -> Model | None:
        """The network's model without its vectors; None until this peer has it."""
        return self._holder.model

    @property
    def ready(self) -> bool:
        """The network's model is here."""
        return self._holder.model is not None

    @property
    def whole(self) -> bool:
        """The model is here, and no other one replaces it right now."""
        return self.ready and not self.resyncing

    @property
    def founds(self) -> bool:
        """This peer gives the network its model, or has given it."""
        return self._transfers.bootstrap.founder

    @property
    def resumes(self) -> Held | None:
        """The progress of this host's newest checkpoint, until the model is here."""
        return self._transfers.bootstrap.held

    @property
    def resyncing(self) -> str:
        """Why this peer fetches the network's model anew right now: a `Reason`, or ""."""
        return self._transfers.reunion.reason or ""

    @property
    def fetched_in(self) -> int:
        """Steps of the network's clock that the last fetch of the model took."""
        return self._age.transfer

    @property
    def apart(self) -> list[bytes]:
        """Live members that nothing is exchanged with, because they trained apart for too long."""
        return self._transfers.reunion.present()

    @property
    def clock(self) -> int:
        """Steps of the network's clock, as far as this peer knows."""
        return self.contribution.clock

    @property
    def state_clock(self) -> int:
        """The network's clock when the model was current: that may be long ago, also if it was old when it came here.

        It falls only if another model replaces this one. All peers that finish together have the same.
        """
        if self.finishing.counts is not None:
            return self.finishing.counts.clock
        return self._age.current(self.clock)

    def _current_model(self) -> Model | None:
        if self.model is None:
            return None
        return replace(self.model, clock=self.clock - self._age.at(self.clock), rounds=self.rounds.rounds)

    def _trusted(self, now: float) -> list[bytes]:
        """Members that are alive, within reach and not set aside."""
        live = [member.id for member in self._membership.alive() if self._membership.reaches(member.id)]
        return [peer for peer in live if not self._strikes.shuns(peer, now)]
