"""Drives one Peer in the real world: sockets, shared memory, threads and the clock, and nothing of the protocol.

One I/O thread, the caller's, runs everything here; one compute thread owns every vector and runs jobs in the order
asked; one storage thread writes checkpoints. They share nothing but queues, so there is no lock. One turn of the loop:
poll, feed what came to the Peer one input at a time, and after each drain its messages, jobs and events.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from gossipdp.algorithms.registry import Algorithm
from gossipdp.error_codes import ADVICE
from gossipdp.errors import DataError, GossipdpError, HardwareError
from gossipdp.protocol import events, jobs
from gossipdp.protocol.carried_state import NOTHING
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.peer import Peer
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.transfer.claims import Live
from gossipdp.protocol.transfer.moments import Moments
from gossipdp.protocol.wire.messages import Ack, Data, Member, short
from gossipdp.runtime import link as links
from gossipdp.runtime.compute import Compute, Finished
from gossipdp.runtime.faults import FaultPoint
from gossipdp.runtime.link.data_server import DataServer
from gossipdp.runtime.link.state_delivery import Renewals
from gossipdp.runtime.moments import ROUNDS, MomentsKeeper
from gossipdp.runtime.network import transport as wires
from gossipdp.runtime.network.dial_causes import dial_text
from gossipdp.runtime.network.duplicate_identity import judge
from gossipdp.runtime.network.refusals import Refusals
from gossipdp.runtime.observability.join_progress import JoinProgress
from gossipdp.runtime.observability.memory_watch import MemoryWatch
from gossipdp.runtime.observability.metrics import Metrics
from gossipdp.runtime.observability.notices import Notices
from gossipdp.runtime.observability.status import Status
from gossipdp.runtime.storage.checkpoint import BESIDE
from gossipdp.runtime.storage.checkpointer import Keeper
from gossipdp.runtime.storage.pinned import Pins
from gossipdp.runtime.storage.store import CheckpointMeta, Store

__all__ = ["Node", "Service"]

log = logging.getLogger("gossipdp.node")

T = TypeVar("T")
TICK = 0.5
"""seconds between looks at what no event tells: queues, round-trip times, checkpoints due"""
REMEMBER_EVERY = 5.0
"""seconds between two writes of who could be dialled, at the least: each waits for the disk"""
REFUSED = 3
"""snapshots refused in a row after which a training process loads the model anew"""
GOODBYE = 2.0
"""seconds that a peer which has left waits, at the most, until its last words are sent"""
RETRY = 0.1
"""share of `checkpoint_every` after which a checkpoint that could not be written is tried again"""
LINK_CODES = {
    "GD-301": ("this model is not the network's", "train the model the network trains, or found another"),
    "GD-303": ("this script excludes other tensors than the network's", "pass the same `exclude` to attach everywhere"),
}


class Service(Protocol):
    """Something else that lives in the I/O loop, such as the control socket."""

    def filenos(self) -> Sequence[int]: ...

    def handle(self, fd: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    network: str
    home: str = ""
    """folder, for `status`"""
    metrics: str = ""
    """address at which metrics are served, for `status`"""
    only_seeds: tuple[str, ...] = ()
    """addresses of the only members that this peer knows; see `refusals`"""
    checkpoint_every: float = 600.0
    """seconds"""
    mode: Literal["async", "overlap", "sync"] = "async"
    """when corrections reach the live parameters"""
    deadline: float = 30.0
    """seconds that training waits for a round with mode sync"""
    heal: bool = True
    """load the model anew into a training process that has only NaN to hand over"""
    waiting: int = 2 << 30
    """bytes that messages may take, to be sent or to be passed on"""


class Node:
    """Args:

    peer: not started yet; `start` is called on it by the daemon before `run`.
    found_run: called when this peer has founded the network, for a new run id.
    learned_run: called with the run id this peer hears of when it has none.
    remember: called with the members to be dialled after a restart, when their addresses have changed.
    """

    def __init__(
        self,
        config: NodeConfig,
        peer: Peer,
        algorithm: Algorithm,
        *,
        transport: wires.Transport,
        link: links.LinkServer,
        store: Store,
        metrics: Metrics,
        incarnation: int,
        learned_run: Callable[[bytes], None],
        found_run: Callable[[], bytes],
        remember: Callable[[Sequence[Member]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self.peer, self._algorithm, self._clock = config, peer, algorithm, clock
        self._transport, self._link, self._store, self._metrics = transport, link, store, metrics
        self._renewals = Renewals(link.send)
        self._incarnation = incarnation
        self._learned_run, self._found_run, self._remember = learned_run, found_run, remember
        self._remembered: dict[bytes, str] = {}
        self._remember_at = -math.inf
        self._compute = Compute(self._execute)
        self._keeper = Keeper(store, lambda piece: self._compute.submit((self._keeper, piece)), self._checkpoint_saved)
        self._moments = MomentsKeeper(lambda piece: self._compute.submit((self._moments, piece)))
        self._services: list[Service] = []
        self._data: DataServer | None = None
        self._faults = FaultPoint.from_environment()
        self.status = Status(peer, transport, network=config.network, home=config.home, metrics=config.metrics)
        self._notices = Notices(peer, self.status, metrics)
        self._join_progress = JoinProgress(clock())
        self._pins = Pins(store, self._notices)
        self._memory = MemoryWatch(config.waiting)
        self._refusals = Refusals(config.only_seeds)
        self._attached_schema = b""
        self._region: links.Region | None = None
        self._attached = False
        self._lost_steps = 0
        self._told_saved: Callable[[Path | DataError], None] = lambda _: None
        self._keeping: jobs.Keep | None = None
        self._keeping_now = False
        self._next_tick = 0.0
        self._next_checkpoint = math.inf
        self._stopping_at = math.inf
        self._final_checkpoint = False
        self._kept_steps, self._kept_at = 0, -math.inf
        """of the keeper, and when they became so many"""
        self._finished = False

    # -- what the daemon calls --------------------------------------------------------------------------------

    @property
    def run_id(self) -> bytes:
        """The run this peer belongs to, or b""."""
        return self._transport.run

    def add(self, service: Service) -> None:
        self._services.append(service)

    def serve_data(self, home: Path) -> None:
        """Tell who asks at `home` which samples are his."""
        self._data = DataServer(home, self._feed, partial(self.notice, "GD-603"))
        self._services.append(self._data)

    def run(self) -> None:
        """Until the peer has left.

        Raises:
            RefusedError, MismatchError: GD-203, GD-204, GD-302: every seed refuses this peer.
            CopyError: GD-205, see `duplicate_identity`.
        """
        while not self._finished:
            self._turn()

    def leave(self, within: float = 8.0) -> None:
        """Finish the chunks in flight, write a checkpoint, say goodbye; `run` then returns."""
        if self._stopping_at == math.inf:
            now = self._clock()
            self._stopping_at, self._next_checkpoint = now + within, math.inf
            self.peer.leave(now)
            self._drain(now)

    def holds(self, checkpoint: Path, saved_at: float) -> None:
        """The newest one that earlier starts have left here, of this Unix time."""
        self.status.checkpoint_saved(str(checkpoint))
        self._metrics.checkpoint_saved(saved_at)

    def notice(self, code: str, text: str) -> None:
        """Something about this host that its operator should read."""
        self._notices.notice(code, text, self._clock())

    def checkpoint(self, done: Callable[[Path | DataError], None] = lambda _: None) -> bool:
        """Begin a checkpoint now; False if there is no whole model yet, or one is being written. `done`: its end."""
        begun = self.peer.whole and not self._keeper.busy and self._save()
        self._told_saved = done if begun else self._told_saved
        return begun

    def _save(self) -> bool:
        model = self.peer.model
        assert model is not None
        meta = CheckpointMeta(
            network=self._config.network,
            run=self._transport.run.hex(),
            peer=self.peer.id.hex(),
            incarnation=self._incarnation,
            round=self.peer.rounds.rounds,
            clock=self.peer.state_clock,
            steps=self.peer.steps,
            samples=self.peer.samples,
            schema=model.schema.digest.hex(),
        )
        self._keeper.save(self._algorithm.ledger, meta, model.schema_bytes, model.carried)
        if self._data is not None:
            self._data.snapshot()
        return True

    @property
    def saving(self) -> bool:
        """It leaves, and its last checkpoint is not written yet."""
        return self._stopping_at < math.inf and (self._keeper.busy or not self._final_checkpoint)

    def close(self) -> None:
        if self._keeper.busy:
            newest = f"{self.status.checkpoint} is the newest" if self.status.checkpoint else "none is of this start"
            text = f"the checkpoint under way, of step {self.peer.clock} of the network's clock, is given up; {newest}"
            self._notices.notice("GD-602", text, self._clock())
        for service in self._services:
            service.close()
        self._link.close()
        self._transport.close()
        self._compute.close()
        self._keeper.close()
        self._metrics.close()

    # -- one turn ---------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        now = self._clock()
        services = {fd: service for service in self._services for fd in service.filenos()}
        trainers = set(self._link.filenos())
        waits = [self.peer.timer(), self._next_tick, self._stopping_at if now < self._stopping_at else None]
        timeout = max(0.0, min(wait for wait in waits if wait is not None) - now)
        watched = [*services, *trainers, self._compute.fileno(), self._keeper.fileno()]
        arrived, readable = self._transport.poll(timeout, watched)
        now = self._clock()
        for event in arrived:
            self._from_transport(event, now)
            self._drain(now)
        for fd in readable:
            if fd == self._compute.fileno():
                self._collect()
            elif fd == self._keeper.fileno():
                self._keeper.collect()
            elif fd in trainers:
                for message in self._link.handle(fd):
                    self._from_link(message, now)
                    self._drain(now)
            elif fd in services:
                services[fd].handle(fd)
        timer = self.peer.timer()
        if timer is not None and timer <= now:
            self.peer.handle_timer(now)
            self._drain(now)
        if now >= self._next_tick:
            self._tick(now)
        if self._stopping_at < math.inf:
            self._last_words(now)

    def _drain(self, now: float) -> None:
        for envelope in self.peer.messages_to_send():
            self._transport.send(envelope.to, envelope.address, envelope.lane, envelope.frames)
            if self._faults is not None:
                self._pass_points(envelope)
        while (job := self.peer.next_job()) is not None:
            if isinstance(job, jobs.Keep):
                self._keeping = job
                self._keep_own()
            else:
                self._compute.submit(self._bound(job))
        while (event := self.peer.next_event()) is not None:
            self._from_peer(event, now)

    def _pass_points(self, envelope: Envelope) -> None:
        assert self._faults is not None
        if isinstance(envelope.message, Data):
            self._faults.passed(f"chunk {envelope.message.chunk} sent")
        elif isinstance(envelope.message, Ack):
            self._faults.passed("ACK sent")

    def _feed(self, command: Callable[[Peer, float], T]) -> T:
        now = self._clock()
        result = command(self.peer, now)
        self._drain(now)
        return result

    # -- jobs -------------------------------------------------------------------------------------------------

    def _bound(self, job: jobs.Job[object]) -> Any:
        """Jobs that are the driver's own become functions; what they need is taken now, on the I/O thread."""
        match job:
            case jobs.Bind():
                region = self._region
                assert region is not None
                return (job, partial(self._bind, region.x, (region.slots[0], region.slots[1])))
            case jobs.Unbind():
                if not self._attached:
                    self._region = None  # or two would be held when the next process comes
                return (job, self._algorithm.ledger.unbind)
            case jobs.Restore():
                return (job, self._restore)
        return job

    def _execute(self, work: Any) -> Any:
        try:
            return work[1]() if isinstance(work, tuple) else self._algorithm.run(work)
        except MemoryError:
            raise HardwareError("GD-502", "the model does not fit this host's memory", seen=repr(work)[:200]) from None

    def _bind(self, x: Any, slots: tuple[Any, Any]) -> None:
        self._algorithm.ledger.bind(x, slots)

    def _restore(self) -> tuple[jobs.Restored | None, Sequence[str]]:
        checkpoint, notices = self._store.latest()
        if checkpoint is None:
            return None, notices
        schema = Schema.from_bytes(checkpoint.schema)
        width = chunk_parameters(schema.size, self.peer.config.most_chunk)
        self._algorithm.allocate(schema.size, schema.trainable, width)
        checkpoint.read_into("anchor", self._algorithm.ledger.a)
        checkpoint.read_into("momentum", self._algorithm.ledger.v)
        beside = [checkpoint.read(name).data if name in checkpoint.shapes() else b"" for name in BESIDE]
        return jobs.Restored(checkpoint.schema, checkpoint.meta.clock, checkpoint.meta.round, *beside), notices

    def _collect(self) -> None:
        for finished in self._compute.collect():
            self._finish(finished)

    def _finish(self, finished: Finished) -> None:
        if finished.error is not None:
            raise finished.error
        job, result = (finished.work[0], finished.result) if isinstance(finished.work, tuple) else finished[:2]
        if job is self._keeper:
            self._keeper.copied(result)
            return
        if job is self._moments:
            self._moments.ran(result)
            return
        if isinstance(job, jobs.Restore):
            result, notices = result
            for notice in notices:  # they begin with their code
                code, _, text = notice.partition(" ")
                self.notice(code, text)
        half_way = isinstance(job, jobs.OuterStep | jobs.Publish) and job.chunk == self._algorithm.ledger.chunks // 2
        if half_way and self._faults is not None:
            self._faults.passed("outer step half done")
        now = self._clock()
        self.peer.job_done(job, result, now)
        self._drain(now)

    # -- what came in -----------------------------------------------------------------------------------------

    def _from_transport(self, event: wires.TransportEvent, now: float) -> None:
        match event:
            case wires.Received(peer, _, frames):
                self.peer.receive(frames, peer, now)
            case wires.LinkDown(peer, reason):
                self.peer.link_down(peer, reason, now)
            case wires.LinkUp(peer, address, inbound):
                self._refusals.met_member()
                log.info("link to %s at %s (%s)", short(peer), address, "inbound" if inbound else "outbound")
            case wires.DialFailed(peer, address, reason, code, ours, do):
                dialled, cause = address or short(peer), "no peer met there: " if code == "GD-101" else ""
                if not (code == "GD-101" and self.peer.membership.left(address)):
                    self._notices.notice(code, dial_text(dialled, reason, cause), now, do)
                    self._join_progress.failed(dialled, code, dial_text(dialled, reason), do or ADVICE.get(code, ""))
                if peer:
                    self.peer.link_down(peer, reason, now)
                if (error := self._refusals.failed(address, code, reason, ours=ours)) is not None:
                    raise error
            case wires.HandshakeRefused() | wires.Crowded() | wires.Flooded():
                self._notices.notice(*wires.code_and_text(event), now)
            case wires.CopyMet(address, incarnation, start):
                mine, copy = (self._incarnation, self._transport.start), (incarnation, start)
                error = judge(mine, copy, address)
                if error is not None and self._stopping_at == math.inf:
                    raise error
                self._notices.notice("GD-205", f"a copy of this home was started at {address}", now)
            case wires.Dialable(address, dialable, opinions):
                self._dialable(address, dialable, opinions, now)
            case wires.RunLearned(run):
                self._learned_run(run)
                log.info("this peer belongs to run %s", run.hex()[:8])

    def _dialable(self, address: str, dialable: bool, opinions: int, now: float) -> None:
        if dialable:
            log.info("members dial this peer at %s again", address)
        else:
            port = address.rpartition(":")[2]
            seen = f"members tried {address} {opinions} times in vain"
            do = f"open TCP port {port} to the other hosts, or set [network] advertise to where they reach it"
            self._notices.notice("GD-102", f"nobody can dial this peer, it goes on outbound-only: {seen}; {do}", now)
        self.peer.advertise(address if dialable else "", now)

    def _from_link(self, event: links.LinkEvent, now: float) -> None:
        match event:
            case links.Attached():
                # Kept here, for the process may die, and a job that was asked for meets its vectors all the same.
                self._attached_schema, self._region, self._attached = event.schema, self._link.region, True
                self.status.attached()
                if self._faults is not None:
                    self._faults.training = event.pid
            case links.ModelWritten():
                live, carried = self._live(event), event.carried
                self.peer.attach(self._attached_schema, now, carried=carried, moments=event.empty, live=live)
                if not self.peer.ready:
                    log.info("a training process waits for the model")
            case links.Submitted():
                submitted = (event.session, event.snapshot, event.applied, event.steps, event.samples)
                self.peer.submit(*submitted, now, state=self._renewals.submitted(event.session, event.state))
            case links.SlotApplied():
                self.peer.slot_applied(event.session, event.slot, now)
            case links.MomentsWritten() | links.MomentsWanted():
                self._pass_moments(event)
            case links.Reported():
                self._reported(event, now)
            case links.RankLost(rank, pid):
                self._notices.notice("GD-501", f"rank {rank} of the training group (process {pid}) died", now)
            case links.Detached():
                log.info("the training process is gone: %s", event.reason)
                self._renewals.ended()
                self.status.detached()
                if self._faults is not None:
                    self._faults.training = 0
                self._attached = False
                self.peer.detach(now)

    def _live(self, event: links.ModelWritten) -> Live | None:
        """What a process has trained with an earlier daemon of this run, if it has."""
        run = self._transport.run
        same = event.run == run if run else self.peer.founds
        return Live(event.clock, event.steps, event.samples) if event.run and same else None

    def _pass_moments(self, event: links.MomentsWritten | links.MomentsWanted) -> None:
        model, held = self.peer.model, self.peer.moments.held
        if event.session != self.peer.rounds.session or model is None or self._region is None:
            return  # it has lost its session, and hears so
        if isinstance(event, links.MomentsWanted):
            if held is not None:
                given = links.MomentsGiven(event.which)
                self._moments.give(event.which, self._region.x, held, model.schema, lambda: self._link.send(given))
            return

        def done(moments: Moments | None) -> None:
            if moments is not None:
                self._feed(lambda peer, now: peer.moments.hold(moments, now))
            self._link.send(links.MomentsTaken(event.number))

        self._moments.take(event.which, event.steps, self._region.x, model.schema, done)

    def _from_peer(self, event: events.Event, now: float) -> None:
        self._notices.observe(event, now)
        match event:
            case events.SessionOpened(session, kept):
                self._renewals.ended()
                self._belong()
                ledger = self._algorithm.ledger
                carried = NOTHING if self.peer.model is None else self.peer.model.carried
                self._link.send(
                    links.Session(
                        session,
                        self.peer.every,
                        self.peer.clock,
                        ledger.chunk_parameters,
                        self._config.mode,
                        self._config.deadline,
                        ROUNDS if self.peer.moments.enabled else 0,
                        0 if self.peer.moments.held is None else self.peer.moments.held.steps,
                        self._transport.run,
                        kept,
                        REFUSED if self._config.heal else 0,
                        carried != NOTHING,
                    ),
                    [] if carried == NOTHING else [carried.reference, carried.state],
                )
            case events.StateRenewed() if self.status.training and self.peer.model is not None:
                self._renewals.renew(self.peer.rounds.session, self.peer.model.carried.state)
            case events.SessionRefused(code, reason):
                cause, do = LINK_CODES.get(code, ("the model cannot be used", ""))
                log.error("%s %s: %s", code, cause, reason, extra={"code": code})
                self._link.refuse(code, cause, reason, do)
            case events.Pace() | events.RoundDone():
                if self.status.training:
                    self._link.send(links.Pace(self.peer.every, self.peer.clock, self.peer.progress.samples()))
            case events.SlotSealed(slot, chunks):
                self._link.send(links.Slot(self.peer.rounds.session, slot, links.spans(chunks)))
            case events.RoundSettled(snapshot):
                self._link.send(links.Settled(snapshot))
            case events.SnapshotTaken(snapshot, refused):
                self._link.send(links.Taken(snapshot, refused))
            case events.CheckpointAhead(clock, _, network):
                self._pins.ahead(clock, network, now)
            case events.StateReady(origin, clock):
                self._ready(origin, clock, now)
            case events.TransferProgress(source, chunks, of):
                if chunks % max(1, of // 10) == 0:
                    self._link.send(links.Waiting(f"model from {short(source)}", chunks / of))
            case events.ResyncBegan("late", behind=behind):
                self._link.send(links.Waiting(f"the model here is {behind} steps old, it is fetched anew", 0.0))
            case events.MomentsProgress(source, chunks, of):
                if chunks % max(1, of // 10) == 0:
                    self._link.send(links.Waiting(f"the optimizer's moments from {short(source)}", chunks / of))
            case events.DataKnown() if self._data is not None:
                self._data.known()
            case events.Left():
                self._stopping_at = now + 0.3

    def _keep_own(self) -> None:
        """The peer is about to follow others: save what it has, once the checkpoint under way is done."""
        if self._keeping is not None and not self._keeper.busy:
            self._keeping_now = self._save()

    def _kept(self, outcome: Path | DataError, now: float) -> None:
        """A checkpoint is over: if it was of what the peer gives up, the peer may go on."""
        job = self._keeping
        if job is None or not self._keeping_now:
            self._keep_own()
            return
        self._keeping, self._keeping_now = None, False
        if isinstance(outcome, Path) and job.reason == "apart":
            self._pins.given_up(outcome, now)
        self.peer.job_done(job, None, now)
        self._drain(now)

    def _belong(self) -> None:
        """A founder's first model makes a new run."""
        if self.peer.founds and not self._transport.run:
            self._transport.found(self._found_run())

    def _ready(self, origin: str, clock: int, now: float) -> None:
        self._belong()
        log.info("model %s, network clock %d", origin, clock)
        # A run that is lost before its first checkpoint could never be started again: save what is new here at once.
        self._next_checkpoint = now + (self._config.checkpoint_every if origin == "restored" else 0.0)

    def _reported(self, event: links.Reported, now: float) -> None:
        if event.uncounted:
            self._notices.notice("GD-321", "the training process changes parameters and counts no step", now)
        self.status.reported(event.loss, event.stall_seconds)
        if event.lost_steps > self._lost_steps:
            self._metrics.count_lost_steps(event.lost_steps - self._lost_steps)
        self._lost_steps = event.lost_steps

    # -- now and then -----------------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        self._next_tick = now + TICK
        self.status.rates.look(self.peer.progress.reports(), now)
        self._metrics.update(self.status, queued=self._compute.waiting)
        self._metrics.set_queues(bytes=self._transport.queued_bytes)
        if told := self._memory.look(0 if self.peer.model is None else self.peer.model.schema.size):
            self._notices.notice("GD-506", told, now)
        if self._data is not None:
            self._data.tick(now)
        self._notices.remind(self._join_progress.look(self.peer, self.status.transfer, now))
        members = self.peer.membership.restart_contacts()
        addresses = {member.id: member.address for member in members}
        if addresses and addresses != self._remembered and now >= self._remember_at:
            self._remember_at = now + REMEMBER_EVERY
            try:
                self._remember(members)
                self._remembered = addresses
            except GossipdpError as error:
                self._notices.notice(error.code, f"{error.cause}: {error.seen}", now)
        if now >= self._next_checkpoint:
            self._next_checkpoint = now + self._config.checkpoint_every
            if not self.checkpoint() and self._keeper.busy:
                self._notices.notice("GD-602", "a checkpoint is due, and the one before is still being written", now)

    def _last_words(self, now: float) -> None:
        """The peer is told to leave: once it has, a last checkpoint, and the end when that is written or stuck."""
        if (self.status.leaving or now >= self._stopping_at) and not self._final_checkpoint:
            self._final_checkpoint = self.checkpoint() or not self.peer.whole
        if self._keeper.steps != self._kept_steps:
            self._kept_steps, self._kept_at = self._keeper.steps, now
        stuck_at = max(self._stopping_at, self._kept_at) + self._keeper.patience
        # A goodbye may wait for a connection that is not up yet. Lost, it would look like a failure.
        unsaid = self._transport.queued_bytes > 0 and now < self._stopping_at + GOODBYE
        self._finished = now >= (stuck_at if self.saving else self._stopping_at) and not unsaid

    def _save_data(self, data: DataServer) -> None:
        try:
            data.save()
        except DataError as error:
            self._notices.notice(error.code, f"{error.cause}: {error.seen}", self._clock())

    def _checkpoint_saved(self, outcome: Path | DataError) -> None:
        if isinstance(outcome, GossipdpError):
            log.error("%s", outcome, extra={"code": outcome.code})
            self.status.note(str(outcome).splitlines()[0])
            self._metrics.observe(events.Notice(outcome.code, outcome.cause))
            retry = self._clock() + RETRY * self._config.checkpoint_every
            self._next_checkpoint = min(self._next_checkpoint, retry)
        else:
            log.info("checkpoint %s", outcome.name)
            self.status.checkpoint_saved(str(outcome))
            self._metrics.checkpoint_saved()
            if self._data is not None:
                self._save_data(self._data)
        told, self._told_saved = self._told_saved, lambda _: None
        told(outcome)
        self._kept(outcome, self._clock())
