"""One peer, whole: membership, averaging, state transfer, rounds and progress behind one set of methods.

A driver feeds one input at a time (`receive`, `handle_timer`, `job_done`, a command), then drains `messages_to_send`,
`next_event` and `next_job`, and asks `timer`. No socket, clock, thread or vector is here; the same inputs and the same
random source give the same outputs, byte for byte. What a remote does wrong is an event, never an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol import jobs, wire
from gossipdp.protocol.averaging import Averaging, AveragingConfig
from gossipdp.protocol.events import (
    Event,
    Left,
    MemberChanged,
    MessageDropped,
    Pace,
    RoundSettled,
    SessionRefused,
    SnapshotTaken,
    StateReady,
)
from gossipdp.protocol.lag import Own
from gossipdp.protocol.membership import Membership, MembershipConfig
from gossipdp.protocol.messages import (
    Coverage,
    Lineage,
    Member,
    Nack,
    Ping,
    PingRequest,
    Pong,
    PushPull,
    Standing,
    StateAsk,
    StateChunk,
    StateManifest,
    StateProbe,
    StateRefuse,
    StateRequest,
    StateSample,
)
from gossipdp.protocol.origin import Held, Origin
from gossipdp.protocol.outputs import Envelope, Outputs
from gossipdp.protocol.partners import exchanges_per_round
from gossipdp.protocol.progress import ProgressBoard
from gossipdp.protocol.reunion import NO_LINE, Reunion
from gossipdp.protocol.rounds import Outer, Rounds
from gossipdp.protocol.schedule import Schedule
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.sharding import Sharding
from gossipdp.protocol.transfer import Joiner, Model, Source, TransferConfig
from gossipdp.protocol.wire import Buffer

__all__ = ["Peer", "PeerConfig"]

WARMUP_EVERY = 5
"""H during the warm start, at the least"""
ALONE_AFTER = 2
"""rounds without an exchange after which a peer steps as if alone: lr 1, momentum 0"""
AGAINST_EXCHANGE = 4.0
"""times as long as an exchange that a transfer may take: 2 bytes a parameter, not half a byte"""


@dataclass(frozen=True, kw_only=True)
class PeerConfig:
    membership: MembershipConfig
    averaging: AveragingConfig
    transfer: TransferConfig = field(default_factory=TransferConfig)
    every: int = 50
    """H, inner steps a round, after the warm start"""
    codec: str = "modulo"
    bits: int = 4
    """of the modulo codec; first rounds use 8, a joiner's first exchange 16"""
    lr: float = 0.7
    """alpha"""
    momentum: float = 0.8
    """mu"""
    kappa: float = 0.3
    """share of the mixing that momentum sees, while it is not 0"""
    warmup_steps: int = 200
    """steps of the network's clock with short rounds, lr 1 and momentum 0"""
    early_steps: int = 1000
    """steps of the network's clock with several exchanges a round, while the learning rate is high"""
    sync: bool = False
    """training waits for the exchanges of each round"""
    resume_after: float = 30.0
    """seconds a restarted peer looks for the network before it goes on from its own checkpoint, unless all it remembers
    are there before"""
    apart_rounds: int = 10
    """own rounds after which a member that was lost, and trained on without this peer, is no more averaged with: the
    smaller side fetches the model of the larger"""
    leave_within: float = 5.0
    """seconds for the exchange under way to end before the goodbye is said anyhow"""


