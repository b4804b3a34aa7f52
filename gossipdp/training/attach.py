"""`attach(model, optimizer)`: one line that makes a training loop a peer.

At every step boundary (see `boundaries`) it counts the step, adds the corrections that have come to the parameters, and
hands over a snapshot every `every` steps (algorithms section 1). The optimizer, its state and the loop stay the user's
own. Nothing here waits for the network but `attach` itself. Nothing raises once training runs, except for an optimizer
that turns out to undo the first corrections, or to step where they cannot be added.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from gossipdp.errors import ConfigError, DataError
from gossipdp.runtime.link import Link, default_home, expanded, expected
from gossipdp.training import attached
from gossipdp.training.boundaries import Boundaries, Removable
from gossipdp.training.exit_code import tell_uncaught
from gossipdp.training.grad_scaler import SkippedSteps
from gossipdp.training.healing import hopeless
from gossipdp.training.last_step import LastStep
from gossipdp.training.optimizer_state.adam import AdamMoments
from gossipdp.training.optimizer_state.state_dict import optimizer_tensors, reset_optimizers, restore_optimizer
from gossipdp.training.orders import MOMENTS, moment_of
from gossipdp.training.ranks.group import ReplicaGroup, together
from gossipdp.training.session import Drain, Keep, Load, Order, Renew, Session, Snapshot, Tell, Write
from gossipdp.training.tensors.excluded import Exclude, excluded_names
from gossipdp.training.tensors.layout import passed
from gossipdp.training.tensors.master_weights import Watched
from gossipdp.training.tensors.optimizers import followed, refuse_strangers, tell_unheld
from gossipdp.training.tensors.parts import Modules, as_one
from gossipdp.training.uncounted import Uncounted

__all__ = ["Attachment", "Progress", "attach"]

log = logging.getLogger("gossipdp.training")

LEAVE_WITHIN: Final = 2.0
"""seconds `detach` waits for the daemon to take the last steps"""


class Progress(NamedTuple):
    """The network's clock: what all peers have done, as far as it is known here."""

    clock: int
    """steps; a joiner takes the network's over, and adds its own"""
    samples: int
    """of all peers together"""


_BY_HAND: Final[list[torch.optim.Optimizer]] = []
"""no optimizer: the loop says itself when a step is over"""
_of_parent: Final[list[object]] = []
"""in a forked child: what would act on the parent's device and connection if it were freed"""


