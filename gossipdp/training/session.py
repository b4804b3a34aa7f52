"""What a training process does with its daemon: it carries out orders, hands over snapshots and reports.

`next_order` says what to move between the live parameters and the shared memory, and `done` says that it was moved.
Nothing here waits (see `waiting`) or touches a tensor.
"""

from __future__ import annotations

import math
from typing import Final

from gossipdp.protocol.wire.messages import MOST_STEPS
from gossipdp.runtime import link as links
from gossipdp.training.dialogue import Dialogue, Mode, Phase
from gossipdp.training.orders import (
    Drain,
    Keep,
    Load,
    LoadMoments,
    LoadState,
    Order,
    SendMoments,
    Snapshot,
    Write,
)
from gossipdp.training.tensors.carried import StateCopy
from gossipdp.training.tensors.streams import Fence, passed

__all__ = ["Session"]

REPORT_EVERY: Final = 0.5
"""seconds between reports"""


class Session(Dialogue):
    """The training process's side of one attachment.

    It takes what `Dialogue` takes.
    """

    @property
    def hopeless(self) -> bool:
        """True if training gives only NaN and a new model has not helped."""
        return self._healing.hopeless

    @property
    def mode(self) -> Mode:
        """When corrections reach the live parameters; the daemon's setting."""
        return self._terms.mode

    @property
    def run(self) -> bytes:
        """The network's run that this process trains in; b"" before its first model."""
        return self._terms.run

    @property
    def every(self) -> int:
        """Steps between snapshots."""
        return self._own_every or self._daemon_every

    @property
    def samples(self) -> int:
        """The network's samples, as known here."""
        return self._accounts.all_samples

    @property
    def since_snapshot(self) -> int:
        """Steps since the last snapshot."""
        return self._accounts.steps

    @property
    def lost_steps(self) -> int:
        """Steps of this process and the network that are missing from models loaded again."""
        return self._accounts.lost_steps

    @property
    def kept_steps(self) -> int:
        """Optimizer steps behind the moments that the daemon keeps for this process; 0: it keeps none."""
        return self._terms.moments

    @property
    def next_snapshot(self) -> int:
        """Number of the next snapshot."""
        return self._times.number + 1

    @property
    def idle(self) -> bool:
        """True while no message to the daemon waits for a copy to end."""
        return self._connection.idle

    @property
    def takes_snapshot(self) -> bool:
        """True if the daemon has read the last snapshot and moments."""
        return self._phase is Phase.OPEN and self._accounts.handed is None and not self._moments.open

    @property
    def due_in(self) -> int | None:
        """Steps until a snapshot is due, 0 if it is; None while none can be taken."""
        if not self.takes_snapshot:
            return None
        steps = self._accounts.steps
        late = self._times.overdue(self.now()) and steps > 0
        return 0 if late else max(0, self.every - steps)

    @property
    def acts(self) -> bool:
        """True if `next_order` may tell to read or to change the live parameters now."""
        if self._phase is not Phase.OPEN:
            return self._phase in (Phase.WRITING, Phase.ARRIVED)
        return self.due_in == 0 or (bool(self._corrections) and self.mode != "overlap")

    @property
    def patience(self) -> float:
        """With mode sync: seconds that training still waits for the round of the last snapshot, at most.

        Training waits for the round's own exchanges only, and never for a daemon that is gone.
        """
        if self._phase is not Phase.OPEN or self._connection.link is None:
            return 0.0
        return self._times.patience(self.now())

    # -- training ---------------------------------------------------------------------------------------------------

    def expect_moments(self, *, held: bool, wanted: bool) -> None:
        """Call once before the first Write.

        Args:
            held: the optimizer has moments that can be sent to the daemon.
            wanted: the optimizer has made no step, and can start from moments.
        """
        self._has_moments, self._wants_moments = held, wanted

    def stepped(self, steps: int, samples: int) -> None:
        """Count `steps` more optimizer steps; negative if some turn out to have been skipped."""
        self._accounts.stepped(steps, samples)

    def reloaded(self) -> None:
        """The script has loaded other weights. The daemon says whether they become the model, or give way to it."""
        self._weights_loaded = True
        if self._phase is Phase.OPEN:
            self._attach_again()
            self.poll()

    def stalled(self, seconds: float) -> None:
        """Training has lost `seconds` to gossip so far."""
        self._stall_seconds = seconds

    def report(self, loss: float | None = None, eval_loss: float | None = None) -> None:
        """Send the losses and the stall to the daemon, at most every `REPORT_EVERY` seconds."""
        self._loss = self._loss if loss is None else loss
        self._eval_loss = self._eval_loss if eval_loss is None else eval_loss
        now, link = self.now(), self._connection.link
        if self._phase is Phase.OPEN and self._connection.idle and now - self._reported_at >= REPORT_EVERY:
            assert link is not None
            self._reported_at = now
            link.send(self._report())

    def report_uncounted(self) -> None:
        """Tell the daemon that parameters change and no step is counted. Any thread may call this."""
        if (link := self._connection.link) is not None and self._phase is Phase.OPEN:
            link.send(self._report(uncounted=True))

    def _report(self, *, uncounted: bool = False) -> links.Report:
        lost, stall = self.lost_steps, self._stall_seconds
        return links.Report(self.number, self._loss, stall, lost, uncounted, self._eval_loss, self.layout.unpinned)

    # -- orders -----------------------------------------------------------------------------------------------------

    def next_order(self, ahead: int = 0) -> Order | None:
        """What to do next. A Drain is handed out once; other orders are repeated until they are `done`.

        Args:
            ahead: steps until the order can be carried out. With mode overlap, Drains wait for the step of the next
                snapshot.
        """
        link = self._connection.link
        if link is None or link.region is None:
            return None
        region = link.region
        if self._phase is Phase.WRITING:
            return Write(region.buffers[0])
        if self._phase is Phase.ARRIVED and self._terms.kept:
            return Keep(self.number, self._terms.clock)
        if self._phase is Phase.ARRIVED:
            return Load(self.number, region.buffers[0], self._terms.clock, link.carried, self._healing.due)
        if self._state_is_new and self._phase is Phase.OPEN:
            return LoadState(self.number, link.carried.state)
        sends_moments = self._phase is Phase.OPEN and self._accounts.handed is None and self._moments.due
        soon = self.due_in is not None and self.due_in <= ahead
        if sends_moments or soon:
            self.claims()
        if self._drains(soon):
            return self._corrections.take(region)
        # Moments come before a snapshot: where one is due at every step, they would never have their turn.
        if sends_moments and (free := self._free()) is not None:
            return SendMoments(self.number, self._moments.next(), region.raw[free])
        return self.snapshot() if self.due_in == 0 else None

    def claims(self) -> bool:
        """Take the free buffer. It stays this process's until a Snapshot or SendMoments is done.

        Returns:
            False while the daemon has it, or its last slot is not taken to be drained.
        """
        link = self._connection.link
        if self._sealed is None and self._phase is Phase.OPEN and link is not None and link.region is not None:
            self._sealed = link.region.take()
        return self._sealed == self._corrections.taken

    def _free(self) -> int | None:
        """Which buffer is for a snapshot or moments of the live parameters; None while there is none."""
        return None if self._sealed is None or self._sealed != self._corrections.applied else self._sealed % 2

    def _drains(self, soon: bool) -> bool:
        """True if corrections are to be drained now; with mode overlap, only with a snapshot that can be written."""
        if not self._corrections or self._phase is not Phase.OPEN:
            return False
        return self.mode != "overlap" or (soon and self._sealed is not None)

    def snapshot(self) -> Snapshot | None:
        """The order to hand over the steps since the last snapshot. None if there are none, or it cannot be taken."""
        link = self._connection.link
        if link is None or link.region is None or not self._accounts.steps or self.due_in is None:
            return None
        if not self.claims() or (free := self._free()) is None:
            return None
        return Snapshot(self.number, self.next_snapshot, self._corrections.applied, link.region.buffers[free])

    def last_snapshot(self) -> Snapshot | None:
        """As `snapshot`, for a process that leaves. It adds a slot that is out to the snapshot, not to parameters."""
        link = self._connection.link
        if link is None or link.region is None or not self._accounts.steps or self.due_in is None:
            return None
        self.claims()
        slot = self._corrections.undrained(link.region)
        if slot is None or slot.slot != self._sealed:
            return self.snapshot()
        return Snapshot(self.number, self.next_snapshot, slot.slot, slot.values, slot.spans)

    def done(
        self,
        order: Order,
        fence: Fence,
        state: StateCopy | None = None,
        *,
        optimizer_steps: int = 0,
        whole: bool = False,
    ) -> None:
        """`order` was carried out. Its memory is free, or written, once `fence` is passed.

        Args:
            state: with Write and Snapshot, the carried state, if it is due.
            optimizer_steps: with SendMoments, steps that the optimizer has made.
            whole: with Snapshot, this process alone has written it for its whole group.
        """
        here = isinstance(order, Write) or order.session == self.number
        match order:
            case Write() if self._phase is Phase.WRITING:
                written = self._accounts.wrote()
                run = self._terms.run if self._loads and not self._healing.due else b""
                clock, steps, samples = written if run else (0, 0, 0)
                ready = links.Ready(self._wants_moments, run, clock, steps, samples, loaded=self._weights_loaded)
                self._connection.send(fence, ready, state)
                self._phase = Phase.WAITING
            case Load(carried=carried) if here and self._phase is Phase.ARRIVED:
                self._state_loaded(carried.state)
                self._model_loaded()
                if not self._inherits:
                    self._connection.send(fence, links.Applied(self.number, 0))
            case Keep() if here and self._phase is Phase.ARRIVED:
                self._model_kept()
                self._connection.send(fence, links.Applied(self.number, 0))
            case LoadState(state=loaded) if here:
                self._state_loaded(loaded)
            case Drain(session, slot) if here and self._phase is Phase.OPEN:
                self._corrections.drained(slot)
                self._connection.send(fence, links.Applied(session, slot))
            case Snapshot(session, number, applied) if here and self._phase is Phase.OPEN:
                if number == self.next_snapshot:
                    handed = self._accounts.hand(number)
                    message = links.Submit(
                        session,
                        number,
                        applied,
                        handed.steps,
                        handed.samples,
                        self._loss,
                        whole,
                        eval_loss=self._eval_loss,
                    )
                    self._connection.send(fence, message, state)
                    self._sealed = None
                    self._times.submitted(number, self.now())
            case SendMoments(session, number) if here and self._phase is Phase.OPEN:
                steps = min(max(0, optimizer_steps), MOST_STEPS)
                self._connection.send(fence, links.Moments(session, number, steps, self._corrections.applied))
                self._sealed = None
        self._flush()
        if isinstance(order, Snapshot):
            self.report()

    def wants(self, order: SendMoments) -> bool:
        """True while the daemon that this order is for is there."""
        return order.session == self.number and not self.alone

    def withdraw(self, order: Order | None) -> None:
        """`order` will not be carried out."""
        if isinstance(order, SendMoments) and self.wants(order):
            self._moments.undo()

    # -- moments for a new optimizer --------------------------------------------------------------------------------

    def ask_moments(self) -> None:
        """Ask the daemon for the moments that it keeps. It puts them where the model stood."""
        self.layout.finish()  # a device may still copy from there
        self._moments_given = False
        self._connection.send(passed, links.WantMoments(self.number))

    def given_moments(self) -> LoadMoments | None:
        """The order to load the moments that were asked for; None before the daemon has brought them."""
        link = self._connection.link
        if link is None or link.region is None or not self._moments_given:
            return None
        return LoadMoments(self.kept_steps, link.region.raw[0])

    def inherited(self) -> None:
        """The moments are loaded, on every rank: the buffer is free."""
        if self._inherits and self._phase is Phase.OPEN:
            self._inherits = False
            self._connection.send(passed, links.Applied(self.number, 0))
            self._flush()

    # -- the end ----------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for a message of the daemon, or its end."""
        if self._connection.link is not None:
            self._connection.link.wait(seconds)

    def close(self) -> None:
        """Leave. Every fence must be passed."""
        self._reported_at = -math.inf
        self._flush()
        self.report()
        self.farewell()
        self._drop()
        self._phase = Phase.OVER
