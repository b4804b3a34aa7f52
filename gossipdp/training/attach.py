"""`attach(model, optimizer)`: one line that makes a training loop a peer.

A hook on the optimizer runs at every step boundary: it counts the step, adds corrections that have come to the
parameters, and hands a snapshot over every so often (algorithms section 1). The optimizer, its state and the loop stay
the user's own. Nothing here waits for the network but `attach` itself, and nothing raises once training runs.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import torch
from torch import nn

from gossipdp.errors import GossipdpError
from gossipdp.runtime.link import default_home
from gossipdp.training.layout import Layout
from gossipdp.training.replica_group import Announcement, ReplicaGroup, replica_group
from gossipdp.training.session import Load, Order, Session

__all__ = ["Attachment", "Progress", "attach"]

log = logging.getLogger("gossipdp.training")

MOST_SILENT: Final = 8
"""steps between two words of rank 0 to the other ranks, at most"""
LEAVE_WITHIN: Final = 2.0
"""seconds `detach` waits for the daemon to take the last steps"""


class Progress(NamedTuple):
    """The network's clock: what all peers have done, as far as it is known here."""

    clock: int
    """steps; a joiner takes the network's over, and adds its own"""
    samples: int
    """of all peers together"""


class _Removable(Protocol):
    def remove(self) -> None: ...


class Attachment:
    """A training process as part of its peer. Made by `attach`; also a context manager that detaches.

    Under torch.distributed every rank has one, and what it knows of the network is some steps old.
    """

    def __init__(
        self, layout: Layout | None, session: Session | None, group: ReplicaGroup | None, samples_per_step: int
    ) -> None:
        self._layout, self._session, self._group = layout, session, group
        self._samples = samples_per_step * (1 if group is None else group.world)
        self._hook: _Removable | None = None
        self.step = 0
        """optimizer steps since `attach`"""
        self.stall_seconds = 0.0
        """training time lost to gossip: everything done at step boundaries"""

    @property
    def alone(self) -> bool:
        """No daemon takes part at the moment: gossip is off, detached, or the daemon is gone."""
        if self._session is not None:
            return self._session.alone
        return True if self._group is None else self._group.announced.alone

    @property
    def progress(self) -> Progress:
        if self._session is not None:
            return Progress(self._session.clock, self._session.samples)
        if self._group is not None:
            return Progress(self._group.announced.clock, self._group.announced.samples)
        return Progress(self.step, self.step * self._samples)

    @property
    def lost_steps(self) -> int:
        """Steps that never reached the network, for a daemon died."""
        if self._session is not None:
            return self._session.lost_steps
        return 0 if self._group is None else self._group.announced.lost_steps

    def report(self, *, loss: float | torch.Tensor) -> None:
        """Show `loss` in metrics and status. A tensor is read at once, which on CUDA waits for the device."""
        if self._session is not None:
            self._session.loss = loss.item() if isinstance(loss, torch.Tensor) else float(loss)
            self._session.report()

    def detach(self) -> None:
        """Hand over the last steps and leave; training may go on as with the bare optimizer."""
        if self._hook is None:
            return
        self._hook.remove()
        self._hook = None
        if self._group is not None:
            self._group.settle()
            self._group.announced = msgspec.structs.replace(self._group.announced, alone=True)
        if self._session is not None:
            self._session.stall_seconds = self.stall_seconds
            self._session.close(LEAVE_WITHIN)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    # -- the step boundary ------------------------------------------------------------------------------------

    def _begin(self, optimizer: torch.optim.Optimizer) -> None:
        order = None if self._session is None else self._session.next_order()
        if self._group is not None:
            self._group.begin(order)
        elif order is not None:
            self._carry_out(order)
        self._finished(order)
        self._hook = optimizer.register_step_post_hook(self._after_step)

    def _after_step(self, optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> None:
        began = time.perf_counter()
        self.step += 1
        session = self._session
        if session is not None:
            session.stepped(self._samples)
            session.poll()
        if self._group is not None:
            self._act_together(self._group)
        elif session is not None:
            while (order := session.next_order()) is not None:
                self._carry_out(order)
                self._finished(order)
        if session is not None:
            session.stall_seconds = self.stall_seconds
            session.submit()
        self.stall_seconds += time.perf_counter() - began

    def _act_together(self, group: ReplicaGroup) -> None:
        something, order = group.agreed()
        if something:
            group.carry_out(order)
            self._finished(order)
        if not group.due():
            return
        session = self._session
        if session is None:
            return group.announce(None, Announcement())
        period = max(1, min(MOST_SILENT, session.every // 10))
        state = Announcement(session.clock, session.samples, session.alone, session.lost_steps, period)
        group.announce(session.next_order(), state)

    def _carry_out(self, order: Order) -> None:
        assert self._layout is not None
        values = torch.from_numpy(order.values)
        if isinstance(order, Load):
            self._layout.load(0, values)
        else:
            for start, stop in order.spans:
                self._layout.add(start, values[start:stop])

    def _finished(self, order: Order | None) -> None:
        if order is not None and self._session is not None and self._layout is not None:
            self._session.done(order, self._layout.fence())


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    home: str | os.PathLike[str] | None = None,
    every: int | None = None,
    samples_per_step: int | None = None,
    timeout: float | None = None,
) -> Attachment:
    """Train `model` together with the network whose daemon runs on this host.

    Waits for the network's model, loads it into `model`, and returns; from then on nothing waits. Under
    torch.distributed call it on every rank, after `init_process_group`.

    Args:
        model: as it is, or wrapped in DistributedDataParallel or torch.compile.
        optimizer: any torch optimizer; it is not changed, and its state is not touched.
        home: the peer's home; default GOSSIPDP_HOME, then ~/.gossipdp/NETWORK.
        every: steps between snapshots, instead of what the network says.
        samples_per_step: samples one process takes a step; 1 if not known, which counts steps.
        timeout: seconds to wait for the model; None waits for ever.

    Raises:
        UnreachableError: GD-105, no daemon on this host; GD-106, no model in time.
        MismatchError: GD-301, the network trains another model; GD-304, GD-305, this one cannot be exchanged.
        HardwareError: GD-502, no memory to share; GD-503, another training process is attached.

    Example:
        peer = gossipdp.attach(model, optimizer)
    """
    if _off(os.environ):
        return Attachment(None, None, None, samples_per_step or 1)
    layout = Layout(model)
    group = replica_group(layout)
    session: Session | None = None
    if group is None or group.leader:
        place = default_home() if home is None else Path(home).expanduser()
        session = Session(place, layout, world=1 if group is None else group.world, every=every)
    error = None if session is None else _start(session, timeout)
    if group is not None:
        group.agree_on_start(error)
    elif error is not None:
        raise error
    attachment = Attachment(layout, session, group, samples_per_step or 1)
    attachment._begin(optimizer)
    return attachment


def _start(session: Session, timeout: float | None) -> GossipdpError | None:
    try:
        session.start(timeout)
    except GossipdpError as error:
        return error
    return None


def _off(environment: Mapping[str, str]) -> bool:
    return environment.get("GOSSIPDP_OFF", "").strip().lower() not in ("", "0", "false", "no")
