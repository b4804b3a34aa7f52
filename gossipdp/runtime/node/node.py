"""Drives one Peer in the real world: sockets, shared memory, threads and the clock, and nothing of the protocol.

The caller's thread runs the loop here. The compute threads own every vector and run jobs, in order on each chunk. One
storage thread writes checkpoints. They share only queues, so there is no lock. A turn of the loop polls, feeds the Peer
one input at a time, and after each input drains its messages, jobs and events.

`training` serves the training process, `checkpoints` decides when to save, `network_events` takes what the transport
reports, `housekeeping` runs twice a second, and `vector_jobs` runs jobs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gossipdp.errors import DataError
from gossipdp.protocol import events, jobs
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.peer import Peer
from gossipdp.protocol.wire.messages import Ack, Data, Decision
from gossipdp.runtime.faults import FaultPoint
from gossipdp.runtime.link.data_server import DataServer
from gossipdp.runtime.network.refusals import Refusals
from gossipdp.runtime.node.checkpoints import Checkpoints
from gossipdp.runtime.node.context import NodeContext
from gossipdp.runtime.node.decisions import DecisionKeeper
from gossipdp.runtime.node.ending import Ending
from gossipdp.runtime.node.housekeeping import Housekeeping
from gossipdp.runtime.node.network_events import NetworkEvents
from gossipdp.runtime.node.parts import NodeParts
from gossipdp.runtime.node.training import TrainingSessions
from gossipdp.runtime.node.vector_jobs import SharedRegion, VectorJobs
from gossipdp.runtime.observability.audit import Audit
from gossipdp.runtime.observability.fetch_lines import FetchLines
from gossipdp.runtime.observability.join_progress import JoinProgress
from gossipdp.runtime.observability.memory_watch import MemoryWatch
from gossipdp.runtime.observability.notices import Notices
from gossipdp.runtime.observability.status import Status

__all__ = ["Node", "Service"]

log = logging.getLogger("gossipdp.node")

T = TypeVar("T")
TICK = 0.5
"""seconds between looks at what no event tells: queues, round-trip times, checkpoints due"""
LEFT_WITHIN = 0.3
"""seconds from the peer's last message to the end of the loop"""
GOODBYE = 2.0
"""most seconds that a peer which has left waits until its last messages are sent"""


class Service(Protocol):
    """Something else that lives in the I/O loop, such as the control socket."""

    def filenos(self) -> Sequence[int]: ...

    def handle(self, fd: int) -> None: ...

    def tick(self, now: float) -> None:
        """Called about twice a second."""

    def close(self) -> None: ...


