"""The optimizers' state as plain named tensors, and back.

Names and shapes are those of the whole model, so a group of another size, or a single process, can load what a sharded
group saved. Stand-ins show what there is to load (see `state_entries`). Nothing here knows the daemon.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gossipdp.errors import DataError
from gossipdp.training.optimizer_state.group_entries import GroupEntries
from gossipdp.training.optimizer_state.state_entries import (
    GROUP,
    SHARED,
    StateEntry,
    as_tensor,
    entries_after_first_step,
    entries_now,
    group_names,
    like_parameter,
    no_gradients,
    storable,
)
from gossipdp.training.tensors.optimizers import Held, held
from gossipdp.training.tensors.schema import local, resharded, unwrap

__all__ = ["optimizer_tensors", "refuse_empty_state", "reset_optimizers", "restore_optimizer", "sharded_tensors"]

SEPARATOR: Final = "::"
"""after a parameter's name, before the name of an entry of its state; no module's name contains it"""

_Found: TypeAlias = Mapping[str, Mapping[str, Tensor]]
"""name of a parameter -> name of an entry -> value"""


def optimizer_tensors(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], groups: GroupEntries | None = None
) -> dict[str, Tensor]:
    """The state of all optimizers. Collective.

    Args:
        groups: entries of the param groups that steps were seen to change.

    Returns:
        "blocks.0.weight::exp_avg", or "blocks.0.weight::group::step" of its param group -> whole tensor on the CPU.
        Empty on all ranks but the first.

    Raises:
        DataError: GD-610, an optimizer does not keep its state by parameters.
    """
    _refuse_zero(optimizers)
    resharded(unwrap(model))
    parameters, groups = list(held(model, optimizers)), groups or GroupEntries()
    common = _common(parameters, groups)
    kept = {each.name: _kept(each) | common[each.name] for each in parameters}
    _refuse_unknown(parameters, kept)
    tensors: dict[str, Tensor] = {}
    for name, value in (entry for entries in kept.values() for entry in entries.items()):
        whole = _whole(as_tensor(value))
        if _first():
            tensors[name] = whole.to("cpu", copy=True, memory_format=torch.contiguous_format)
    return tensors


def sharded_tensors(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], groups: GroupEntries | None = None
) -> dict[str, Tensor]:
    """The state of all optimizers in their own memory, as this rank holds it. Collective.

    A parameter without state has zeros of the form that its first step will make. So the names do not depend on the
    steps, and `torch.distributed.checkpoint.load` has tensors to read into.

    Args:
        groups: as of `optimizer_tensors`.

    Returns:
        "blocks.0.weight::exp_avg" -> DTensor of a sharded parameter, or a plain tensor.

    Raises:
        DataError: GD-610, an optimizer does not keep its state by parameters.
    """
    _refuse_zero(optimizers)
    resharded(unwrap(model))
    parameters, groups = list(held(model, optimizers)), groups or GroupEntries()
    tensors: dict[str, Tensor] = {}
    common = _common(parameters, groups, loaded_by_name=True)
    with no_gradients(parameters):
        for each in parameters:
            kept = _kept(each)
            if not kept:
                made = (entries_after_first_step(each) or [{}])[-1]
                kept = {f"{each.name}{SEPARATOR}{kind}": _zeros(like, each) for kind, like in made.items()}
            for name, value in (kept | common[each.name]).items():
                tensors[name] = as_tensor(value).detach()
    return tensors


def restore_optimizer(
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    tensors: Mapping[str, Tensor],
    groups: GroupEntries | None = None,
) -> None:
    """Load what `optimizer_tensors` returned. Collective.

    Learning rates and other settings do not change, unless the optimizer's own steps change them. A parameter without
    an entry begins as new.

    Args:
        tensors: of `optimizer_tensors`, on the first rank; the other ranks' are not read. Or of `sharded_tensors`, on
            every rank: each gives its own part of the DTensors.
        groups: hears which entries of the param groups are loaded.

    Raises:
        DataError: GD-608, the tensors are of another model or optimizer; GD-610, as `optimizer_tensors`.
    """
    _refuse_zero(optimizers)
    resharded(unwrap(model))
    parameters = {each.name: each for each in held(model, optimizers)}
    # On every rank, because the step of a sharded stand-in is collective.
    with no_gradients(parameters.values()):
        tried = {name: entries_after_first_step(each) for name, each in parameters.items()}
    living = {name: entries_now(each) for name, each in parameters.items()}
    found: dict[str, dict[str, Tensor]] = {}
    problem = ""
    if _first():
        for key, value in tensors.items():
            name, _, kind = key.partition(SEPARATOR)
            found.setdefault(name, {})[kind] = value
        problem = _difference(tried, living, found) or _disagreement(parameters, found)
    if not problem:
        # In the order in which the optimizer makes the entries: a file has its own order.
        found = {name: _in_order((tried[name] or [{}])[-1], found[name]) for name in parameters if name in found}
    plan = [
        (name, kind, value.shape, value.dtype, _is_sharded(value))
        for name, kept in found.items()
        for kind, value in kept.items()
    ]
    if _several():
        said: list[Any] = [problem, plan]
        # NCCL would use the current device, which may be another rank's.
        device = next((each.parameter.device for each in parameters.values()), None)
        dist.broadcast_object_list(said, 0, device=device)
        problem, plan = said
    if problem:
        raise DataError(
            "GD-608",
            "the optimizer's state belongs to another model or optimizer",
            seen=problem,
            do="load what this model's own training saved, or start with fresh moments",
        )
    if not plan:
        return
    for each in parameters.values():
        each.optimizer.state.pop(each.parameter, None)
    for name, kind, shape, dtype, in_parts in plan:
        each = parameters[name]
        keeper, entry = _keeper(each, kind)
        if in_parts:
            value = tensors[f"{name}{SEPARATOR}{kind}"]
        else:
            value = found[name][kind] if _first() else torch.empty(shape, dtype=dtype, device="cpu")
        known = [made[kind] for made in [*(tried[name] or ()), living[name]] if kind in made]
        if not known and keeper is not each.optimizer.state[each.parameter]:
            known = [_like_common(keeper.get(entry), value, each)]
        same = [made for made in known if made.shape == tuple(value.shape)]
        like = next(iter(same or known), None) or like_parameter(value, each.parameter)
        keeper[entry] = _placed(value, like, each.parameter)
        if groups is not None and keeper is each.group:
            groups.add(each.optimizer, each.group, entry)


@torch.no_grad()
def reset_optimizers(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Let the optimizers' state begin anew. Collective. Learning rates and other settings do not change."""
    for optimizer in _all_of(optimizers):
        mine = [each for each in held(model, [optimizer]) if each.optimizer is optimizer]
        with no_gradients(mine):
            makes_its_own = bool(mine) and entries_after_first_step(mine[0]) is not None
        if makes_its_own:
            optimizer.state.clear()
        for state in optimizer.state.values():
            for kind, value in state.items():
                if isinstance(value, Tensor):
                    local(value).zero_()
                elif isinstance(value, int | float):
                    state[kind] = type(value)(0)
        for group in optimizer.param_groups:
            for name, value in group.items():
                if isinstance(value, float) and not math.isfinite(value):
                    group[name] = optimizer.defaults.get(name, value)