class Peer:
    """Args:

    me: this peer's member record; its incarnation is new with every start.
    sign: Ed25519 signature of this peer over some bytes; verify(peer id, data, signature).
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
    ) -> None:
        self.config, self.id = config, me.id
        self._outputs = Outputs()
        # Membership's news passes through here on its way out, for averaging and transfer live by it.
        self._news = Outputs()
        self._news.messages = self._outputs.messages
        self._random = random
        self.progress = ProgressBoard(me.id)
        self.membership = Membership(
            config.membership, me, random=random, outputs=self._news, now=now, progress=self.progress
        )
        self.averaging = Averaging(
            config.averaging,
            self.membership,
            incarnation=me.incarnation,
            random=random,
            outputs=self._outputs,
            ended=self._exchange_ended,
        )
        self.sharding = Sharding(
            self.membership, incarnation=me.incarnation, random=random, outputs=self._outputs, now=now
        )
        self.rounds = Rounds(self._outputs)
        self._source = Source(config.transfer, self._outputs, sign)
        self._origin = Origin(
            self.membership,
            self.progress,
            lambda: Joiner(config.transfer, self._outputs, verify, random, settings=config.averaging.settings),
            random=random,
            outputs=self._outputs,
            resume_after=config.resume_after,
            tolerance=2 * config.every,
            adopt=self._has_model,
        )
        take = jobs.Resync
        self._reunion = Reunion(
            self.membership,
            self.progress,
            lambda: Joiner(
                config.transfer, self._outputs, verify, random, settings=config.averaging.settings, take=take
            ),
            random=random,
            outputs=self._outputs,
            apart_rounds=config.apart_rounds,
            every=config.every,
            me=self._own,
            hold=self.averaging.hold,
            done=self._resynced,
        )
        self.averaging.apart = self._reunion.apart
        self._remembered: list[Member] = []
        self._fetched_from = b""
        self._took = ""
        self.model: Model | None = None
        self._pending_schema: bytes | None = None
        self._founding_schema = b""
        self._clock = 0
        self._steps = self._samples = 0
        self._rounds_alone = ALONE_AFTER
        self._fresh = True
        self._every = 0
        self._fine_round = 0
        self._rounds_before = 0
        self._step_time = 0.0
        self._exchange_time = self._transfer_time = 0.0
        self._submitted_at: float | None = None
        self._unsettled = 0
        """the snapshot whose exchanges training waits for"""
        self._leaving_at: float | None = None
        self._left = False
        self._followed: Schedule | None = None

    # -- commands ---------------------------------------------------------------------------------------------

    def found(self) -> None:
        """This peer gives the network its model: the first training process's."""
        self._origin.founder = True

    def join(
        self, addresses: Sequence[str], now: float, *, remembered: Sequence[Member] = (), resume: Held | None = None
    ) -> None:
        """Look for the network at `addresses` and at the members remembered from before, for ever.

        `resume` tells what this host's newest checkpoint is of: if no member has the model, and none alive holds a
        later checkpoint, this peer goes on from there, `config.resume_after` from now at the latest.
        """
        self._remembered = list(remembered)
        self._origin.join(now, remembered, resume)
        self.membership.remember(remembered)
        self.membership.join(addresses, now)
        self._step(now)

    def attach(self, schema: bytes, now: float) -> None:
        """A training process has written its model to shared memory and waits for the one to start from."""
        self._pending_schema = schema
        self._try_attach()
        self._step(now)

    def detach(self, now: float) -> None:
        """The training process is gone."""
        self._pending_schema = None
        self._submitted_at = None
        self.rounds.detach()
        self._step(now)

    def submit(self, session: int, snapshot: int, applied: int, steps: int, samples: int, now: float) -> None:
        """The training process has put a snapshot into x, so many steps and samples after the one before."""
        if session == self.rounds.session and self._submitted_at is not None and steps > 0:
            self._step_time = (now - self._submitted_at) / steps
        self._submitted_at = now
        clock = self._clock + steps
        if not self.rounds.submit(session, snapshot, applied, self._outer(), clock):
            self._outputs.emit(SnapshotTaken(snapshot, "session"))
            return
        self._unsettled = snapshot if self.config.sync else 0
        self._clock = clock
        self._steps += steps
        self._samples += samples
        self._report()
        self._step(now)

    def slot_applied(self, session: int, slot: int, now: float) -> None:
        """The training process has added a sealed slot to x."""
        self.rounds.slot_applied(session, slot)
        self._step(now)

    def leave(self, now: float) -> None:
        """Finish the chunks in flight, say goodbye, and emit Left."""
        if self._leaving_at is None:
            self._leaving_at = now + self.config.leave_within
            self.averaging.stop(now)
            self._step(now)

    # -- inputs -----------------------------------------------------------------------------------------------

    def receive(self, frames: Sequence[Buffer], source: bytes, now: float) -> None:
        """`frames` came from the peer whose id the transport has verified as `source`."""
        try:
            message, buffers = wire.decode(frames)
        except RemoteProtocolError as error:
            self._outputs.emit(MessageDropped(source, str(error)))
            return
        self.membership.contact(source, now)
        match message:
            case Ping() | Pong() | PingRequest() | Nack() | PushPull():
                self.membership.receive(message, source, now)
            case StateRequest() | StateAsk() | StateProbe():
                model = self._current_model() if self._reunion.gives(message, source) else None
                self._source.receive(message, source, model, now)
                if isinstance(message, StateRequest) and self._reunion.line != NO_LINE:
                    # Whose model it fetches, so that it belongs to that side if there are two.
                    self._reunion.tell(source)
            case StateManifest() | StateChunk() | StateRefuse() | StateSample() if self.model is None:
                self._fetched_from = source if isinstance(message, StateChunk) else self._fetched_from
                self._origin.receive(message, buffers, source, now)
            case StateManifest() | StateChunk() | StateRefuse() | StateSample():
                self._reunion.follower.receive(message, buffers, source, now)
            case Lineage():
                self._reunion.receive(message, source, now)
            case Coverage():
                self.sharding.receive(message, buffers, source, now)
            case Standing():
                self._origin.standing(message, source, self._current_model(), now)
            case _:
                size = sum(memoryview(frame).nbytes for frame in frames)
                self.averaging.receive(message, buffers, source, size, now)
        self._step(now)

    def link_down(self, peer: bytes, reason: str, now: float) -> None:
        """The transport has lost its link to `peer`."""
        self.membership.link_down(peer, reason, now)
        self._step(now)

    def advertise(self, address: str, now: float) -> None:
        """It has turned out that others can dial this peer at `address`, or, at "", that nobody can."""
        self.membership.advertise(address, now)
        self._step(now)

    def job_done(self, job: jobs.Job, result: jobs.Result, now: float) -> None:
        """A job asked for has been carried out; results come in the order of the jobs."""
        match job:
            case jobs.Begin() | jobs.Answer() | jobs.Decode() | jobs.DecodeAndMix() | jobs.Mix():
                self.averaging.job_done(job, result, now)
            case jobs.Freeze():
                model = self._current_model()
                if model is not None:
                    self._source.frozen(job, result, model)
            case jobs.Sample():
                model = self._current_model()
                if model is not None:
                    self._source.sampled(result, model)
            case jobs.Adopt():
                self._origin.adopted(job, result, now)
            case jobs.Compare() if self.model is None:
                self._origin.compared(result, now)
            case jobs.Compare():
                self._reunion.follower.compared(result, now)
            case jobs.Resync():
                self._reunion.follower.resynced(job, result, now)
            case jobs.Keep():
                self._reunion.follower.kept()
            case jobs.Restore():
                self._origin.restored(result, now)
            case _:
                self.rounds.job_done(job, result)
                if self.rounds.founded and self.model is None:
                    self._founded()
                elif isinstance(job, jobs.Found):
                    self._try_attach()
                if self.rounds.finished_round:
                    self.rounds.finished_round = False
                    self._round_done(now)
        self._step(now)

    def timer(self) -> float | None:
        """When `handle_timer` wants to be called next, or None."""
        times = [self.membership.timer(), self.averaging.timer(), self._source.timer(), self._origin.timer()]
        times.append(self._reunion.timer())
        if not self._left:
            times += [self._leaving_at, self.sharding.timer()]
        return min((time for time in times if time is not None), default=None)

    def handle_timer(self, now: float) -> None:
        self.membership.handle_timer(now)
        self.averaging.handle_timer(now)
        self._source.handle_timer(now)
        self._origin.handle_timer(now)
        self._reunion.handle_timer(now)
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

    def next_job(self) -> jobs.Job | None:
        return self._outputs.jobs.popleft() if self._outputs.jobs else None

    def next_event(self) -> Event | None:
        return self._outputs.events.popleft() if self._outputs.events else None

    # -- inside -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """This peer holds the network's model."""
        return self.model is not None

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
        """Why this peer fetches the network's model anew right now: apart, lag, or ""."""
        return self._reunion.reason

    @property
    def apart(self) -> list[bytes]:
        """Members who are there and trained without this peer for so long that nothing is exchanged with them yet."""
        return self._reunion.present()

    @property
    def clock(self) -> int:
        """Steps of the network's clock, as far as this peer knows."""
        return max(self._clock, self.progress.clock())

    @property
    def every(self) -> int:
        """H as it stands."""
        return self._every or self._pace()

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
        return self.clock < self.config.warmup_steps

    def _step(self, now: float) -> None:
        """What follows from news, whichever input brought it."""
        if self._took:
            missing = self._remembered if self._took == "restored" else []
            self._reunion.ready(self._fetched_from, missing, now)
            self._took = ""
        while self._news.events:
            event = self._news.events.popleft()
            self._outputs.emit(event)
            if isinstance(event, MemberChanged):
                self.averaging.member_changed(event.member, now)
                self._origin.member_changed(event.member, now)
                self._reunion.member_changed(event.member, now)
                self.sharding.member_changed(now)
        self._origin.step(now)
        self._reunion.step(now)
        if self.rounds.held != bool(self._reunion.reason):
            self.rounds.held = bool(self._reunion.reason)
            if self.rounds.held:
                self._source.forget()
            else:
                self.rounds.mixed()
        if self._unsettled and self.rounds.handed_out and self.averaging.satisfied:
            self._outputs.emit(RoundSettled(self._unsettled))
            self._unsettled = 0
        leaving = self._leaving_at is not None and not self._left
        if leaving and (self.averaging.at_rest or now >= (self._leaving_at or now)):
            self._left = True
            self.membership.leave(now)
            self._outputs.emit(Left())

    def _current_model(self) -> Model | None:
        if self.model is None:
            return None
        return replace(self.model, clock=self.clock, rounds=self.rounds.rounds)

    # -- the model --------------------------------------------------------------------------------------------

    def _try_attach(self) -> None:
        """Open a session for the waiting training process, found with it, or let it wait for the model."""
        if self._pending_schema is None:
            return
        if self.model is not None:
            if self.model.schema_bytes != self._pending_schema:
                difference = self.model.schema.first_difference(Schema.from_bytes(self._pending_schema))
                self._outputs.emit(SessionRefused("GD-301", difference))
            else:
                self.rounds.attach(found=False)
            self._pending_schema = None
        elif self.rounds.founding:
            # The process whose model is being taken has been replaced; the new one waits for the outcome.
            self.rounds.detach()
        elif self._origin.founder:
            self._founding_schema, self._pending_schema = self._pending_schema, None
            schema = Schema.from_bytes(self._founding_schema)
            width = chunk_parameters(schema.size)
            self._outputs.ask(jobs.Allocate(schema.size, schema.trainable, width))
            self.rounds.allocate(-(-schema.size // width), schema.size)
            self.rounds.attach(found=True)

    def _founded(self) -> None:
        self._has_model(self._founding_schema, "founded", 0, 0)

    def _has_model(self, schema_bytes: bytes, origin: str, clock: int, rounds: int) -> None:
        schema = Schema.from_bytes(schema_bytes)
        self.model = Model(
            schema=schema,
            schema_bytes=schema_bytes,
            settings=self.config.averaging.settings,
            clock=clock,
            rounds=rounds,
        )
        self.rounds.allocate(self.model.chunks, schema.size)
        self.rounds.rounds = rounds
        self._clock = max(self._clock, clock, self.progress.clock())
        self._fresh = origin != "founded"
        self._rounds_before = rounds
        self.averaging.model = self.model
        self._choose_terms()
        self._report()
        self._took = origin
        self._outputs.emit(StateReady(origin, self._clock))
        self._set_pace()
        self._try_attach()

    def _own(self) -> Own:
        transfer = max(AGAINST_EXCHANGE * self._exchange_time, self._transfer_time)
        steps = transfer / self._step_time if self._step_time > 0 else 0.0
        return Own(self._clock, self.rounds.rounds, self._rounds_alone, steps)

    def _resynced(self, clock: int, rounds: int, duration: float) -> None:
        """The model is another's now, `clock` steps and `rounds` old."""
        self._transfer_time = duration
        self._clock = max(self._clock, clock)
        ahead = max(0, rounds - self.rounds.rounds)
        self.rounds.rounds += ahead
        self._rounds_before += ahead
        self._fresh, self._rounds_alone = True, ALONE_AFTER
        self._choose_terms()
        self._report()

    # -- rounds -----------------------------------------------------------------------------------------------

    def _outer(self) -> Outer:
        """lr and momentum of the next outer step (algorithms sections 3 and 6)."""
        if self.warming_up or self._rounds_alone >= ALONE_AFTER:
            return Outer(1.0, 0.0)
        return Outer(self.config.lr, self.config.momentum)

    def _pace(self) -> int:
        """H: short while the network warms up, but never shorter than an exchange lasts."""
        if not self.warming_up:
            return self.config.every
        lasting = self._exchange_time / self._step_time if self._step_time > 0 else 0.0
        return min(self.config.every, max(WARMUP_EVERY, round(lasting + 0.5)))

    def _set_pace(self) -> None:
        every = self._pace()
        if self._every == 0 or abs(every - self._every) > 0.2 * self._every:
            if self._every:
                # The next round moves by another measure than the ranges were predicted from.
                self._fine_round = self.rounds.rounds + 1
            self._every = every
            self._outputs.emit(Pace(every))

    def _choose_terms(self) -> None:
        """Codec and pull to offer next, and at least to accept."""
        first = self._fresh or self.rounds.rounds <= 1 or self.rounds.rounds == self._fine_round
        bits = self.config.bits
        if self._fresh and self._rounds_alone >= ALONE_AFTER:
            bits = max(bits, 16)
        elif first:
            bits = max(bits, 8)
        self.averaging.codec = f"modulo{bits}" if self.config.codec == "modulo" else self.config.codec
        outer = self._outer()
        self.averaging.pull = self.config.kappa / outer.lr if outer.momentum else 0.0

    def _round_done(self, now: float) -> None:
        self._rounds_alone += 1
        self._set_pace()
        self._choose_terms()
        members = 1 + len(self.membership.alive())
        if members > 1:
            early = self.clock < self.config.early_steps
            # Later, at one exchange a round, random matching agrees better: whoever offers one also accepts one.
            self.averaging.schedule = self._schedule(now) if early else None
            self.averaging.want(exchanges_per_round(members, early), now, self._clock // self.every)

    def _schedule(self, now: float) -> Schedule | None:
        """The schedule to follow in this round, while the view is full and fresh, and all keep step."""
        members = self.membership.settled(now)
        if not self.config.averaging.matching.schedule or self.warming_up or not members:
            return None
        if len(members) & (len(members) - 1):
            # The Base-2 graph leaves more noise between rounds than random matching does (simulations.consensus).
            return None
        reports = [self.progress.of(peer) for peer in members]
        if any(report is None or abs(report.clock - self._clock) > 2 * self.every for report in reports):
            return None
        if self._followed is None or self._followed.members != members:
            assert self.model is not None
            self._followed = Schedule(members, self.model.schema.digest)
        return self._followed

    def _exchange_ended(self, chunks: int, duration: float, now: float) -> None:
        if chunks:
            self._rounds_alone = 0
            self._fresh = False
            self._exchange_time = duration or self._exchange_time
            self.rounds.mixed()
            self._reunion.mixed(now)
            self._choose_terms()

    def _report(self) -> None:
        rounds = self.rounds.rounds - self._rounds_before
        self.progress.report(clock=self._clock, steps=self._steps, samples=self._samples, rounds=rounds)