class Node:
    """Drives one `Peer` with the sockets, threads and files of a daemon."""

    def __init__(self, parts: NodeParts) -> None:
        config, peer, transport, metrics = parts.config, parts.peer, parts.transport, parts.metrics
        self.peer, self._algorithm, self._transport, self._metrics = peer, parts.algorithm, transport, metrics
        self._clock, self._records = parts.clock, parts.records
        self._decisions = DecisionKeeper(parts.admission, transport, parts.records, self.notice, parts.wall)
        self._history, self._published = parts.history, parts.published
        self.status = Status(
            peer.view,
            transport,
            network=config.network,
            home=config.home,
            log=config.log,
            metrics=config.metrics,
            page=config.page,
            address_why=config.address_why,
            trains=config.trains,
        )
        self._notices = notices = Notices(peer.view, self.status, metrics)
        context = NodeContext(
            config,
            peer,
            parts.algorithm,
            parts.incarnation,
            self.status,
            metrics,
            notices,
            parts.records,
            self._run_id,
            self._now,
        )
        self._next_tick = 0.0
        self._stopping_at = math.inf
        self._final_checkpoint = False
        self._written, self._written_at = 0, -math.inf
        """steps of the checkpoint's writer, and when their number last changed"""
        self._finished = False
        self._services: list[Service] = []
        self._data: DataServer | None = None
        self._faults = FaultPoint.from_environment()
        self._fetches, self._audit = FetchLines(log.info, parts.clock), Audit(parts.clock)
        join_progress, region = JoinProgress(parts.clock(), self.status.unanswered), SharedRegion()
        self._jobs = VectorJobs(
            parts.algorithm,
            parts.store,
            region,
            parts.room,
            parts.link,
            self._job_done,
            self.notice,
            config.workers,
        )
        call = self._jobs.call
        self._training = TrainingSessions(
            context, parts.link, region, call=call, keep=parts.spill.keep, drain=self._drain, faults=self._faults
        )
        self._ending = Ending(context, self._training, parts.outside)
        self._network = NetworkEvents(
            context,
            Refusals(config.only_seeds),
            start=transport.start,
            answer_invite=transport.answer_invite,
            dial=transport.dial,
            wall=parts.wall,
        )
        memory = MemoryWatch(parts.room.plan, config.waiting)
        self._housekeeping = Housekeeping(context, transport, join_progress, memory, parts.spill, parts.history)
        if config.home:
            self._data = DataServer(Path(config.home), self._feed, self._damaged_data)
            self._services.append(self._data)
        self._checkpoints = Checkpoints(context, parts.store, call=call, data=self._data, kept=self._kept)

    # -- what the daemon calls --------------------------------------------------------------------------------

    @property
    def run_id(self) -> bytes:
        """The run this peer belongs to, or b""."""
        return self._transport.run

    @property
    def generation(self) -> int:
        """Of the network's secret that this peer holds."""
        return self._transport.secret.generation

    def add(self, service: Service) -> None:
        self._services.append(service)

    def run(self) -> None:
        """Run until the peer has left.

        Raises:
            RefusedError, MismatchError: GD-203, GD-204, GD-302: every seed refuses this peer.
            CopyError, OvertakenError: GD-205, see `duplicate_identity`.
        """
        while not self._finished:
            self._turn()

    def leave(self, within: float = 8.0) -> None:
        """Finish the chunks in flight within `within` seconds, save a checkpoint, and end `run`."""
        if self._stopping_at == math.inf:
            now = self._clock()
            self._stopping_at = now + within
            self._checkpoints.stop()
            self.peer.leave(now)
            self._drain(now)

    def finish(self, *, calls: bool, wait: float | None = None) -> None:
        """End the run in order: training first, then see `Peer.finish`; write the final files, and end `run`."""
        if self._stopping_at == math.inf:
            now = self._clock()
            self.peer.finish(now, calls=calls, wait=wait)
            self._drain(now)

    def describe(self) -> dict[str, Any]:
        """The answer to `status`. "longest_jobs": kind of work on the compute threads -> seconds of the longest."""
        finishing = self.finishing()
        shown = self.status.describe(saving=self.saving, finishing=finishing.get("text", ""))
        waiting = self._ending.waiting(self._clock())
        return {**shown, "finish": finishing, "waiting_members": waiting, "longest_jobs": self._jobs.longest}

    def finishing(self) -> dict[str, Any]:
        """How far the end of the run is; empty before it."""
        return self._ending.describe(self._clock())

    def holds(self, checkpoint: Path, saved_at: float) -> None:
        """`checkpoint` is the newest of earlier starts, saved at this Unix time."""
        self._checkpoints.found(checkpoint, saved_at)

    def advertise(self, addresses: Sequence[str], why: str) -> None:
        """Other peers are to dial this one at `addresses` from now on."""
        self.status.choose(why)
        self._transport.advertise(addresses)
        self._feed(lambda peer, now: peer.advertise(addresses, now))

    def decide(self, decision: Decision) -> tuple[bool, bool]:
        """Take and spread a decision of the network's operator. Returns whether it stands, and is on the disk."""
        stands = self._feed(lambda peer, now: peer.decide(decision, now))
        return stands, self._decisions.saved

    def notice(self, code: str, text: str) -> None:
        """Something about this host that the operator should read."""
        self._notices.notice(code, text, self._clock())

    def checkpoint(self, done: Callable[[Path | DataError], None] | None = None) -> bool:
        """Begin a checkpoint now; see `Checkpoints.begin`."""
        return self._checkpoints.begin(done)

    @property
    def saving(self) -> bool:
        """Whether the daemon is leaving and its last checkpoint is not written yet."""
        writes = self._checkpoints.writer.busy or not self._final_checkpoint or self._ending.writing
        return self._stopping_at < math.inf and writes

    def close(self) -> None:
        self._checkpoints.tell_given_up(self._clock())
        self._audit.close()
        for service in self._services:
            service.close()
        self._training.close()
        self._transport.close()
        self._jobs.close()
        self._checkpoints.close()
        self._metrics.close()

    # -- one turn ---------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._clock()

    def _run_id(self) -> bytes:
        return self._transport.run

    def _turn(self) -> None:
        now = self._clock()
        timer = self.peer.timer()
        if timer is not None and timer <= now:
            self.peer.handle_timer(now)
            self._drain(now)
            timer = self.peer.timer()
        services = {fd: service for service in self._services for fd in service.filenos()}
        trainers = set(self._training.filenos())
        waits = [timer, self._next_tick, self._stopping_at if now < self._stopping_at else None]
        timeout = max(0.0, min(wait for wait in waits if wait is not None) - now)
        watched = [*services, *trainers, self._jobs.fileno(), self._checkpoints.fileno()]
        arrived, readable = self._transport.poll(timeout, watched)
        now = self._clock()
        for event in arrived:
            self._audit.hear(event)
            self._network.handle(event, now)
            self._drain(now)
        for fd in readable:
            if fd == self._jobs.fileno():
                self._jobs.collect()
            elif fd == self._checkpoints.fileno():
                self._checkpoints.collect()
            elif fd in trainers:
                self._training.handle(fd, self._clock())
            elif fd in services:
                services[fd].handle(fd)
        now = self._clock()
        if now >= self._next_tick:
            self._tick(now)
        if self._stopping_at < math.inf:
            self._end(now)

    def _drain(self, now: float) -> None:
        """Send the peer's messages, submit its jobs, act on its events."""
        for envelope in self.peer.messages_to_send():
            self._transport.send(envelope.to, envelope.address, envelope.lane, envelope.frames, envelope.others)
            self._pass_points(envelope)
        while (job := self.peer.next_job()) is not None:
            if isinstance(job, jobs.Keep):
                self._checkpoints.keep(job)
            else:
                self._jobs.submit(job)
        while (event := self.peer.next_event()) is not None:
            self._act(event, now)

    def _feed(self, command: Callable[[Peer, float], T]) -> T:
        """Give the peer one command, and drain what follows from it."""
        now = self._clock()
        result = command(self.peer, now)
        self._drain(now)
        return result

    def _job_done(self, job: jobs.Job[object], result: object) -> None:
        if isinstance(job, jobs.OuterStep) and job.chunk == self._algorithm.ledger.chunks // 2:
            self._faults.passed("outer step half done")
        now = self._clock()
        self.peer.job_done(job, result, now)
        self._drain(now)

    def _pass_points(self, envelope: Envelope) -> None:
        if isinstance(envelope.message, Data):
            self._faults.passed(f"chunk {envelope.message.chunk} sent")
        elif isinstance(envelope.message, Ack):
            self._faults.passed("ACK sent")

    def _act(self, event: events.Event, now: float) -> None:
        """Log an event of the peer, tell the training process, and do what it asks of the daemon."""
        self._notices.observe(event, now)
        self._fetches.observe(event, self._jobs.parameters)
        self._audit.observe(event)
        match event:
            case events.SessionOpened():
                self._belong()
            case events.CheckpointAhead(clock, _, network):
                self._checkpoints.ahead(clock, network, now)
            case events.StateReady(origin, clock):
                self._belong()
                self._network.model_ready()
                log.info("model %s, network clock %d steps", origin, clock)
                self._checkpoints.model_ready(origin, now)
            case events.DataKnown() if self._data is not None:
                self._data.known()
            case events.Decided() | events.ReceiptsTaken():
                self._decisions.taken()
            case events.RelaysChosen(relays):
                self._transport.attend(relays, self.peer.view.carriers)
            case events.Left():
                self._stopping_at = now + LEFT_WITHIN
        self._ending.observe(event, now)
        self._training.tell(event)
        if isinstance(event, events.Finished):
            self.leave()

    def _belong(self) -> None:
        """A founder's first model begins a new run."""
        if self.peer.view.founds and not self._transport.run:
            self._transport.found(self._records.found_run())

    def _kept(self, job: jobs.Keep) -> None:
        self._job_done(job, None)

    def _damaged_data(self, text: str) -> None:
        self.notice("GD-603", text)

    def _tick(self, now: float) -> None:
        self._next_tick = now + TICK
        for service in self._services:
            service.tick(now)
        self._training.renew()
        finishing = str(self._ending.describe(now).get("text", ""))
        waiting, parameters = self._jobs.waiting, self._jobs.parameters
        self._housekeeping.tick(now, waiting, parameters, saving=self.saving, finishing=finishing)
        self._ending.tick(now)
        self._checkpoints.tick(now)
        self._decisions.tick()
        if (receipt := self._decisions.receipt()) is not None:
            self._feed(lambda peer, now: peer.received(receipt, now))
        if self._published.due():
            self._published.publish(self.describe(), self.status.members(), self._history.records)

    def _end(self, now: float) -> None:
        """The peer leaves. Once it has left, save a last checkpoint, and end when that is written or stuck."""
        if (self.status.leaving or now >= self._stopping_at) and not self._final_checkpoint:
            self._final_checkpoint = self.checkpoint(self._ending.saved) or not self.peer.view.whole
        writer = self._checkpoints.writer
        if writer.steps != self._written:
            self._written, self._written_at = writer.steps, now
        stuck_at = max(self._stopping_at, self._written_at) + writer.patience
        # A goodbye may wait for a connection that is not up yet. Without it, leaving would look like a failure.
        unsent = self._transport.queued_bytes > 0 and now < self._stopping_at + GOODBYE
        over = now >= (stuck_at if self.saving else self._stopping_at)
        self._finished = over and not unsent and not self._ending.writing
        if self._finished:
            self._housekeeping.end(now)
