"""What `attach` returns: a training process as part of its peer, with its step boundaries and its end.

At every step boundary the step is counted, corrections that have come are added, and a due snapshot is handed over. The
optimizer, its state and the loop stay the user's own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gossipdp.errors import ConfigError, DataError, UnreachableError
from gossipdp.runtime.link.daemon_status import ask_status
from gossipdp.training import open_attachments
from gossipdp.training.adapters.trackers import Points, TrackerLog, points_of
from gossipdp.training.boundaries import Boundaries
from gossipdp.training.last_step import LastStep
from gossipdp.training.loads import Loads
from gossipdp.training.messages import log
from gossipdp.training.optimizer_state.followed import Optimizers
from gossipdp.training.optimizer_state.state_file import Counts, load_state_file, save_state_file
from gossipdp.training.ranks.group import ReplicaGroup
from gossipdp.training.ranks.single import SingleReplica
from gossipdp.training.reasons import tell, tell_lost, warn
from gossipdp.training.session import Session
from gossipdp.training.step_counter import StepCounter
from gossipdp.training.tensors.master_weights import MasterWeights, put_back
from gossipdp.training.tensors.optimizers import unheld
from gossipdp.training.uncounted import Uncounted
from gossipdp.training.waiting import wait_for_last_snapshot

__all__ = ["Attachment", "Losses", "hand_over"]


LEAVE_WITHIN: Final = 2.0
LEAVE_EACH: Final = 10e-9
"""seconds that the daemon has to take the last steps, and additional seconds per parameter: a round may have to end"""


def hand_over(session: Session, layout: MasterWeights, last: LastStep | None) -> None:
    """Hand over the steps since the last snapshot, if the parameters are as `last` left them.

    One rank cannot wait for the others here, because they may be gone: it hands over what it holds itself.
    """
    within = LEAVE_WITHIN + LEAVE_EACH * layout.schema.size
    order = None if layout.sharded else wait_for_last_snapshot(session, within)
    if order is not None and (layout.replaced() or (last is not None and not last.stands())):
        cause = f"the last {session.since_snapshot} steps are not handed over"
        seen = "the parameters have changed since, for example by averaged or loaded weights"
        warn(ConfigError("GD-325", cause, seen=seen, do="call peer.detach() before they change"), session.home)
    elif order is not None:
        fence = layout.read(order.into, plus=order.plus)
        session.done(order, fence, layout.carried.copy(now=True), whole=True)


class _Copy:
    """One number on its way from a device."""

    def __init__(self, value: Tensor) -> None:
        self._number = torch.empty((), dtype=torch.float64, device="cpu", pin_memory=True)
        self._number.copy_(value.to(torch.float64), non_blocking=True)
        self._event = torch.cuda.current_stream(value.device).record_event()

    def ready(self) -> bool:
        """True once it has come; never waits."""
        done: bool = self._event.query()
        return done

    def read(self) -> float:
        """The number. Waits for it."""
        self._event.synchronize()
        return float(self._number)


class Losses:
    """The last known value of each loss, by name.

    At most one copy of a loss is under way. Of those reported meanwhile the last one follows it.
    """

    def __init__(self) -> None:
        self.known: dict[str, float] = {}
        self._copies: dict[str, _Copy] = {}
        self._next: dict[str, Tensor] = {}

    @torch.no_grad()
    def take(self, name: str, value: float | Tensor | None) -> None:
        """Take in a number, or a tensor of one element; None changes nothing. Never waits for a device."""
        if value is None:
            return
        if isinstance(value, Tensor) and value.is_cuda:
            self._next[name] = value.detach().reshape(())
            self.poll()
            return
        self._copies.pop(name, None)
        self._next.pop(name, None)
        self.known[name] = float(value)

    @torch.no_grad()
    def poll(self) -> None:
        """Read what has come, and begin the copies of what was reported since. Never waits."""
        for name in [name for name, copy in self._copies.items() if copy.ready()]:
            self.known[name] = self._copies.pop(name).read()
        for name in [name for name in self._next if name not in self._copies]:
            self._copies[name] = _Copy(self._next.pop(name))

    def finish(self) -> dict[str, float]:
        """Wait for all that was reported, and return what is known."""
        while self._copies:
            for name in [*self._copies]:
                self.known[name] = self._copies.pop(name).read()
            self.poll()
        return self.known


_parents: Final[list[object]] = []
"""in a forked child: objects that would act on the parent's device and connection if they were freed"""


