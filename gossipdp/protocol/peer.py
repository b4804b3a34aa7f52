"""One peer: membership, a strategy, state transfer, rounds and progress behind one set of methods.

A driver feeds one input at a time (`receive`, `handle_timer`, `job_done`, a command). It then drains
`messages_to_send`, `next_event` and `next_job`, and asks `timer` (architecture section 4). No socket, clock, thread or
vector is used here. The same inputs and the same random source give the same outputs, byte for byte. A remote's fault
is an event, never an exception.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from random import Random

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol import jobs
from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.config import PeerConfig
from gossipdp.protocol.data.leasing import Sharding
from gossipdp.protocol.events import (
    Event,
    Left,
    MemberChanged,
    MessageDropped,
    RoundSettled,
    SnapshotTaken,
    StateReady,
    StateRenewed,
    TookOver,
)
from gossipdp.protocol.membership.membership import Membership, MembershipMessage
from gossipdp.protocol.membership.progress import LARGEST, ProgressBoard
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Envelope, Outputs
from gossipdp.protocol.partition.reasons import Reason
from gossipdp.protocol.partition.reunion import NEVER, Reunion
from gossipdp.protocol.rounds.attachment import Attaching
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
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Coverage, Lineage, Member, Offer, Standing, State, StateRequest

__all__ = ["Peer", "PeerConfig"]


class Peer:
    """Args:

    me: this peer's member record; its incarnation is new with every start.
    sign: Ed25519 signature of this peer over some bytes; verify(peer id, data, signature).
    admits: whom the operator lets this peer deal with; no link is needed to hear of the others.
    """

    def __init__(
        self,
        config: PeerConfig,
        me: Member,
        *,
        random: Random,
        sign: Callable[[bytes], bytes],
        verify: Callable[[bytes, bytes, bytes], bool],
        now: float,
        admits: Callable[[bytes], bool] = lambda peer: True,
    ) -> None:
        self.config, self.id = config, me.id
        self.strikes = Strikes(config.quarantine, me.id, self._akin, admits)
        self._outputs = Outputs(self.strikes.observe)
        self._member_events: deque[Event] = deque()
        """events of membership that the other machines have not seen yet"""
        self._random = random
        signer = Signer(sign, verify)
        self.progress = ProgressBoard(me.id, lives=self._lives, sign=signer.sign_progress)
        self._speed = Speed(self._speeds)
        self.membership = Membership(
            config.membership,
            me,
            random=random,
            outputs=self._outputs,
            emit=self._member_events.append,
            now=now,
            progress=self.progress,
            signer=signer,
            speed=lambda: self._speed.own,
        )
        self.pacing = Pacing(config.pacing, self._outputs, self._speed, clock=lambda: self.clock, changed=self._paced)
        self.strategy = STRATEGIES[type(config.strategy)](config.strategy, self._surroundings(sign, verify, now))
        self._exact = config.strategy.exact
        self.sharding = Sharding(
            self.membership, incarnation=me.incarnation, random=random, outputs=self._outputs, now=now
        )
        self.rounds = Rounds(self._outputs, self.strategy.steps)
        self._source = Source(config.transfer, self._outputs, sign, self.strategy.shared, incarnation=me.incarnation)
        self.moments = MomentsHolder(
            config.transfer,
            self._outputs,
            sign=sign,
            verify=verify,
            random=random,
            incarnation=me.incarnation,
            enabled=config.moments,
        )
        self._attaching = Attaching(
            self.rounds,
            self.moments,
            self._outputs,
            config.most_chunk,
            founds=lambda: self._origin.founder,
            held=lambda: not self.whole or self._outdated,
            keeps=self._keeps,
            kept=self._kept,
        )
        self._origin = Bootstrap(
            self.membership,
            partial(self._joiner, verify),
            random=random,
            outputs=self._outputs,
            resume_after=config.resume_after,
            tolerance=2 * config.every,
            exact=self._exact,
            adopt=self._has_model,
            take_over=self._attaching.found,
        )
        self._standby = Standby(
            clock=lambda: self.clock,
            every=lambda: WARMUP_EVERY if self.warming_up else config.every,
            behind=lambda: self._source.behind,
            waits=lambda: self._attaching.waits,
            begins=lambda: self.rounds.open,
            givers=self._givers,
        )
        self._reunion = Reunion(
            self.membership,
            self.progress,
            lambda newer_than: self._joiner(verify, resync=True, newer_than=newer_than),
            random=random,
            outputs=self._outputs,
            apart_rounds=config.apart_rounds,
            every=NEVER if self._exact else config.every,
            me=lambda: self.pacing.own(self._clock),
            hold=self.strategy.hold,
            done=self._resynced,
            # Where all apply the same increments, an idle peer is as far as the others.
            standby=None if self._exact else self._standby,
        )
        self._remembered: list[Member] = []
        self._took = ""
        self._own = False
        """the model is this peer's own, from before its start"""
        self.model: Model | None = None
        self._left = False
        self._clock = self._steps = self._samples = self._rounds_before = 0
        self._unsettled = 0
        """the snapshot whose exchanges training waits for"""
        self._leaving_at: float | None = None
        self._due = math.inf
        """when `handle_timer` wanted to be called next, when last asked"""

    def _surroundings(
        self, sign: Callable[[bytes], bytes], verify: Callable[[bytes, bytes, bytes], bool], now: float
    ) -> Surroundings:
        """What the strategy may read of this peer and report to it. Machines built later are read when asked for."""
        return Surroundings(
            membership=self.membership,
            progress=self.progress,
            outputs=self._outputs,
            pacing=self.pacing,
            random=self._random,
            now=now,
            sign=sign,
            verify=verify,
            settings=self.config.settings,
            keys=self.config.keys,
            sync=self.config.sync,
            shuns=self.strikes.shuns,
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
        verify: Callable[[bytes, bytes, bytes], bool],
        *,
        resync: bool = False,
        newer_than: int = -1,
        fetched: Callable[[float], None] = lambda now: None,
    ) -> Joiner:
        """The fetching side of one transfer of the model."""
        return Joiner(
            replace(self.config.transfer, exact=self._exact),
            self._outputs,
            verify,
            self._random,
            settings=self.config.settings,
            keys=self.config.keys,
            resync=resync,
            shuns=self.strikes.shuns,
            clock=self.progress.clock,
            newer_than=newer_than,
            came=self.strategy.chunk_received,
            fetched=fetched,
        )

    # -- commands ---------------------------------------------------------------------------------------------

    def found(self) -> None:
        """This peer gives the network its model: the first training process's."""
        self._origin.found()

    def join(
        self, addresses: Sequence[str], now: float, *, remembered: Sequence[Member] = (), resume: Held | None = None
    ) -> None:
        """Look for the network at `addresses` and at the members remembered from before, for ever.

        `resume` tells what this host's newest checkpoint is of: if no member has the model, and none alive holds a
        later checkpoint, this peer goes on from there, `config.resume_after` from now at the latest.
        """
        self._remembered = list(remembered)
        self._origin.join(now, remembered, resume, alone=not addresses)
        self.membership.remember(remembered)
        self.membership.join(addresses, now)
        self._step(now)

    def attach(
        self,
        schema: bytes,
        now: float,
        *,
        carried: Carried = NOTHING,
        moments: bool = False,
        live: Live | None = None,
    ) -> None:
        """A training process has written its model to shared memory and waits for the one to start from.

        carried: what goes with it. moments: it begins with an empty optimizer, and has a use for `self.moments.held`;
            live: it trained with an earlier daemon of this peer, and its parameters may be the newest that there are.
        """
        self._standby.arrives()
        self._attaching.came(schema, self.model, carried, moments=moments and self.config.moments, live=live)
        if self.model is None and not self._origin.founder:
            self._origin.lives(live)
        self._step(now)

    def detach(self, now: float) -> None:
        """The training process is gone."""
        self._attaching.gone()
        self._origin.lives(None)
        self._unsettled = 0
        self.pacing.detached()
        self.rounds.detach()
        self._step(now)

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
    ) -> None:
        """The training process has put a snapshot into x, so many steps and samples after the one before.

        state: what is not exchanged, as of this snapshot (`carrying`); None: as it was told before.
        """
        self._wake(now)
        self.pacing.submitted(steps if session == self.rounds.session else 0, now)
        clock = self._clock + steps
        accepted = partial(self._accepted, clock, steps, samples, state)
        if not self.rounds.submit(session, snapshot, applied, self.pacing.outer(), clock, accepted):
            self._outputs.emit(SnapshotTaken(snapshot, "session"))
            return
        self._unsettled = snapshot if self.config.sync else 0
        self._step(now)

    def _accepted(self, clock: int, steps: int, samples: int, state: Buffer | None) -> None:
        """A snapshot is good: what was done since the one before counts."""
        if state is not None and self.model is not None:
            self.model = replace(self.model, carried=replace(self.model.carried, state=state))
        before = self.clock
        self._clock = max(self._clock, clock)
        self._standby.stepped(self.clock - before)
        self._steps += steps
        self._samples += samples
        self._report()
        self.strategy.submitted(samples, steps, self.clock)

    def slot_applied(self, session: int, slot: int, now: float) -> None:
        """The training process has added a sealed slot to x."""
        self.rounds.slot_applied(session, slot)
        self._step(now)

    def leave(self, now: float) -> None:
        """Finish the chunks in flight, say goodbye, and emit Left."""
        if self._leaving_at is None:
            self._leaving_at = now + self.config.leave_within
            self._reunion.stop(now)
            self.strategy.stop(now)
            self._step(now)

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, frames: Sequence[Buffer], source: bytes, now: float) -> None:
        """`frames` came from the peer whose id the transport has verified as `source`."""
        self._wake(now)
        try:
            message, buffers = wire.decode(frames)
        except RemoteProtocolError as error:
            return self._outputs.emit(MessageDropped(source, str(error)))
        if not isinstance(message, MembershipMessage):
            self.membership.contact(source, now)
        match message:
            case _ if isinstance(message, MembershipMessage):
                self.membership.receive(message, source, now)
            case _ if isinstance(message, Asking):
                model = self._current_model() if self._reunion.gives(message, source) else None
                self._source.receive(message, source, model, now)
                if isinstance(message, StateRequest):
                    self._reunion.asked(source, now, trusted=not self.strikes.shuns(source, now))
            case _ if isinstance(message, Giving) and self.model is None:
                self._origin.receive(message, buffers, source, now)
            case _ if isinstance(message, Giving):
                self._reunion.follower.receive(message, buffers, source, now)
            case Lineage():
                self._reunion.receive(message, source, now)
            case Coverage():
                self.sharding.receive(message, buffers, source, now)
            case _ if isinstance(message, MomentsMessage):
                self.moments.receive(message, buffers, source, self.model.schema if self.model else None, now)
            case Standing():
                model = None if self.model is None else replace(self.model, clock=self.state_clock)
                self._origin.standing(message, source, model, now, spare=self._spare)
            case _:
                if self.model is None and isinstance(message, Offer):
                    self._origin.offered(source, now)
                size = sum(memoryview(frame).nbytes for frame in frames)
                self.strategy.receive(message, buffers, source, size, now)
        self._step(now)

    def link_down(self, peer: bytes, reason: str, now: float) -> None:
        """The transport has lost its link to `peer`."""
        self.membership.link_down(peer, reason, now)
        self.strategy.link_down(peer, now)
        self._step(now)

    def advertise(self, address: str, now: float) -> None:
        """It has turned out that others can dial this peer at `address`, or, at "", that nobody can."""
        self.membership.advertise(address, now)
        self._step(now)

    def job_done(self, job: jobs.Job[object], result: object, now: float) -> None:
        """A job asked for has been carried out; results come in the order of the jobs."""
        self._wake(now)
        match job:
            case _ if isinstance(job, jobs.OfExchange | jobs.OfIncrement):
                self.strategy.job_done(job, result, now)
            case jobs.Freeze():
                model = self._current_model()
                if model is not None:
                    self._source.frozen(job, job.typed(result), model)
            case jobs.HashPiece():
                model = self._current_model()
                if model is not None:
                    self._source.hashed(job, job.typed(result), model)
            case jobs.CheckPiece() if self.model is None:
                self._origin.adopted(job, job.typed(result), now)
            case jobs.CheckPiece():
                self._reunion.follower.checked(job, job.typed(result), now)
            case jobs.Sample():
                model = self._current_model()
                if model is not None:
                    self._source.sampled(job.typed(result), model)
            case jobs.Adopt():
                self._origin.adopted(job, job.typed(result), now)
            case jobs.Compare() if self.model is None:
                self._origin.compared(job.typed(result), now)
            case jobs.Compare():
                self._reunion.follower.compared(job.typed(result), now)
            case jobs.Resync():
                self._reunion.follower.resynced(job, job.typed(result), now)
            case jobs.CheckMoments():
                self.moments.checked(job, job.typed(result), now)
            case jobs.Keep():
                self._reunion.follower.kept()
            case jobs.Restore():
                self._origin.restored(job.typed(result), now)
            case _:
                done = self.rounds.job_done(job, result)
                if done is Done.FOUNDING and self.model is None:
                    self._founded(now)
                elif isinstance(job, jobs.Found):
                    if self._attaching.taking is not None and not job.typed(result).finite:
                        self._attaching.unusable()
                        if self._origin.taking is not None:
                            self._origin.taken_over(now, finite=False)
                    self._attaching.let_in(self.model)
                if done is Done.ROUND:
                    self.pacing.round_done(self.rounds.rounds, self.rounds.movement, self.rounds.open, now)
                    self.strategy.round_done(now)
        self._step(now)

    def timer(self) -> float | None:
        """When `handle_timer` wants to be called next, or None."""
        times = [self.membership.timer(), self.strategy.timer(), self._source.timer(), self._origin.timer()]
        times += [self._reunion.timer(), self.moments.timer(), self.pacing.timer()]
        if not self._left:
            times += [self._leaving_at, self.sharding.timer()]
        due = min([time for time in times if time is not None], default=None)
        self._due = math.inf if due is None else due
        return due

    def handle_timer(self, now: float) -> None:
        self._wake(now)
        self.membership.handle_timer(now)
        self.strategy.handle_timer(now)
        self._source.handle_timer(now)
        self._origin.handle_timer(now)
        self._reunion.handle_timer(now)
        self.moments.handle_timer(now)
        if not self._left:
            self.sharding.handle_timer(now)
        self._step(now)

    # -- outputs ----------------------------------------------------------------------------------------------

    def messages_to_send(self) -> Iterator[Envelope]:
        while self._outputs.messages:
            envelope = self._outputs.messages.popleft()
            if envelope.to and not envelope.address:
                envelope = envelope._replace(address=self.membership.address_of(envelope.to))
            yield envelope

    def next_job(self) -> jobs.Job[object] | None:
        return self._outputs.jobs.popleft() if self._outputs.jobs else None

    def next_event(self) -> Event | None:
        return self._outputs.events.popleft() if self._outputs.events else None

    # -- inside -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """This peer holds the network's model."""
        return self.model is not None

    @property
    def whole(self) -> bool:
        """And it is one: not half of what this peer gives up, and half of what it follows."""
        return self.ready and not self._reunion.reason

    @property
    def founds(self) -> bool:
        """This peer is to give the network its model, or has."""
        return self._origin.founder

    @property
    def resumes(self) -> Held | None:
        """What it holds, while it is not ready and has come back with a checkpoint."""
        return self._origin.held

    @property
    def resyncing(self) -> str:
        """Why this peer fetches the network's model anew right now: apart, lag, diverged, or ""."""
        return self._reunion.reason or ""

    @property
    def fetched_in(self) -> int:
        """Steps of the network's clock that the last fetch of the model took."""
        return self._standby.transfer

    @property
    def leaving(self) -> bool:
        """It has been told to leave."""
        return self._leaving_at is not None

    @property
    def apart(self) -> list[bytes]:
        """Members who are there and trained without this peer for so long that nothing is exchanged with them yet."""
        return self._reunion.present()

    @property
    def clock(self) -> int:
        """Steps of the network's clock, as far as this peer knows."""
        return min(max(self._clock, self.progress.clock()), LARGEST)

    @property
    def state_clock(self) -> int:
        """The network's clock when the model here was current: without a training process that may be long ago."""
        return self._standby.clock if self._spare else self.clock

    @property
    def every(self) -> int:
        """H as it stands."""
        return self.pacing.every

    @property
    def steps(self) -> int:
        """Optimizer steps of this peer's submitted snapshots since it started."""
        return self._steps

    @property
    def samples(self) -> int:
        """Samples of the same."""
        return self._samples

    @property
    def warming_up(self) -> bool:
        return self.pacing.warming_up

    def _wake(self, now: float) -> None:
        """Before any input that may be the first after this peer did not run for long, as when its host was suspended:
        such time says nothing of others, nor of its own pace."""
        late = now - self._due
        if late > self.config.membership.probe_interval:
            self._due = math.inf
            self.membership.slept(late)
            self.strategy.slept(late)
            self.pacing.slept(now)

    def _step(self, now: float) -> None:
        """What follows from news, whichever input brought it."""
        struck = self.strikes.judge(now)
        for event in struck:
            self._outputs.emit(event)
        if any(event.pause for event in struck):
            self.strategy.reputation_changed(now)
        if self._took:
            missing = self._remembered if self._own else []
            self._reunion.ready(self._origin.giver, missing, now)
            self._took = ""
        while self._member_events:
            news = self._member_events.popleft()
            self._outputs.emit(news)
            if isinstance(news, MemberChanged):
                self.strategy.member_changed(news.member, now)
                self._origin.member_changed(news.member, now)
                self._reunion.member_changed(news.member, now)
                if news.member.state in (State.FAILED, State.LEFT):
                    self.moments.gone(news.member.id, now)
                self.sharding.member_changed(now)
        self._origin.step(now)
        if self.rounds.trains == self._standby.idle:
            self._source.aged(self._standby.trains(self.rounds.trains))
        self.pacing.watch(self.rounds.open, now)
        self.strategy.advance(self.clock, now)
        self._reunion.step(now, self.strategy.strays)
        if self.model is not None:
            self._attaching.let_in(self.model)
        self._attaching.seek_moments(self.model, partial(self._trusted, now), self._origin.giver, now)
        if self.rounds.held != bool(self._reunion.reason):
            self.rounds.hold(bool(self._reunion.reason))
            if self.rounds.held:
                self._source.forget()
            else:
                self.rounds.mixed()
                self._attaching.let_in(self.model)
        if self._unsettled and self.rounds.handed_out and self.strategy.satisfied:
            self._outputs.emit(RoundSettled(self._unsettled))
            self._unsettled = 0
        leaving = self._leaving_at is not None and not self._left
        if leaving and (self.strategy.at_rest or now >= (self._leaving_at or now)):
            self._left = True
            self.membership.leave(now)
            self._outputs.emit(Left())

    def _current_model(self) -> Model | None:
        if self.model is None:
            return None
        drift = self._standby.drift if self._spare else 0
        return replace(self.model, clock=self.clock - drift, rounds=self.rounds.rounds)

    @property
    def _spare(self) -> bool:
        """There is no training process that has made a round, and the model does not change."""
        return self._standby.idle and not self._exact

    @property
    def _outdated(self) -> bool:
        """The model is to be fetched anew before a training process begins with it."""
        return self._spare and self._standby.reason is not None

    def _akin(self, peer: bytes) -> bool:
        """Does that member run this peer's own software?"""
        other, me = self.membership.members.get(peer), self.membership.me
        return other is not None and (other.version, other.software) == (me.version, me.software)

    def _lives(self, peer: bytes) -> bool:
        """Is that member there?"""
        member = self.membership.members.get(peer)
        return member is not None and member.state in (State.ALIVE, State.SUSPECT)

    def _speeds(self, lasting: float, now: float) -> list[float]:
        """Steps a second of the members that are there and train, or have paused for less than `lasting` seconds, and
        are not set aside."""
        speeds = self.membership.speeds(lasting, now)
        return [speed for peer, speed in speeds.items() if not self.strikes.shuns(peer, now)]

    def _trusted(self, now: float) -> list[bytes]:
        """Who is alive, within reach and not set aside."""
        live = [member.id for member in self.membership.alive() if self.membership.reaches(member.id)]
        return [peer for peer in live if not self.strikes.shuns(peer, now)]

    def _givers(self) -> list[bytes]:
        """Members to fetch the model from: those that train, if any is known to."""
        apart, membership = self._reunion.apart, self.membership
        live = [member.id for member in membership.alive() if member.id not in apart and membership.reaches(member.id)]
        training = set(membership.training())
        return [peer for peer in live if peer in training] or live

    # -- the model --------------------------------------------------------------------------------------------

    def _founded(self, now: float) -> None:
        """The model is that of the training process: the network's first, or that of a live one."""
        live, claim, held = self._attaching.taking, self._origin.taking, self._origin.held
        if live is not None:
            self._outputs.emit(TookOver(live.clock, live.steps, None if held is None else held.clock))
            self.progress.recover(live.steps, live.samples)
        if claim is not None:
            self._origin.taken_over(now, finite=True)
        origin, clock = "founded" if claim is None else "taken over", 0 if live is None else live.clock
        rounds = 0
        if claim is not None:
            clock, rounds = claim
        self._has_model(self._attaching.founding, origin, clock, rounds)

    def _keeps(self, live: Live) -> bool:
        """May a live training process keep its parameters? A model is here: this peer's checkpoint, or another's."""
        if not self._exact:
            return live.clock + 2 * self.config.every >= self.clock
        # Replicas are the same bits: what it has done since the checkpoint may be added while nothing else was.
        return self._own and self.pacing.fresh and live.clock >= self.clock

    def _kept(self, live: Live, carried: Carried) -> None:
        """A live training process's parameters become the model."""
        self._outputs.emit(TookOver(live.clock, live.steps, None if self.model is None else self.clock))
        self.progress.recover(live.steps, live.samples)
        self._accepted(live.clock, 0, 0, carried.state)
        self._source.took(0)
        self._standby.kept()
        self.strategy.submitted(live.samples, live.steps, self.clock)

    def _has_model(self, schema_bytes: bytes, origin: str, clock: int, rounds: int) -> None:
        ours = origin in ("founded", "taken over")
        carried = self._attaching.founding_carried if ours else self._origin.carried
        settings, most = self.config.settings, self.config.most_chunk
        self.model = Model.of(schema_bytes, settings, most, clock, rounds, carried)
        schema = self.model.schema
        self.rounds.allocate(self.model.chunks, schema.trainable, schema.averaged(self.config.most_chunk))
        self.rounds.resume(rounds)
        # Parts of the model may be older than what its last source has.
        self._clock = max(self._clock, clock, self._origin.begun, self.progress.clock())
        self._source.took(self._clock - clock)
        self._standby.came(self._clock - max(clock, self._origin.begun))
        self._rounds_before = rounds
        self.strategy.ready(self.model, self._origin.summary if origin == "received" else None, self._clock)
        self.pacing.began(rounds, fresh=origin != "founded")
        self._report()
        self._took, self._own = origin, origin in ("restored", "taken over")
        self._outputs.emit(StateReady(origin, self._clock))
        self.pacing.set()
        self._attaching.let_in(self.model)

    def _resynced(self, clock: int, rounds: int, duration: float) -> None:
        """The model is another's now, `clock` steps and `rounds` old."""
        self._own = False
        self._clock = max(self._clock, clock, self._reunion.follower.begun)
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
        ahead = max(0, rounds - self.rounds.rounds)
        self.rounds.resume(self.rounds.rounds + ahead)
        self._rounds_before += ahead
        self.pacing.resynced(self.rounds.rounds, duration)
        self._report()

    # -- what the strategy and the pacing report --------------------------------------------------------------

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

    def _report(self) -> None:
        rounds = self.rounds.rounds - self._rounds_before
        self.progress.report(clock=self._clock, steps=self._steps, samples=self._samples, rounds=rounds)