class Attachment:
    """A training process as part of its peer. Made by `attach`; also a context manager that detaches.

    Under torch.distributed every rank has one. All know the same of the network, as of some steps ago, so that a
    learning rate may follow `progress`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: tuple[torch.optim.Optimizer, ...],
        layout: Watched | None,
        session: Session | None,
        group: ReplicaGroup | None,
        samples_per_step: int,
        home: Path | None,
    ) -> None:
        self._model, self._optimizers, self._home = model, optimizers, home
        self._layout, self._session, self._group = layout, session, group
        self._moments = None if layout is None else AdamMoments.find(layout, model, optimizers)
        self._world = 1 if group is None else group.world
        self._boundaries: Boundaries | None = None
        """while attached"""
        self._hooks: list[Removable] = []
        self._skipped = SkippedSteps()
        self._last_step = None if layout is None or layout.sharded else LastStep(layout.parameters())
        self._uncounted: Uncounted | None = None
        self.steps = 0
        """steps since `attach`; of several optimizers, those of the last"""
        self.samples_per_step = samples_per_step
        """samples one process takes a step; may be set before a step that takes another number"""
        self._samples = 0
        """of all steps here"""
        self.stall_seconds = 0.0
        """training time lost to gossip: everything done at step boundaries"""

    @property
    def alone(self) -> bool:
        """No daemon takes part at the moment: gossip is off, detached, or the daemon is gone."""
        if self._group is not None:
            return self._group.announced.alone
        return True if self._session is None else self._session.alone

    @property
    def progress(self) -> Progress:
        if self._group is not None:
            return Progress(self._group.announced.clock, self._group.announced.samples)
        if self._session is not None:
            return Progress(self._session.clock, self._session.samples)
        return Progress(self.steps, self._samples)

    @property
    def lost_steps(self) -> int:
        """Steps that the network never had, because a daemon died or another model was loaded."""
        if self._group is not None:
            return self._group.announced.lost_steps
        return 0 if self._session is None else self._session.lost_steps

    def step(self) -> None:
        """A step is over: for a loop that steps without a torch optimizer, or with one that cannot be followed.

        Call it after each update of the parameters, on every rank, where no gradient is being computed. From the first
        call on, the steps of optimizers are not counted.
        """
        if self._boundaries is not None:
            self._boundaries.by_hand()
            if self._layout is not None:
                # The next update calls no hook: what is copied beside it must be copied before.
                self._layout.before_step()

    def report(self, *, loss: float | torch.Tensor) -> None:
        """Show `loss` in metrics and status. A tensor is read at once, which on CUDA waits for the device."""
        if self._session is not None:
            self._session.loss = loss.item() if isinstance(loss, torch.Tensor) else float(loss)
            self._session.report()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What the network does not keep of this training: the optimizers' state, by name, whole, on the CPU.

        For the training process's own checkpoint: every rank calls it, and the first one saves what it is given
        (`safetensors.torch.save_file(state, path)`). That of the others is empty, and so is the first one's where
        nothing is kept: before the first step, of plain SGD.

        Raises:
            DataError: GD-610, an optimizer keeps its state otherwise than by parameters.
        """
        return optimizer_tensors(self._model, self._optimizers)

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on with these moments, saved by `state_dict` in a group of any size. Collective; the first rank's count.

        A parameter of which nothing is there begins as new.

        Raises:
            DataError: GD-608, they are of another model or optimizer, or those of another rank than the first: none;
                GD-610, as `state_dict`.
        """
        self._refuse_nothing(tensors)
        restore_optimizer(self._model, self._optimizers, tensors)
        if self._moments is not None:
            self._moments.recount()

    def _refuse_nothing(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Of several ranks only the first has a state to save: one that is empty was another's, or there was none."""
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return
        nothing = [not tensors and any(map(_keeps, self._optimizers))]
        # NCCL would bring it to the current device, which may be another rank's.
        dist.broadcast_object_list(nothing, 0, device=next(self._model.parameters()).device)
        if nothing[0]:
            raise DataError(
                "GD-608",
                "there is no optimizer's state in this",
                seen="nothing, as every rank but the first is given by state_dict()",
                do="save on the first rank only; load nothing where nothing was saved",
            )

    def detach(self) -> None:
        """Hand over the last steps and leave; training may go on as with the bare optimizer."""
        if not self._stop() or self._layout is None:
            return
        if self._group is not None:
            self._group.settle()
        if self._session is not None:
            self._session.stall_seconds = self.stall_seconds
            # One rank cannot wait for the others here, for they may be gone: it hands over what it holds by itself.
            order = None if self._layout.sharded else self._session.last_order(LEAVE_WITHIN)
            if order is not None and self._last_step is not None and not self._last_step.stands():
                log.warning(
                    "the last %d steps are not handed over: the parameters have changed since, as averaged or loaded"
                    " weights do; do: call peer.detach() before that",
                    self._session.since_snapshot,
                )
            elif order is not None:
                told = self._layout.beside.told(now=True)
                self._session.done(order, self._layout.read(order.into), told, whole=True)
            self._layout.finish()
            self._session.close()

    def _at_exit(self) -> None:
        """The process ends. A script that ends without `detach` has not died; one that an exception ended has."""
        if self._uncounted is not None:
            self._uncounted.close()
        if getattr(sys, "last_value", None) is None:
            self._go()

    def _go(self) -> None:
        if self._group is None:
            self.detach()
            return
        if self._uncounted is not None:
            self._uncounted.close()
        # Other ranks may be gone already: nothing may be done together any more.
        self._group.farewell()
        if self._session is not None:
            self._session.farewell()

    def _leave_to_parent(self) -> None:
        """In a forked child: this is no part of a peer, and the parent's connection and memory are left alone."""
        _of_parent.append((self._layout, self._session, self._group))
        self._layout = self._session = self._group = None

    def __del__(self) -> None:
        # The script has dropped its model, and attaches another. At the end of the process `_at_exit` has had its say.
        left = getattr(self, "_boundaries", None) is None or self._layout is None
        if not left and not sys.is_finalizing():
            log.info("detached: the attached model is gone")
            self._go()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    # -- the step boundary ------------------------------------------------------------------------------------

    def _begin(self, timeout: float | None) -> None:
        try:
            self._load(timeout)
        except BaseException:
            # The daemon has room for one: the next attach, which may be the right one, must find it free.
            self._leave()
            raise
        self._boundaries = Boundaries(
            self._model, self._optimizers, before=self._before_step, over=self._after_step, changed=self._follow
        )
        self._hooks += [] if self._moments is None else self._moments.watch()
        if self._session is not None:
            self._uncounted = Uncounted(self._model, self._session.tell_uncounted, Attachment._after_step.__code__)
            self._uncounted.start()
        if self._home is not None:
            attached.add(self._home, self, at_exit=Attachment._at_exit, leave_to_parent=Attachment._leave_to_parent)

    def _stop(self) -> bool:
        """See no more steps. False if that is so already."""
        attached.remove(self)
        if self._uncounted is not None:
            self._uncounted.close()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        boundaries, self._boundaries = self._boundaries, None
        if boundaries is not None:
            boundaries.close()
        return boundaries is not None

    def _load(self, timeout: float | None) -> None:
        """Wait for the network's model, and load it."""
        if self._group is not None:
            self._group.begin(timeout, self._moments, self._reset)
        elif self._session is not None:
            if self._moments is not None:
                self._session.tells, self._session.empty = True, self._moments.empty
            order: Order | None = None
            while not isinstance(order, Load):
                self._session.start(timeout)
                order = self._session.next_order()
                self._carry_out(order)
            self._session.empty = False
            self._recall()

    def _leave(self) -> None:
        if self._group is not None:
            self._group.settle()
        if self._session is not None and self._layout is not None:
            self._layout.finish()
            self._session.close()

    def _recall(self) -> None:
        """Give a new optimizer the moments that the daemon has for it."""
        session, moments = self._session, self._moments
        assert session is not None and self._layout is not None
        if moments is None or not moments.empty:
            return
        for which in MOMENTS:
            order = session.recall(which)
            if order is None:
                return moments.drop()
            moments.load(which, 0, torch.from_numpy(order.values))
            self._layout.finish()
        if moments.finish(session.kept_steps):
            log.info("the optimizer goes on with moments of %d steps", session.kept_steps)

    def _follow(self, optimizers: tuple[torch.optim.Optimizer, ...]) -> None:
        """These are the optimizers now: one was made anew, or has other parameters."""
        if optimizers != self._optimizers:
            names = ", ".join(type(each).__name__ for each in optimizers)
            log.info("an optimizer was made anew; the peer follows %s", names)
        self._optimizers = optimizers
        if self._layout is None:
            return
        self._layout.follow(self._model, optimizers)
        tell_unheld(self._model, optimizers)
        if self._moments is not None:
            for hook in self._hooks:
                hook.remove()
            self._moments.follow(self._model, optimizers)
            self._hooks = [*self._moments.watch()]

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._layout is not None:
            self._layout.before_step()
            self._layout.stepping()
        if self._moments is not None and self._moments.unproved:
            self._moments.prove(optimizer)

    def _after_step(self, optimizer: torch.optim.Optimizer | None) -> None:
        self.steps += 1
        samples = self.samples_per_step * self._world
        self._samples += samples
        if self._layout is None:
            return
        began = time.perf_counter()
        if self._layout.undone():
            self._unfit()
        session = self._session
        if session is not None:
            if self._uncounted is not None:
                self._uncounted.steps = self.steps
            session.stall_seconds = self.stall_seconds
            session.stepped(1, samples)
            if self._moments is not None:
                self._moments.steps += 1
            skipped = self._skipped.look(optimizer, samples)
            if skipped.steps:
                session.stepped(-skipped.steps, -skipped.samples)
                if self._moments is not None:
                    self._moments.steps -= skipped.steps
            session.optimizer_steps = 0 if self._moments is None else self._moments.steps
        if self._group is not None:
            try:
                self._group.step_boundary()
            except DataError:
                self._stop()
                raise
        elif session is not None:
            session.poll()
            if session.hopeless:
                self._stop()
                self._leave()
                raise hopeless()
            while (order := session.next_order()) is not None:
                self._carry_out(order)
                if isinstance(order, Snapshot) and session.mode == "sync":
                    while (drain := session.await_order()) is not None:
                        self._carry_out(drain)
        if session is not None and self._last_step is not None:
            self._last_step.over()
        self.stall_seconds += time.perf_counter() - began

    def _reset(self) -> None:
        """The optimizers' state begins anew."""
        reset_optimizers(self._model, self._optimizers)
        if self._moments is not None:
            self._moments.recount()

    def _unfit(self) -> NoReturn:
        """Leave, before anybody hears of this step."""
        self._stop()
        self._leave()
        names = ", ".join(type(each).__name__ for each in self._optimizers)
        raise ConfigError(
            "GD-317",
            "this optimizer keeps the weights itself, and has put them back over those of the network",
            seen=f"{names}: after its step the parameters were again what they were before they were corrected",
            do="step on the parameters themselves: in fp32 under autocast, or in bf16 with an optimizer of torch; turn"
            " master weights off",
        )

    def _carry_out(self, order: Order | None) -> None:
        assert self._layout is not None and self._session is not None
        match order:
            case Load():
                self._layout.adopt(order.carried.reference)
                self._layout.load(0, torch.from_numpy(order.values))
                self._layout.beside.load(order.carried.state)
                if order.reset:
                    self._reset()
            case Renew():
                self._layout.beside.load(order.state)
            case Drain():
                values = torch.from_numpy(order.values)
                for start, stop in order.spans:
                    self._layout.add(start, values[start:stop])
            case Write() | Snapshot():
                told = self._layout.beside.told(now=isinstance(order, Write))
                return self._session.done(order, self._layout.read(order.into), told)
            case Keep():
                return self._session.done(order, passed)
            case Tell() if self._moments is not None:
                return self._session.done(order, self._moments.read(moment_of(order.number), order.into))
            case None:
                return
        self._session.done(order, self._layout.fence())