class Attachment:
    """A training process as part of its peer. Returned by `attach`; also a context manager that detaches.

    Under torch.distributed every rank has one. All ranks know the same about the network, as of some steps ago.

    Example:
        with gossipdp.attach(model, optimizer) as peer:
            for batch in loader:
                loss = step(batch)
                peer.report(loss=loss)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Optimizers,
        layout: MasterWeights | None,
        session: Session | None,
        replica: SingleReplica | ReplicaGroup | None,
        samples_per_step: int,
        home: Path | None,
        timeout: float | None,
    ) -> None:
        self._model, self._optimizers, self._home = model, optimizers, home
        self._layout, self._session, self._replica = layout, session, replica
        self._world = 1 if replica is None else replica.world
        self._boundaries: Boundaries | None = None
        """while attached"""
        self._last_step = None if layout is None or layout.sharded else LastStep(layout.parameters())
        self._loads: Loads | None = None
        """while attached, in the process that talks to the daemon"""
        self._counter: StepCounter | None = None
        self._trackers: list[TrackerLog] = []
        self._losses = Losses()
        self.steps = 0
        """steps since `attach`, and before the file that `load` read; with several optimizers, those of the last, and
        of one that takes a turn of more than 16 steps"""
        self._partial = False
        """an optimizer has stepped since the last step was over"""
        self.samples_per_step = samples_per_step
        """samples that one process takes per step; set it before a step that takes another number"""
        self._samples = 0
        """samples of all steps, of all ranks"""
        self.stall_seconds = 0.0
        """training time spent at step boundaries, in seconds"""
        self._begin(timeout)

    # -- for the script ---------------------------------------------------------------------------------------

    @property
    def alone(self) -> bool:
        """True while no daemon takes part: gossip is off, the process is detached, or the daemon is gone."""
        return self._replica is None or self._replica.status.alone

    @property
    def clock(self) -> int:
        """The network's clock in steps: a joiner goes on from the others' and adds its own.

        All ranks have the same number at the same step, up to 8 steps old. Without a daemon it counts own steps on.
        """
        return self.steps if self._replica is None else self._replica.status.clock

    @property
    def network_samples(self) -> int:
        """Samples of all peers together, as known here."""
        return self._samples if self._replica is None else self._replica.status.samples

    @property
    def lost_steps(self) -> int:
        """Steps that never reached the network, because a daemon died or another model was loaded."""
        return 0 if self._replica is None else self._replica.status.lost_steps

    def step(self) -> None:
        """Count a step, in a loop without a torch optimizer or with one that cannot be followed.

        Call it after each update of the parameters, on every rank, outside of any backward pass. From the first call
        on, the steps of optimizers are not counted.

        Raises:
            ConfigError: GD-317, the optimizer puts back the weights that were corrected.
            DataError: GD-403, training gives NaN although the network's model was loaded anew.
        """
        if self._boundaries is not None:
            self._boundaries.by_hand()
            if self._layout is not None:
                # No hook runs before the next update. A copy that runs beside the training must end before it.
                self._layout.before_step()

    def schedule(self, factor: Callable[[int], float]) -> Callable[[int], float]:
        """Put a learning rate schedule on the network's clock, which a scheduler's own count does not follow.

        Args:
            factor: the factor of the learning rate at a step.

        Returns:
            A function for torch's `LambdaLR`. The scheduler has no state to save.

        Example:
            LambdaLR(optimizer, peer.schedule(lambda step: min(1.0, (step + 1) / 500)))
        """
        # A plain function: LambdaLR.state_dict() would save the attributes of any other callable.
        return lambda _: factor(self.clock)

    def report(
        self, *, loss: float | torch.Tensor | None = None, eval_loss: float | torch.Tensor | None = None
    ) -> None:
        """Show losses in `gossipdp status`, and in `gossipdp members` on every host. Metrics show that of training.

        Others see them with this peer's next round. One that is not given keeps its value.

        Args:
            loss: of training: a number or a tensor of one element. One on CUDA is shown some steps later: nothing waits
            eval_loss: of an evaluation, in the same way.
        """
        self._losses.take("loss", loss)
        self._losses.take("eval_loss", eval_loss)
        if self._session is not None:
            self._session.report(**self._losses.known)

    def log_to(self, run: Any, every: float = 10.0) -> None:
        """Log the network's state and this replica's losses to TensorBoard or an experiment tracker, until `detach`.

        A thread of the first rank writes. It drops points that the tracker has no time for. The step is `clock`.

        Args:
            run: TensorBoard's SummaryWriter, or anything else with `add_scalar(name, value, step)`; a run of W&B, or
                anything else with `log(values, step=step)`.
            every: seconds between two points.

        Raises:
            ConfigError: GD-311, `run` can do neither.
        """
        me = weakref.WeakMethod(self._point)  # an attachment whose model is gone makes room for the next
        tracker = TrackerLog(run, every, lambda: ({}, 0) if (point := me()) is None else point())
        others = dist.is_available() and dist.is_initialized() and dist.get_rank() > 0
        if self._boundaries is not None and not others:
            self._trackers.append(tracker)
            tracker.start()

    def _point(self) -> tuple[Points, int]:
        return points_of(None if self._home is None else ask_status(self._home)) | self._losses.known, self.clock

    def state_dict(self, *, sharded: bool = False) -> dict[str, torch.Tensor]:
        """The optimizers' state. The script saves it, and the network does not keep it. All ranks call it.

        Args:
            sharded: every rank gets what it holds, not copied, for `torch.distributed.checkpoint`; zeros at first.

        Returns:
            Tensors by name ("layer.weight::exp_avg"), whole and on the CPU; DTensors under `fully_shard` if `sharded`.
            Else empty on all other ranks, before the first step, and for an optimizer without state, as plain SGD.

        Raises:
            DataError: GD-610, an optimizer does not keep its state by parameters.
        """
        return self._optimizers.shards() if sharded else self._optimizers.tensors()

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load an optimizer state that `state_dict` returned, in a group of any size. Every rank calls it.

        A parameter without saved state begins as new.

        Args:
            tensors: by name, on the first rank; the other ranks' are not read. Sharded ones on every rank.

        Raises:
            DataError: GD-608, the state is of another model or optimizer, or empty; GD-610, as `state_dict`.
        """
        self._optimizers.restore(tensors)

    def save(self, path: str | os.PathLike[str], *, extra: Mapping[str, Any] | None = None) -> bool:
        """Save what this script needs to go on after a restart: the optimizers' state, its counts, and `extra`.

        Every rank calls it; the first one writes. The daemon keeps the model; while gossip is off, the file has it too.
        A full disk does not end training: a notice says so (GD-602), and the next call tries again.

        Args:
            path: of a safetensors file. Missing folders are made.
            extra: values of the script's own that JSON can hold.

        Returns:
            Whether the file is written, on every rank. If not, the file before, if any, is unchanged.

        Raises:
            DataError: GD-610, as `state_dict`.
        """
        counts = Counts(self.steps, self._samples, self.clock, self._run)
        try:
            save_state_file(path, self._model, self._optimizers, counts, extra or {}, whole=self._layout is None)
        except DataError as error:
            if error.code != "GD-602":
                raise
            if self._session is not None or self._home is None:  # one rank of a group says it
                log.warning("%s\ntraining goes on, and the next save tries again", error)
                tell(self._home, error)
            return False
        return True

    @property
    def _run(self) -> str:
        return "" if self._session is None else self._session.run.hex()

    def load(
        self, path: str | os.PathLike[str], *, missing_ok: bool = False, any_run: bool = False
    ) -> dict[str, Any] | None:
        """Go on from what `save` wrote, in a group of any size. Every rank calls it, before the first step.

        `steps` counts on. The clock stays the network's.

        Args:
            path: of the file, on the first rank.
            missing_ok: return None if there is no file, as at the first start of a script.
            any_run: load the state of another network's run, too, such as of a network that was founded again.

        Returns:
            The `extra` that `save` was given; {} if it was given none.

        Raises:
            DataError: GD-601, the file is damaged; GD-604, there is none; GD-608, it is of another model, optimizer
                or run, or was saved in a network while gossip is off; GD-610, as `state_dict`.
        """
        whole = self._layout is None
        run = "" if any_run else self._run
        found = load_state_file(path, self._model, self._optimizers, whole=whole, missing_ok=missing_ok, run=run)
        if found is None:
            return None
        self.steps, self._samples, clock, _ = msgspec.structs.astuple(found.counts)
        if self.clock < clock:
            log.warning("the network's model is of step %d, older than the saved state of step %d", self.clock, clock)
        return found.extra

    def detach(self) -> None:
        """Hand over the last steps and leave the network. Training may go on with the bare optimizer."""
        if not self._stop() or self._layout is None:
            return
        if self._partial:
            self._count(None)  # a loop that ends between the steps of two optimizers
        if self._replica is not None:
            self._replica.settle()
        if self._session is not None:
            self._session.report(**self._losses.finish())
            self._session.stalled(self.stall_seconds)
            hand_over(self._session, self._layout, self._last_step)
            self._tell_lost(self._session)
            self._layout.finish()
            self._session.close()

    def _tell_lost(self, session: Session) -> None:
        """Training ends. If it is alone, the daemon hears why. Without a daemon for a while, only the last steps go."""
        if (error := session.left_alone) is not None:
            alone = not isinstance(error, UnreachableError)
            tell_lost(self._home, error, session.since_snapshot, alone=alone)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    # -- beginning and end ------------------------------------------------------------------------------------

    def _begin(self, timeout: float | None) -> None:
        """Wait for the network's model, load it, and count steps from then on."""
        try:
            if self._replica is not None:
                self._replica.begin(timeout)
        except BaseException:
            # The daemon has room for one process: the next attach, which may succeed, must find it free.
            self._leave()
            raise
        stepping = threading.Event()
        self._boundaries = Boundaries(
            self._model,
            self._optimizers.all,
            before=self._before_step,
            begins=self._optimizers.groups.begins,
            ends=self._optimizers.groups.ends,
            over=self._after_step,
            partly=self._step_partly_over,
            changed=self._follow,
            stepping=stepping,
        )
        self._optimizers.watch()
        if self._session is not None:
            uncounted = Uncounted(self._model, self._session.report_uncounted, stepping)
            self._counter = StepCounter(self._session, self._optimizers.moments, uncounted)
            uncounted.start()
            self._loads = Loads(self._model)
            if self._last_step is not None:
                self._last_step.over()
                self._loads.watch_first(self._last_step.written)
        if self._home is not None:
            open_attachments.add(
                self._home, self, at_exit=Attachment._at_exit, leave_to_parent=Attachment._leave_to_parent
            )

    def _stop(self) -> bool:
        """See no more steps. Returns False if this attachment had stopped already."""
        open_attachments.remove(self)
        self._end_threads()
        self._optimizers.unwatch()
        loads, self._loads = self._loads, None
        if loads is not None:
            loads.close()
        boundaries, self._boundaries = self._boundaries, None
        if boundaries is not None:
            boundaries.close()
        return boundaries is not None

    def _end_threads(self) -> None:
        if self._counter is not None:
            self._counter.close()
        while self._trackers:
            self._trackers.pop().close()

    def _leave(self) -> None:
        """Leave the network without the last steps."""
        if self._replica is not None:
            self._replica.settle()
        if self._session is not None and self._layout is not None:
            self._layout.finish()
            self._session.close()

    def _at_exit(self) -> None:
        """The process ends. A script that ends without `detach` has not died; one that an exception ended has."""
        self._end_threads()
        if getattr(sys, "last_value", None) is None:
            self._go()

    def _go(self) -> None:
        """Leave on purpose, at the end of the process or of the attached model."""
        if not isinstance(self._replica, ReplicaGroup):
            self.detach()
            return
        self._end_threads()
        # Other ranks may be gone already: nothing may be done together any more.
        if self._session is not None:
            self._tell_lost(self._session)
        self._replica.farewell()

    def _leave_to_parent(self) -> None:
        """In a forked child: this is no part of a peer, and does not touch the parent's connection and memory."""
        _parents.append((self._layout, self._session, self._replica))
        self._layout = self._session = self._replica = None

    def __del__(self) -> None:
        # The script has dropped its model, and attaches another. At the end of the process `_at_exit` has run.
        left = getattr(self, "_boundaries", None) is None or self._layout is None
        if not left and not sys.is_finalizing():
            log.info("detached: the attached model is gone")
            self._go()

    # -- the step boundary ------------------------------------------------------------------------------------

    def _follow(self, optimizers: tuple[torch.optim.Optimizer, ...]) -> None:
        """These are the optimizers now: one was made anew, or has other parameters."""
        self._optimizers.follow(optimizers)
        if self._layout is not None:
            self._layout.follow(self._model, optimizers)
            for error in unheld(self._model, optimizers):
                warn(error, self._home)

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._layout is not None:
            self._layout.before_step()
            self._layout.stepping()
        loads, last = self._loads, self._last_step
        if loads is not None:
            loads.steps_begin()
            if last is not None:
                if loads.noticed and last.stands():
                    loads.undo()  # an evaluation with averaged weights puts back those of the last step
                if not loads.noticed:
                    last.begins()
        self._optimizers.before_step(optimizer)

    def _step_partly_over(self) -> None:
        """One of several optimizers has stepped."""
        self._partial = True
        if self._counter is not None:
            self._counter.partly()
        if self._session is not None and self._last_step is not None:
            self._last_step.over()

    def _count(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Count a step that `optimizer` has made last; None if it is not known."""
        self._partial = False
        self.steps += 1
        samples = self.samples_per_step * self._world
        self._samples += samples
        if self._counter is not None:
            self._counter.step(optimizer, samples)

    def _after_step(self, optimizer: torch.optim.Optimizer | None) -> None:
        began = time.perf_counter()
        if self._layout is not None and self._layout.undone():
            self._refuse_master_weights()
        self._count(optimizer)
        if self._layout is None or self._replica is None:
            return
        self._replica.poll()
        if self._session is not None:
            self._losses.poll()
            self._session.stalled(self.stall_seconds)
            if self._replica.acts and (name := self._layout.replaced()):
                self._replaced(name)
            if self._loads is not None and self._loads.take():
                self._session.reloaded()
        try:
            self._replica.step_boundary()
        except DataError:
            self._stop()
            raise
        if self._session is not None and self._last_step is not None:
            self._last_step.over()
        self.stall_seconds += time.perf_counter() - began

    def _replaced(self, name: str) -> None:
        """The script has replaced parameters of the model, as it loads weights."""
        assert self._layout is not None
        log.warning(
            "%s was replaced after attach: the new tensor is exchanged in its place, and counts as loaded weights; do: "
            "replace parameters before attach, on every host",
            name,
        )
        if self._last_step is not None:
            self._last_step = LastStep(self._layout.parameters())
        if self._loads is not None:
            self._loads.close()
            self._loads = Loads(self._model)
            self._loads.load()

    def _refuse_master_weights(self) -> NoReturn:
        """Leave before this step reaches the network."""
        self._stop()
        self._leave()
        raise put_back(self._optimizers.names)
