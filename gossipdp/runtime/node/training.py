"""The node's sessions with its training process: what comes over the link, and what of the peer's events goes back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gossipdp.algorithms.ledger import Keep
from gossipdp.protocol import events
from gossipdp.protocol.carried_state import NOTHING
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.transfer.claims import Live
from gossipdp.protocol.transfer.moments import Moments
from gossipdp.protocol.wire.messages import short
from gossipdp.runtime import link
from gossipdp.runtime.compute import Call
from gossipdp.runtime.faults import FaultPoint
from gossipdp.runtime.link.state_delivery import StateDelivery
from gossipdp.runtime.moments import ROUNDS, MomentsCopier
from gossipdp.runtime.node.context import NodeContext
from gossipdp.runtime.node.vector_jobs import SharedRegion

__all__ = ["TrainingSessions"]

log = logging.getLogger("gossipdp.node")

REFUSED = 3
"""snapshots refused in a row after which a training process loads the model again"""
LINK_CODES = {
    "GD-301": ("this model is not the network's", "train the network's model, or found another network"),
    "GD-303": ("this script excludes other tensors than the network's", "pass the same `exclude` on all hosts"),
}


class TrainingSessions:
    """The training processes that attach to the daemon, one session after another.

    Args:
        region: the memory shared with the training process.
        call: runs pieces of work on the compute threads.
        keep: called with encoded moments.
        drain: acts on what the peer has to say after a command.
    """

    def __init__(
        self,
        context: NodeContext,
        server: link.LinkServer,
        region: SharedRegion,
        *,
        call: Call,
        keep: Keep,
        drain: Callable[[float], None],
        faults: FaultPoint,
    ) -> None:
        self._config, self._algorithm = context.config, context.algorithm
        self._peer, self._view = context.peer, context.peer.view
        self._status, self._metrics, self._notices = context.status, context.metrics, context.notices
        self._run, self._clock = context.run, context.clock
        self._server, self._region, self._drain, self._faults = server, region, drain, faults
        self._states = StateDelivery(server.send)
        self._moments = MomentsCopier(call, keep)
        self._schema = b""
        """the attached process's schema, in canonical bytes"""
        self._lost_steps = self._unpinned = 0
        """as the training process last reported"""

    def filenos(self) -> Sequence[int]:
        return self._server.filenos()

    def handle(self, fd: int, now: float) -> None:
        """Descriptor `fd` is readable."""
        for event in self._server.handle(fd):
            self._take(event, now)
            self._drain(now)

    def renew(self) -> None:
        """Listen anew if the socket's file is gone."""
        self._server.renew()

    def close(self) -> None:
        self._server.close()

    def hurry(self) -> bool:
        """The run ends: ask for one more snapshot, at the next step. False if there is none to wait for."""
        view = self._view
        if not view.session_open:
            return False
        self._server.send(link.Pace(1, view.clock, view.network_samples))
        return True

    def end(self) -> None:
        """The run ends: send the training process away. If it lives on, it trains alone."""
        self._server.refuse("GD-322", "the run of this peer ends", "", "end the script, and see `gossipdp status`")

    # -- from the training process ----------------------------------------------------------------------------

    def _take(self, event: link.LinkEvent, now: float) -> None:
        match event:
            case link.Attached(schema, _, pid):
                self._schema = schema
                assert self._server.region is not None
                self._region.attach(self._server.region)
                self._status.attached(pid)
                self._faults.attached(pid)
            case link.ModelWritten() if self._view.finishing:
                self.end()
            case link.ModelWritten():
                live, carried = self._live(event), event.carried
                self._peer.attach(self._schema, now, carried=carried, moments=event.empty, live=live)
                if not self._view.ready and not self._view.founds:
                    log.info("a training process waits for the model")
            case link.Submitted():
                submitted = (event.session, event.snapshot, event.applied, event.steps, event.samples)
                self._region.free.received("snapshot")
                state = self._states.submitted(event.session, event.state)
                self._peer.submit(*submitted, now, state=state, losses=(event.loss, event.eval_loss))
            case link.SlotApplied(session, 0):
                if session == self._view.session:
                    self._region.free.done("model")
            case link.SlotApplied(session, slot):
                self._peer.slot_applied(session, slot, now)
            case link.MomentsWritten():
                self._read_moments(event)
            case link.MomentsWanted():
                self._write_moments(event)
            case link.Reported():
                self._reported(event, now)
            case link.RankLost(rank, pid):
                self._notices.notice("GD-501", f"rank {rank} of the training group (process {pid}) died", now)
            case link.Told():
                self._notices.notice(event.code, event.text, now)
                self._status.told(event.code, event.text, event.exit, alone=event.alone)
                self._metrics.count_lost_steps(event.lost_steps)
            case link.TurnedAway(pid, attached):
                log.warning("a second training process (%d) is turned away: process %d is attached", pid, attached)
                self._status.turned_away(pid, attached)
            case link.Detached(reason, left):
                log.info("the training process is gone: %s", reason)
                self._states.end()
                self._status.detached(left=left)
                self._faults.detached()
                self._region.detach()
                self._peer.detach(now)

    def _live(self, event: link.ModelWritten) -> Live | None:
        """What the process has trained with an earlier daemon of this run, if it has."""
        run = self._run()
        same = event.run == run if run else self._view.founds
        return Live(event.clock, event.steps, event.samples, event.loaded) if event.run and same else None

    def _read_moments(self, event: link.MomentsWritten) -> None:
        model, region = self._view.model, self._region.region
        self._region.free.received("moments")
        if event.session != self._view.session or model is None or region is None:
            self._region.free.done("moments")
            return  # the process has lost its session, and will hear of it

        def done(moments: Moments | None) -> None:
            if moments is not None:
                now = self._clock()
                self._peer.hold_moments(moments, now)
                self._drain(now)
            self._server.send(link.MomentsTaken(event.number))
            self._region.free.done("moments")

        self._moments.read(event.steps, region.raw[event.applied % 2], model.schema, done)

    def _write_moments(self, event: link.MomentsWanted) -> None:
        model, region, held = self._view.model, self._region.region, self._view.moments
        if event.session != self._view.session or model is None or region is None or held is None:
            return
        self._moments.write(region.raw[0], held, model.schema, lambda: self._server.send(link.MomentsGiven()))

    def _reported(self, event: link.Reported, now: float) -> None:
        if event.uncounted:
            self._notices.notice("GD-321", "the training process changes parameters, but counts no step", now)
        if event.unpinned > self._unpinned:
            text = f"CUDA cannot pin {event.unpinned / 1e9:.2f} GB of the memory shared with the training process"
            self._notices.notice("GD-508", f"{text}: training waits for their copies", now)
        self._unpinned = event.unpinned
        self._status.reported(event.loss, event.eval_loss, event.stall_seconds)
        if event.lost_steps > self._lost_steps:
            self._metrics.count_lost_steps(event.lost_steps - self._lost_steps)
        self._lost_steps = event.lost_steps

    # -- from the peer ----------------------------------------------------------------------------------------

    def tell(self, event: events.Event) -> None:
        """Tell the training process what an event of the peer means for it."""
        view, send = self._view, self._server.send
        match event:
            case events.SessionOpened():
                self._open(event)
            case events.StateRenewed() if self._status.training and view.model is not None:
                self._states.renew(view.session, view.model.carried.state)
            case events.SessionRefused(code, reason, mismatch):
                cause, do = LINK_CODES.get(code, ("the model cannot be used", ""))
                log.error("%s %s: %s", code, cause, reason, extra={"code": code})
                self._server.refuse(code, cause, reason, do, mismatch)
            case events.Pace() | events.RoundDone():
                if self._status.training and not view.finishing:
                    send(link.Pace(view.every, view.clock, view.network_samples))
            case events.SlotSealed(slot, chunks):
                send(link.Slot(view.session, slot, link.chunk_bits(chunks)))
            case events.RoundSettled(snapshot):
                send(link.Settled(snapshot))
            case events.SnapshotTaken(snapshot, refused):
                send(link.Taken(snapshot, refused or ""))
                self._region.free.done("snapshot")
            case events.TransferProgress(source, chunks, of):
                if chunks % max(1, of // 10) == 0:
                    send(link.Waiting(f"model from {short(source)}", chunks / of))
            case events.ResyncBegan(Reason.LATE, behind=behind):
                send(link.Waiting(f"the model here is {behind} steps old and is fetched again", 0.0))
            case events.MomentsProgress(source, chunks, of):
                if chunks % max(1, of // 10) == 0:
                    send(link.Waiting(f"the optimizer's moments from {short(source)}", chunks / of))

    def _open(self, opened: events.SessionOpened) -> None:
        view, config = self._view, self._config
        self._states.end()
        carried = NOTHING if view.model is None else view.model.carried
        held = view.moments
        message = link.Session(
            opened.session,
            view.every,
            view.clock,
            self._algorithm.ledger.chunk_parameters,
            config.mode,
            config.deadline,
            ROUNDS if view.takes_moments else 0,
            0 if held is None else held.steps,
            self._run(),
            opened.kept,
            REFUSED if config.heal else 0,
            carried != NOTHING,
            opened.apart,
        )
        if not opened.kept and message.clock:
            log.info(
                "the training process starts from the network's model of step %d: its own was %.0f %% of that model's "
                "norm away",
                message.clock,
                100.0 * opened.apart,
            )
        self._server.send(message, [] if carried == NOTHING else [carried.reference, carried.state])