def attach(
    model: Modules,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] = _BY_HAND,
    *,
    home: str | os.PathLike[str] | None = None,
    every: int | None = None,
    samples_per_step: int | None = None,
    timeout: float | None = None,
    compare_frozen: bool = True,
    exclude: Exclude = (),
) -> Attachment:
    """Train `model` together with the network whose daemon runs on this host.

    Waits for the network's model, loads it into `model`, and returns; from then on nothing waits. Under
    torch.distributed call it on every rank, after `init_process_group`. An error of gossipdp's that nobody catches ends
    the script from then on with its text, without a traceback, and with its exit code.

    Args:
        model: as it is, or wrapped in DistributedDataParallel or torch.compile, or sharded by fully_shard (FSDP2).
            Several modules that are trained together, such as a network and a loss with weights of its own, as a list
            or as a mapping by name: the same on every host.
        optimizer: any torch optimizer, or Accelerate's; it is not changed. Its state is not touched, but that a
            new Adam, AdamW or RAdam begins with the moments that are there for it (`[exchange] moments`). Several that
            share one model (Muon for matrices, AdamW for the rest) in the order in which they step: a step is over,
            and counts, when the last of them has stepped. One that is made anew over the same parameters is followed
            from its second step on. Without an optimizer the loop calls `step()` of what this returns.
        home: the peer's home; default GOSSIPDP_HOME, then ~/.gossipdp/NETWORK.
        every: steps between snapshots, instead of what the daemon says: its short rounds in the warm start and those
            by this host's speed then come to nothing.
        samples_per_step: samples one process takes a step; 1 if not known, which counts steps.
        timeout: seconds to wait for the model, and for the moments to begin with; None waits for ever. Without a
            timeout the moments are waited for as long as the daemon asks for them, a minute and what 20 Mbit/s need.
        compare_frozen: refuse to train on top of other frozen parameters than the network, as LoRA over another base
            does; they are read once. False where they move, as a teacher's do, or where their dtypes differ by host.
        exclude: tensors that are not averaged, such as a queue of keys: names, patterns ("memory.*"), or a function of
            a name and its tensor. A joiner gets them once, exactly, with the model; from then on they are the host's
            own. The same on every host (GD-303).

    Raises:
        UnreachableError: GD-105, no daemon on this host; GD-106, no model in time.
        MismatchError: GD-301, the network trains another model, or on top of another; GD-304, GD-305, this one cannot
            be exchanged.
        ConfigError: GD-303, `exclude` names a tensor that there is not; GD-306, torch.distributed is not initialized;
            GD-308, the ranks are on several hosts; GD-317, an optimizer does not step on this model's own parameters.
            Of one that keeps a copy of them this turns out after the first corrections, and its `step` raises it.
        HardwareError: GD-502, no memory to share; GD-503, another training process is attached,
            or this one is already: it can attach again after `detach`, or when the first model is gone.

    Example:
        peer = gossipdp.attach(model, optimizer)
    """
    optimizers = () if optimizer is _BY_HAND else followed(optimizer)
    samples, model = samples_per_step or 1, as_one(model)
    if _off(os.environ):
        attachment = Attachment(model, optimizers, None, None, None, samples, None)
        attachment._begin(timeout)
        return attachment
    tell_uncaught()
    place = (default_home() if home is None else expanded(home)).absolute()
    attached.make_room(place)
    layout = Watched(model, optimizers, excluded_names(model, exclude))
    layout.refer()
    refuse_strangers(model, optimizers)
    tell_unheld(model, optimizers)
    several = together()
    if compare_frozen:
        if not several and not expected(place):
            Link.connect(place).close()  # there is none: that is said before gigabytes are read
        layout.compare_frozen()
    session: Session | None = None
    if not several or dist.get_rank() == 0:
        session = Session(place, layout, world=dist.get_world_size() if several else 1, every=every)
    group = ReplicaGroup(layout, place, session) if several else None
    attachment = Attachment(model, optimizers, layout, session, group, samples, place)
    attachment._begin(timeout)
    return attachment


def _keeps(optimizer: torch.optim.Optimizer) -> bool:
    """Is it known to have a state after its first step? Plain SGD has none, and of others' optimizers nobody knows."""
    plain = isinstance(optimizer, torch.optim.SGD) and not any(group["momentum"] for group in optimizer.param_groups)
    return type(optimizer).__module__.partition(".")[0] == "torch" and not plain


def _off(environment: Mapping[str, str]) -> bool:
    return environment.get("GOSSIPDP_OFF", "").strip().lower() not in ("", "0", "false", "no")
