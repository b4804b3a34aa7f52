"""`attach(model, optimizer)`: one line that makes a training loop a peer.

Only `attach` itself waits for the network. Once training runs nothing raises, with three exceptions: an optimizer that
undoes the first corrections, an optimizer that steps where corrections cannot be added, and training that only gives
NaN.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final

import torch
import torch.distributed as dist
from torch import nn

from gossipdp.errors import ConfigError, GossipdpError
from gossipdp.runtime.link import Link, default_home, expanded, expected
from gossipdp.training import open_attachments
from gossipdp.training.attachment import Attachment
from gossipdp.training.messages import write
from gossipdp.training.optimizer_state.followed import Optimizers
from gossipdp.training.own_weights import DRAWN_BACK, STEPS, drawn_back
from gossipdp.training.ranks.collectives import several_ranks
from gossipdp.training.ranks.group import ReplicaGroup
from gossipdp.training.ranks.single import SingleReplica
from gossipdp.training.reasons import tell, warn
from gossipdp.training.session import Session
from gossipdp.training.tensors.copies import equal_copies, warn_copies
from gossipdp.training.tensors.excluded import Exclude, excluded_names
from gossipdp.training.tensors.master_weights import MasterWeights
from gossipdp.training.tensors.optimizers import followed, of_torch, refuse_strangers, unheld
from gossipdp.training.tensors.parts import Modules, as_one

__all__ = ["attach", "set_exit_codes"]

_home: Path | None = None
"""home of the last attach, whose daemon hears of an error that ends this process"""


def set_exit_codes() -> None:
    """From now on an uncaught GossipdpError ends this process with its text alone and its own exit code.

    Other errors keep their hook. A launcher such as torchrun has an exit code of its own. An interactive interpreter
    does not end.
    """
    before = sys.excepthook
    if getattr(before, "__module__", "") == __name__:
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, GossipdpError):
            before(kind, error, trace)
            return
        write(f"{error}\n")
        if hasattr(sys, "ps1") or sys.flags.interactive:
            return  # the prompt goes on
        tell(_home, error, ends=True)
        raise SystemExit(error.exit_code)  # the interpreter ends with it, finalizers and all

    sys.excepthook = hook


_BY_HAND: Final[list[torch.optim.Optimizer]] = []
"""default of `optimizer`: the loop counts its steps itself"""


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

    Waits for the network's model, loads it into `model`, and returns. Make copies, such as an EMA, after that. Under
    torch.distributed call it on every rank, after `init_process_group`. From then on, a GossipdpError that the script
    does not catch ends it with the error's text, without a traceback, and with its exit code.
    docs/design/algorithms.md, section 1, gives the equations.

    Args:
        model: a module, bare, in DistributedDataParallel or torch.compile, or sharded by fully_shard (FSDP2). For
            modules trained together, a list, or a mapping by name; the same on every host.
        optimizer: a torch optimizer, or Accelerate's. It is not changed. Its state is kept, except that a new Adam,
            AdamW or RAdam starts with the network's moments (`[exchange] moments`), and that LBFGS's memory begins
            anew with each correction. For several that share a model,
            a sequence in stepping order; the last one's step counts. Without one, call `step()` of the result.
        home: the peer's home; default GOSSIPDP_HOME, then ~/.gossipdp/NETWORK.
        every: steps between snapshots, instead of the daemon's number.
        samples_per_step: samples that one process takes per step; default 1, which counts steps.
        timeout: seconds to wait for the model and the first moments. None: no limit for the model.
        compare_frozen: check that frozen parameters equal the network's; reads them once. Set False where they move,
            as a teacher's do, or where their dtypes differ between hosts.
        exclude: tensors that are not averaged: names, patterns ("memory.*"), or a function of name and tensor. A
            joiner gets them once, with the model. The same on every host (GD-303).

    Returns:
        The attachment, which also is a context manager that detaches.

    Raises:
        UnreachableError: GD-105, no daemon on this host; GD-106, no model in time.
        MismatchError: GD-301, the network trains another model or frozen base; GD-304, GD-305, a tensor cannot be
            exchanged; GD-320, the ranks hold different parameters.
        ConfigError: GD-303, `exclude` names a missing tensor; GD-306, torch.distributed is not initialized; GD-308,
            the ranks are on several hosts; GD-317, an optimizer does not step on the model's own parameters.
        HardwareError: GD-502, no memory to share; GD-503, a training process is attached already.

    Example:
        peer = gossipdp.attach(model, optimizer)
    """
    global _home
    set_exit_codes()
    place = None if _off(os.environ) else (default_home() if home is None else expanded(home)).absolute()
    _home = place
    several = () if optimizer is _BY_HAND else followed(optimizer)
    samples, module = samples_per_step or 1, as_one(model)
    if place is None:
        return Attachment(module, Optimizers(module, several, None), None, None, None, samples, None, timeout)
    layout = _layout(module, several, place, compare_frozen, exclude)
    optimizers, copies = Optimizers(module, several, layout), equal_copies(module)
    warnings = [*_drawing_back(several), *unheld(module, several)]
    session, replica = _replica(layout, place, every, optimizers)
    attachment = Attachment(module, optimizers, layout, session, replica, samples, place, timeout)
    warn_copies(copies)
    if open_attachments.another(place, module) and session is not None and session.clock:
        warnings.append(ConfigError("GD-326", session.replaced, do="give each model a network and a home of its own"))
    for error in warnings:
        warn(error, place)
    return attachment


def _layout(
    model: nn.Module,
    optimizers: tuple[torch.optim.Optimizer, ...],
    home: Path,
    compare_frozen: bool,
    exclude: Exclude,
) -> MasterWeights:
    """The model's exchanged tensors, after all checks that need no dialogue with the daemon."""
    open_attachments.make_room(home)
    layout = MasterWeights(model, optimizers, excluded_names(model, exclude), partial(warn, home=home))
    layout.refer()
    refuse_strangers(model, optimizers)
    several = several_ranks()
    if compare_frozen:
        if not several and not expected(home):
            Link.connect(home).close()  # raises GD-105 before gigabytes are read
        layout.compare_frozen()
    return layout


def _replica(
    layout: MasterWeights, home: Path, every: int | None, optimizers: Optimizers
) -> tuple[Session | None, SingleReplica | ReplicaGroup]:
    """The dialogue with the daemon, on the process that has it, and this process's part of the replica."""
    if not several_ranks():
        session = Session(home, layout, every=every)
        return session, SingleReplica(layout, session, optimizers)
    leads = dist.get_rank() == 0
    leader = Session(home, layout, world=dist.get_world_size(), every=every) if leads else None
    return leader, ReplicaGroup(layout, home, leader, optimizers)


def _drawing_back(optimizers: tuple[torch.optim.Optimizer, ...]) -> list[ConfigError]:
    """GD-327 for each optimizer that draws corrections back. A group's are not tried: a step may wait for all ranks."""
    found = []
    for optimizer in () if several_ranks() else optimizers:
        share = None if of_torch(optimizer) else drawn_back(optimizer)
        if share is not None and share > DRAWN_BACK:
            cause = "this optimizer computes the weights from its own stored point, and undoes corrections"
            seen = f"{type(optimizer).__name__} undid {share:.0%} of a change within {STEPS} steps"
            found.append(ConfigError("GD-327", cause, seen=seen, do="train with another optimizer, such as AdamW"))
    return found


def _off(environment: Mapping[str, str]) -> bool:
    return environment.get("GOSSIPDP_OFF", "").strip().lower() not in ("", "0", "false", "no")