def refuse_empty_state(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], tensors: Mapping[str, Tensor]
) -> None:
    """Under several ranks, refuse an empty state of optimizers that keep one: it is another rank's. Collective.

    Raises:
        DataError: GD-608, the first rank's state is empty.
    """
    if not _several():
        return
    empty = [not tensors and any(map(_keeps_state, optimizers))]
    # NCCL would use the current device, which may be another rank's.
    dist.broadcast_object_list(empty, 0, device=next(model.parameters()).device)
    if empty[0]:
        raise DataError(
            "GD-608",
            "this holds no state of an optimizer",
            seen="it is empty, as what state_dict() returns on all ranks but the first",
            do="save what state_dict() returns on the first rank, and load that",
        )


def _keeps_state(optimizer: torch.optim.Optimizer) -> bool:
    """True if torch's own optimizer keeps state after its first step. False for plain SGD and unknown optimizers."""
    plain = isinstance(optimizer, torch.optim.SGD) and not any(group["momentum"] for group in optimizer.param_groups)
    return type(optimizer).__module__.partition(".")[0] == "torch" and not plain


def _all_of(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
    """The optimizers, and those that they hold as attributes: SAM steps one inside."""
    found: dict[torch.optim.Optimizer, None] = {}
    waiting = list(optimizers)
    while waiting:
        optimizer = waiting.pop(0)
        if optimizer not in found:
            found[optimizer] = None
            waiting += [each for each in vars(optimizer).values() if isinstance(each, torch.optim.Optimizer)]
    return [*found]


def _difference(
    tried: Mapping[str, Sequence[Mapping[str, StateEntry]] | None],
    living: Mapping[str, Mapping[str, StateEntry]],
    found: _Found,
) -> str:
    """Why `found` cannot be loaded; "" if it can."""
    if strange := sorted(found.keys() - tried.keys()):
        return f"{strange[0]} is not a trained parameter here"
    for name, made in tried.items():
        # An optimizer whose stand-in cannot step has a state from the start, and needs all of it.
        if name not in found and living[name] and (made is None or not found):
            return f"there is no state of {name}"
    for name, kept in found.items():
        made = tried[name]
        always = set(living[name]) if made is None else set.intersection(*map(set, made))
        # Some entries change at later steps only. A file of an earlier version has none.
        common = {kind for kind in always if kind.startswith((GROUP, SHARED))}
        always -= common if common & kept.keys() else set()
        # An optimizer that begins with some entries may add more later.
        if always - kept.keys() or (made is not None and not any(made)):
            return f"{name} has {', '.join(sorted(kept))}, not {', '.join(sorted(always)) or 'anything'}"
        for kind, value in kept.items():
            shapes = {entries[kind].shape for entries in [*(made or ()), living[name]] if kind in entries}
            if shapes and tuple(value.shape) not in shapes:
                wanted = " or ".join(map(str, sorted(shapes)))
                return f"{name}{SEPARATOR}{kind} has the shape {tuple(value.shape)}, not {wanted}"
    return ""


def _disagreement(parameters: Mapping[str, Held], found: _Found) -> str:
    """Which parameters have an entry in common here, and were saved with different ones; "" if none."""
    first: dict[tuple[int, str], str] = {}
    for name, each in parameters.items():
        for kind, value in found.get(name, {}).items():
            if not kind.startswith((GROUP, SHARED)):
                continue
            other = first.setdefault((id(_keeper(each, kind)[0]), kind), name)
            if not torch.equal(found[other][kind], value):
                return f"{other} and {name} share {kind.rpartition(SEPARATOR)[2]} here, but each was saved with its own"
    return ""


def _in_order(entries: Mapping[str, StateEntry], kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {kind: kept[kind] for kind in [*entries, *sorted(kept)] if kind in kept}


def _placed(value: Tensor, like: StateEntry, parameter: Tensor) -> Any:
    """`value`, as the optimizer keeps it on this rank. Of plain tensors, the first rank's counts."""
    if _is_sharded(value):
        if like.mesh is not None:
            return cast(Any, value).redistribute(like.mesh, like.placements).to(like.device, like.dtype, copy=True)
        value = _whole(value)
    elif _several():
        # On the parameter's device, where the group's backend works.
        value = value.to(parameter.device, copy=True, memory_format=torch.contiguous_format)
        dist.broadcast(value, 0)
    if like.number:
        return value.item()
    if like.mesh is not None:
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value.to(like.device, like.dtype), like.mesh, like.placements)
    if value.shape == parameter.shape:
        return torch.empty_like(parameter.detach(), dtype=like.dtype, device=like.device).copy_(value)
    return value.to(like.device, like.dtype, copy=True)


def _kept(each: Held) -> dict[str, Any]:
    """What the optimizer keeps of a parameter, by its full name. Raises DataError GD-610."""
    kept: dict[str, Any] = {}
    for kind, value in each.optimizer.state.get(each.parameter, {}).items():
        if value is None:
            continue
        if not storable(value):
            raise _nameless(each.optimizer, f"{each.name}{SEPARATOR}{kind} is a {type(value).__name__}")
        kept[f"{each.name}{SEPARATOR}{kind}"] = value
    return kept


def _refuse_unknown(parameters: Sequence[Held], kept: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse state of an optimizer that makes none itself: `restore_optimizer` would refuse it.

    Raises:
        DataError: GD-610, another object keeps it there.
    """
    smallest: dict[torch.optim.Optimizer, Held] = {}
    for each in sorted(parameters, key=lambda each: -each.parameter.numel()):
        if kept[each.name]:
            smallest[each.optimizer] = each
    for optimizer, each in smallest.items():
        with no_gradients([each]):
            made = entries_after_first_step(each)
        if made is not None and not any(made):
            names = ", ".join(sorted(name.removeprefix(each.name + SEPARATOR) for name in kept[each.name]))
            raise _nameless(optimizer, f"its first step keeps no state of {each.name}, but there is {names}")


def _common(
    parameters: Sequence[Held], groups: GroupEntries, *, loaded_by_name: bool = False
) -> dict[str, dict[str, Any]]:
    """What each parameter shares with others, by parameter and full name: entries of its group and of the optimizer.

    Args:
        loaded_by_name: refuse entries that a new optimizer does not know of.

    Raises:
        DataError: GD-610, one of them is no plain tensor or number, or is refused.
    """
    for optimizer in dict.fromkeys(each.optimizer for each in parameters):
        own = type(optimizer).state_dict is not torch.optim.Optimizer.state_dict
        if own and (more := optimizer.state_dict().keys() - {"state", "param_groups"}):
            raise _nameless(optimizer, f"its state_dict() also has {', '.join(sorted(map(str, more)))}")
    found: dict[str, dict[str, Any]] = {}
    tried: dict[int, frozenset[str]] = {}
    for each in parameters:
        changed = groups.names(each.optimizer, each.group)
        if id(each.group) not in tried:
            with no_gradients([each]):
                tried[id(each.group)] = group_names(each, changed)
            if loaded_by_name and (late := changed - tried[id(each.group)]):
                do = "save it with peer.save or peer.state_dict()"
                raise _nameless(each.optimizer, f"its first step does not change {', '.join(sorted(late))}", do)
        names = tried[id(each.group)] | changed
        kept = {GROUP + name: each.group[name] for name in sorted(names) if name in each.group}
        state: Mapping[Any, Any] = each.optimizer.state
        kept |= {SHARED + name: value for name, value in state.items() if isinstance(name, str)}
        for kind, value in kept.items():
            if value is not None and not storable(value):
                raise _nameless(each.optimizer, f"{kind} is a {type(value).__name__}")
        found[each.name] = {f"{each.name}{SEPARATOR}{kind}": value for kind, value in kept.items() if value is not None}
    return found


def _keeper(each: Held, kind: str) -> tuple[dict[Any, Any], str]:
    """The dictionary that has an entry of a parameter, and its name there."""
    if kind.startswith(GROUP):
        return each.group, kind.removeprefix(GROUP)
    if kind.startswith(SHARED):
        return each.optimizer.state, kind.removeprefix(SHARED)
    return each.optimizer.state[each.parameter], kind


def _like_common(now: Any, value: Tensor, each: Held) -> StateEntry:
    """The guess for an entry that parameters share and no stand-in made: as it is now, or a number if it is one."""
    if storable(now):
        return StateEntry.of(now)
    entry = StateEntry(tuple(value.shape), value.dtype, each.parameter.device)
    return entry if value.shape else entry._replace(number=True)


def _zeros(like: StateEntry, each: Held) -> Tensor:
    """Zeros of the form `like`, sharded as their parameter if that is."""
    if like.mesh is not None and like.shape == tuple(each.parameter.shape):
        return torch.zeros_like(each.parameter.detach(), dtype=like.dtype)
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)


def _is_sharded(value: Tensor) -> bool:
    return getattr(value, "device_mesh", None) is not None


def _whole(value: Tensor) -> Tensor:
    """`value`, gathered if it is sharded. Collective."""
    value = value.detach()
    mesh: Any = getattr(value, "device_mesh", None)
    if mesh is None:
        return value
    from torch.distributed.tensor import Replicate

    whole: Any = value
    gathered: Tensor = whole.redistribute(placements=[Replicate()] * mesh.ndim).to_local()
    return gathered


def _refuse_zero(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    for optimizer in optimizers:
        if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
            raise DataError(
                "GD-610",
                "this optimizer's state is scattered over the ranks and cannot be saved by parameter names",
                seen="ZeroRedundancyOptimizer",
                do="save it with its own consolidate_state_dict() and state_dict(), or shard with fully_shard (FSDP2)",
            )


def _nameless(
    optimizer: torch.optim.Optimizer,
    seen: str,
    do: str = "save the optimizer's own state_dict() with the training process's checkpoint",
) -> DataError:
    return DataError(
        "GD-610",
        "this optimizer keeps state that cannot be saved by parameter names",
        seen=f"{type(optimizer).__name__}: {seen}",
        do=do,
    )


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _first() -> bool:
    return not _several() or dist.get_rank() == 0
