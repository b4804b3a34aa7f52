"""The replica of one peer: its model, and everything that changes it.

Rounds of the training process, exchanges of the strategy and transfers of the model meet here. `peer` owns this object
and supplies the members (`membership`) and their standing (`strikes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

from gossipdp.protocol import jobs
from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.contribution import Contribution
from gossipdp.protocol.events import RoundSettled, SnapshotTaken, StateReady, StateRenewed, TookOver
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.partition.reasons import Reason
from gossipdp.protocol.partition.reunion import NEVER, Reunion
from gossipdp.protocol.rounds.attachment import Attachment
from gossipdp.protocol.rounds.pacing import WARMUP_EVERY, Pacing
from gossipdp.protocol.rounds.rounds import Done, Rounds
from gossipdp.protocol.rounds.speed import Speed
from gossipdp.protocol.rounds.standby import Standby
from gossipdp.protocol.strategies import STRATEGIES
from gossipdp.protocol.strategy import Surroundings
from gossipdp.protocol.strikes import Strikes
from gossipdp.protocol.transfer.bootstrap import Bootstrap
from gossipdp.protocol.transfer.claims import Held, Live
from gossipdp.protocol.transfer.joiner import Joiner
from gossipdp.protocol.transfer.moments import MomentsMessage
from gossipdp.protocol.transfer.moments_holder import MomentsHolder
from gossipdp.protocol.transfer.source import Asking, Giving, Source
from gossipdp.protocol.transfers import TransferJob, Transfers
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lineage, Member, Message, Offer, Standing, State

__all__ = ["Replica"]


class Replica:
    """The model of one peer, with the machines that change it.

    Args:
        strikes: tells which members are set aside.
        speed: this peer's speed relative to the others'.
        sign: as in `Peer`.
        verify: as in `Peer`.
        now: seconds.
    """

    def __init__(
        self,
        config: PeerConfig,
        membership: Membership,
        progress: ProgressBoard,
        strikes: Strikes,
        outputs: Outputs,
        speed: Speed,
        *,
        random: Random,
        sign: Callable[[bytes], bytes],
        verify: Callable[[bytes, bytes, bytes], bool],
        now: float,
    ) -> None:
        self._config, self._membership, self._progress = config, membership, progress
        self._strikes, self._outputs, self._random = strikes, outputs, random
        self._sign, self._verify, self._exact = sign, verify, config.strategy.exact
        incarnation = membership.me.incarnation
        self.contribution = Contribution(progress)
        self.pacing = Pacing(config.pacing, outputs, speed, clock=lambda: self.clock, changed=self._paced)
        self.strategy = STRATEGIES[type(config.strategy)](config.strategy, self._surroundings(now))
        self.rounds = Rounds(outputs, self.strategy.steps)
        self._source = Source(config.transfer, outputs, sign, self.strategy.shared, incarnation=incarnation)
        self.moments = MomentsHolder(
            config.transfer,
            outputs,
            sign=sign,
            verify=verify,
            random=random,
            incarnation=incarnation,
            enabled=config.moments,
        )
        self._attachment = self._new_attachment()
        self._bootstrap = self._new_bootstrap()
        self._standby = self._new_standby()
        self._reunion = self._new_reunion()
        self._transfers = Transfers(self._source, self._bootstrap, self._reunion)
        self.model: Model | None = None
        self._remembered: list[Member] = []
        self._arrived = False
        """a model has come that the reunion does not know of yet"""
        self._own = False
        """the model is this peer's own, from before its start"""
        self._unsettled = 0
        """the snapshot whose exchanges training waits for"""

    # -- construction -----------------------------------------------------------------------------------------

    def _new_attachment(self) -> Attachment:
        return Attachment(
            self.rounds,
            self.moments,
            self._outputs,
            self._config.most_chunk,
            founds=lambda: self._bootstrap.founder,
            held=lambda: not self.whole or self._outdated,
            keeps=self._keeps,
            kept=self._kept,
        )

    def _new_bootstrap(self) -> Bootstrap:
        return Bootstrap(
            self._membership,
            self._joiner,
            random=self._random,
            outputs=self._outputs,
            resume_after=self._config.resume_after,
            tolerance=2 * self._config.every,
            exact=self._exact,
            adopt=self._has_model,
            take_over=self._attachment.found,
        )

    def _new_standby(self) -> Standby:
        return Standby(
            clock=lambda: self.clock,
            every=lambda: WARMUP_EVERY if self.pacing.warming_up else self._config.every,
            behind=lambda: self._source.behind,
            waits=lambda: self._attachment.waits,
            begins=lambda: self.rounds.open,
            givers=self._givers,
        )

    def _new_reunion(self) -> Reunion:
        return Reunion(
            self._membership,
            self._progress,
            lambda newer_than: self._joiner(resync=True, newer_than=newer_than),
            random=self._random,
            outputs=self._outputs,
            apart_rounds=self._config.apart_rounds,
            every=NEVER if self._exact else self._config.every,
            me=lambda: self.pacing.own(self.contribution.own_clock),
            hold=self.strategy.hold,
            done=self._resynced,
            # Where all peers apply the same increments, an idle peer is as far as the others.
            standby=None if self._exact else self._standby,
        )

    def _surroundings(self, now: float) -> Surroundings:
        """What the strategy may read of this peer and report to it. Machines built later are read when asked for."""
        return Surroundings(
            membership=self._membership,
            progress=self._progress,
            outputs=self._outputs,
            pacing=self.pacing,
            random=self._random,
            now=now,
            sign=self._sign,
            verify=self._verify,
            settings=self._config.settings,
            keys=self._config.keys,
            sync=self._config.sync,
            shuns=self._strikes.shuns,
            apart=lambda: self._reunion.apart,
            trains=lambda: self.rounds.trains,
            attached=lambda: self.rounds.open,
            drift=lambda: self._standby.drift,
            began=self._exchange_began,
            ended=self._exchange_ended,
            applied=self._increment_applied,
            refounded=self._refounded,
        )

    def _joiner(
        self,
        *,
        resync: bool = False,
        newer_than: int = -1,
        fetched: Callable[[float], None] = lambda now: None,
    ) -> Joiner:
        """The fetching side of one transfer of the model."""
        return Joiner(
            replace(self._config.transfer, exact=self._exact),
            self._outputs,
            self._verify,
            self._random,
            settings=self._config.settings,
            keys=self._config.keys,
            resync=resync,
            shuns=self._strikes.shuns,
            clock=self._progress.clock,
            newer_than=newer_than,
            came=self.strategy.chunk_received,
            fetched=fetched,
        )

    # -- commands: see `Peer` ---------------------------------------------------------------------------------

    def found(self) -> None:
        """This peer gives the network the first training process's model."""
        self._bootstrap.found()

    def join(self, remembered: Sequence[Member], resume: Held | None, now: float, *, alone: bool) -> None:
        """Look for the network's model. alone: no address is known."""
        self._remembered = list(remembered)
        self._bootstrap.join(now, remembered, resume, alone=alone)

    def attach(
        self,
        schema: bytes,
        now: float,
        *,
        carried: Carried = NOTHING,
        moments: bool = False,
        live: Live | None = None,
    ) -> None:
        """A training process has written its model to shared memory and waits for one to start from.

        Args:
            carried: what goes with its model.
            moments: it begins with an empty optimizer, and can use `self.moments.held`.
            live: it trained with an earlier daemon of this peer, and its parameters may be the newest of all.
        """
        self._standby.arrives()
        self._attachment.came(schema, self.model, carried, moments=moments and self._config.moments, live=live)
        if self.model is None and not self._bootstrap.founder:
            self._bootstrap.lives(live)

    def detach(self, now: float) -> None:
        """The training process is gone."""
        self._attachment.gone()
        self._bootstrap.lives(None)
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
        now: float,
        *,
        state: Buffer | None = None,
    ) -> bool:
        """The training process has put a snapshot into x, `steps` and `samples` after the one before.

        Args:
            state: what is not exchanged, as of this snapshot (`carried_state`); None if it is unchanged.
        """
        self.pacing.submitted(steps if session == self.rounds.session else 0, now)
        clock = self.contribution.own_clock + steps
        accepted = partial(self._accepted, clock, steps, samples, state)
        if not self.rounds.submit(session, snapshot, applied, self.pacing.outer(), clock, accepted):
            self._outputs.emit(SnapshotTaken(snapshot, "session"))
            return False
        self._unsettled = snapshot if self._config.sync else 0
        return True

    def _accepted(self, clock: int, steps: int, samples: int, state: Buffer | None) -> None:
        """A snapshot is finite: the steps and samples since the one before count."""
        if state is not None and self.model is not None:
            self.model = replace(self.model, carried=replace(self.model.carried, state=state))
        self._standby.stepped(self.contribution.added(clock, steps, samples))
        self.contribution.report(self.rounds.rounds)
        self.strategy.submitted(samples, steps, self.clock)

    def stop(self, now: float) -> None:
        """This peer leaves. Begin no more exchanges or transfers."""
        self._reunion.stop(now)
        self.strategy.stop(now)

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, message: Message, buffers: list[Buffer], source: bytes, size: int, now: float) -> None:
        """A message about models or exchanges. size: bytes of all its frames."""
        match message:
            case _ if isinstance(message, Asking):
                trusted = not self._strikes.shuns(source, now)
                self._transfers.asked(message, source, self._current_model(), now, trusted=trusted)
            case _ if isinstance(message, Giving):
                self._transfers.given(message, buffers, source, now, ready=self.model is not None)
            case Lineage():
                self._reunion.receive(message, source, now)
            case _ if isinstance(message, MomentsMessage):
                self.moments.receive(message, buffers, source, self.model.schema if self.model else None, now)
            case Standing():
                model = None if self.model is None else replace(self.model, clock=self.state_clock)
                self._bootstrap.standing(message, source, model, now, spare=self._spare)
            case _:
                if self.model is None and isinstance(message, Offer):
                    self._bootstrap.offered(source, now)
                self.strategy.receive(message, buffers, source, size, now)

    def member_changed(self, member: Member, now: float) -> None:
        """Membership has news of `member`."""
        self.strategy.member_changed(member, now)
        self._bootstrap.member_changed(member, now)
        self._reunion.member_changed(member, now)
        if member.state in (State.FAILED, State.LEFT):
            self.moments.gone(member.id, now)

    def slept(self, seconds: float, now: float) -> None:
        """This peer did not run for `seconds`."""
        self.strategy.slept(seconds)
        self.pacing.slept(now)

    def timer(self) -> float | None:
        """When `handle_timer` wants to be called next, or None."""
        times = [self.strategy.timer(), self._source.timer(), self._bootstrap.timer()]
        times += [self._reunion.timer(), self.moments.timer(), self.pacing.timer()]
        return min([time for time in times if time is not None], default=None)

    def handle_timer(self, now: float) -> None:
        """The time that `timer` named has come."""
        self.strategy.handle_timer(now)
        self._source.handle_timer(now)
        self._bootstrap.handle_timer(now)
        self._reunion.handle_timer(now)
        self.moments.handle_timer(now)

    def job_done(self, job: jobs.Job[object], result: object, now: float) -> None:
        """The driver has carried out a job."""
        match job:
            case _ if isinstance(job, jobs.OfExchange | jobs.OfIncrement):
                self.strategy.job_done(job, result, now)
            case _ if isinstance(job, TransferJob):
                self._transfers.job_done(job, result, self._current_model(), now)
            case jobs.CheckMoments():
                self.moments.checked(job, job.typed(result), now)
            case _:
                self._round_job_done(job, result, now)

    def _round_job_done(self, job: jobs.Job[object], result: object, now: float) -> None:
        done = self.rounds.job_done(job, result)
        if done is Done.FOUNDING and self.model is None:
            self._founded(now)
        elif isinstance(job, jobs.Found):
            if self._attachment.taking is not None and not job.typed(result).finite:
                self._attachment.unusable()
                if self._bootstrap.taking is not None:
                    self._bootstrap.taken_over(now, finite=False)
            self._attachment.let_in(self.model)
        if done is Done.ROUND:
            self.pacing.round_done(self.rounds.rounds, self.rounds.movement, self.rounds.open, now)
            self.strategy.round_done(now)

    # -- after every input ------------------------------------------------------------------------------------

    def settle_arrival(self, now: float) -> None:
        """Tell the reunion that a model has arrived. Call before members' news, which it judges by the model."""
        if self._arrived:
            self._arrived = False
            self._reunion.ready(self._bootstrap.giver, self._remembered if self._own else [], now)

    def step(self, now: float) -> None:
        """Draw conclusions from what an input has changed."""
        self._bootstrap.step(now)
        if self.rounds.trains == self._standby.idle:
            self._source.aged(self._standby.trains(self.rounds.trains))
        self.pacing.watch(self.rounds.open, now)
        self.strategy.advance(self.clock, now)
        self._reunion.step(now, self.strategy.strays)
        if self.model is not None:
            self._attachment.let_in(self.model)
        self._attachment.seek_moments(self.model, partial(self._trusted, now), self._bootstrap.giver, now)
        if self.rounds.held != bool(self._reunion.reason):
            self.rounds.hold(bool(self._reunion.reason))
            if self.rounds.held:
                self._source.forget()
            else:
                self.rounds.mixed()
                self._attachment.let_in(self.model)
        if self._unsettled and self.rounds.handed_out and self.strategy.satisfied:
            self._outputs.emit(RoundSettled(self._unsettled))
            self._unsettled = 0

    # -- what it is -------------------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """The model is here, and no other one replaces it right now."""
        return self.model is not None and not self._reunion.reason

    @property
    def founds(self) -> bool:
        """This peer gives the network its model, or has given it."""
        return self._bootstrap.founder

    @property
    def resyncing(self) -> str:
        """Why this peer fetches the network's model anew right now: a `Reason`, or ""."""
        return self._reunion.reason or ""

    @property
    def fetched_in(self) -> int:
        """Steps of the network's clock that the last fetch of the model took."""
        return self._standby.transfer

    @property
    def apart(self) -> list[bytes]:
        """Live members that nothing is exchanged with, because they trained apart for too long."""
        return self._reunion.present()

    @property
    def clock(self) -> int:
        """Steps of the network's clock, as far as this peer knows."""
        return self.contribution.clock

    @property
    def state_clock(self) -> int:
        """The network's clock when the model was current. Without a training process that may be long ago."""
        return self._standby.clock if self._spare else self.clock

    def _current_model(self) -> Model | None:
        if self.model is None:
            return None
        drift = self._standby.drift if self._spare else 0
        return replace(self.model, clock=self.clock - drift, rounds=self.rounds.rounds)

    @property
    def _spare(self) -> bool:
        """No training process has made a round, and the model does not change."""
        return self._standby.idle and not self._exact

    @property
    def _outdated(self) -> bool:
        """The model is to be fetched anew before a training process begins with it."""
        return self._spare and self._standby.reason is not None

    def _trusted(self, now: float) -> list[bytes]:
        """Members that are alive, within reach and not set aside."""
        live = [member.id for member in self._membership.alive() if self._membership.reaches(member.id)]
        return [peer for peer in live if not self._strikes.shuns(peer, now)]

    def _givers(self) -> list[bytes]:
        """Members to fetch the model from: those that train, if any does."""
        apart, members = self._reunion.apart, self._membership
        live = [member.id for member in members.alive() if member.id not in apart and members.reaches(member.id)]
        training = set(members.training())
        return [peer for peer in live if peer in training] or live

    # -- the model --------------------------------------------------------------------------------------------

    def _founded(self, now: float) -> None:
        """The training process's model is now this peer's: the network's first, or that of a live process."""
        live, claim, held = self._attachment.taking, self._bootstrap.taking, self._bootstrap.held
        if live is not None:
            self._outputs.emit(TookOver(live.clock, live.steps, None if held is None else held.clock))
            self._progress.recover(live.steps, live.samples)
        if claim is not None:
            self._bootstrap.taken_over(now, finite=True)
        origin, clock = "founded" if claim is None else "taken over", 0 if live is None else live.clock
        rounds = 0
        if claim is not None:
            clock, rounds = claim
        self._has_model(self._attachment.founding, origin, clock, rounds)

    def _keeps(self, live: Live) -> bool:
        """Whether a live training process may keep its parameters, now that a model is here."""
        if not self._exact:
            return live.clock + 2 * self._config.every >= self.clock
        # All replicas hold the same bits. Its steps since the checkpoint may be added only if nothing else was.
        return self._own and self.pacing.fresh and live.clock >= self.clock

    def _kept(self, live: Live, carried: Carried) -> None:
        """The parameters of a live training process become the model."""
        self._outputs.emit(TookOver(live.clock, live.steps, None if self.model is None else self.clock))
        self._progress.recover(live.steps, live.samples)
        self._accepted(live.clock, 0, 0, carried.state)
        self._source.took(0)
        self._standby.kept()
        self.strategy.submitted(live.samples, live.steps, self.clock)

    def _has_model(self, schema_bytes: bytes, origin: str, clock: int, rounds: int) -> None:
        """A model is here for the first time: "founded", "taken over", "restored" or "received"."""
        ours = origin in ("founded", "taken over")
        carried = self._attachment.founding_carried if ours else self._bootstrap.carried
        settings, most = self._config.settings, self._config.most_chunk
        self.model = Model.of(schema_bytes, settings, most, clock, rounds, carried)
        schema = self.model.schema
        self.rounds.allocate(self.model.chunks, schema.trainable, schema.averaged(self._config.most_chunk))
        self.rounds.resume(rounds)
        # Some parts of the model may be older than the last source's.
        self.contribution.came(max(clock, self._bootstrap.begun), rounds)
        at = self.contribution.own_clock
        self._source.took(at - clock)
        self._standby.came(at - max(clock, self._bootstrap.begun))
        self.strategy.ready(self.model, self._bootstrap.summary if origin == "received" else None, at)
        self.pacing.began(rounds, fresh=origin != "founded")
        self.contribution.report(self.rounds.rounds)
        self._arrived, self._own = True, origin in ("restored", "taken over")
        self._outputs.emit(StateReady(origin, at))
        self.pacing.set()
        self._attachment.let_in(self.model)

    def _resynced(self, clock: int, rounds: int, duration: float) -> None:
        """The model is another peer's now, `clock` steps and `rounds` old."""
        self._own = False
        ahead = max(0, rounds - self.rounds.rounds)
        self.contribution.replaced(max(clock, self._reunion.follower.begun), ahead)
        if self.model is not None:
            self.strategy.adopt(self.model, self._reunion.follower.summary, self.clock)
            self.model = replace(self.model, carried=self._reunion.follower.carried)
            if memoryview(self.model.carried.state).nbytes:
                self._outputs.emit(StateRenewed())
        self._source.took(self.clock - clock)
        self._source.forget()
        self._standby.came(self.clock - max(clock, self._reunion.follower.begun))
        if self._reunion.reason is Reason.IDLE:
            self.moments.outdated()
        self.rounds.resume(self.rounds.rounds + ahead)
        self.pacing.resynced(self.rounds.rounds, duration)
        self.contribution.report(self.rounds.rounds)

    # -- what the strategy and the pacing report ---------------------------------------------------------------

    def _paced(self) -> None:
        self.strategy.paced()

    def _exchange_began(self) -> None:
        self._reunion.began()

    def _refounded(self) -> None:
        self._source.forget()

    def _exchange_ended(self, chunks: int, duration: float, distance: float, now: float) -> None:
        if chunks:
            self.rounds.mixed()
            self._source.mixed()
            self._reunion.mixed(now)
            self.pacing.mixed(duration, distance)
        else:
            self.pacing.in_vain()

    def _increment_applied(self) -> None:
        self.rounds.mixed()
        self.pacing.applied()
