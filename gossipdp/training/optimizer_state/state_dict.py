"""The inner optimizers' state as plain named tensors, of any way to train, and back.

Names and shapes are those of the whole model, so that what a sharded group saved a group of another size, or a single
process, can load. What there is to load is known from a stand-in, for the optimizer itself takes no step here. Nothing
here may know the daemon.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gossipdp.errors import DataError
from gossipdp.training.tensors.optimizers import Held, held
from gossipdp.training.tensors.schema import local, resharded, unwrap

__all__ = ["optimizer_tensors", "reset_optimizers", "restore_optimizer"]

SEPARATOR: Final = "::"
"""between a parameter's name and the name of what is kept of it; no module's name holds it"""

_Found: TypeAlias = Mapping[str, Mapping[str, Tensor]]
"""parameter's name -> kind -> value"""


class _Kind(NamedTuple):
    """What an optimizer keeps of a parameter, as it makes it itself."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    number: bool = False
    """a number of Python"""
    mesh: Any = None
    placements: Any = None
    """of a DTensor"""

    @classmethod
    def of(cls, value: Any) -> _Kind:
        if not isinstance(value, Tensor):
            return cls((), torch.tensor(value, device="cpu").dtype, torch.device("cpu"), number=True)
        mesh, placements = getattr(value, "device_mesh", None), getattr(value, "placements", None)
        return cls(tuple(value.shape), value.dtype, value.device, False, mesh, placements)


def optimizer_tensors(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """ "blocks.0.weight::exp_avg" -> tensor on the CPU, whole. Collective; on all ranks but the first it is empty.

    Raises:
        DataError: GD-610, an optimizer's state is not kept by parameters.
    """
    _refuse_zero(optimizers)
    resharded(unwrap(model))
    kept: dict[str, Any] = {}
    for each in held(model, optimizers):
        for kind, value in each.optimizer.state.get(each.parameter, {}).items():
            if value is None:
                continue
            if not _plain(value):
                raise _nameless(each.optimizer, f"{each.name}{SEPARATOR}{kind} is a {type(value).__name__}")
            kept[f"{each.name}{SEPARATOR}{kind}"] = value
    tensors: dict[str, Tensor] = {}
    for name, value in kept.items():
        whole = _whole(value) if isinstance(value, Tensor) else torch.tensor(value, device="cpu")
        if _first():
            tensors[name] = whole.to("cpu", copy=True, memory_format=torch.contiguous_format)
    return tensors


def restore_optimizer(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], tensors: Mapping[str, Tensor]
) -> None:
    """Put back what `optimizer_tensors` gave. Collective; what ranks but the first pass is not looked at.

    Learning rates and other settings stay as they are. A parameter of which nothing was kept begins as new.

    Raises:
        DataError: GD-608, the tensors are of another model or optimizer; GD-610, as `optimizer_tensors`.
    """
    _refuse_zero(optimizers)
    resharded(unwrap(model))
    parameters = {each.name: each for each in held(model, optimizers)}
    # On every rank, for the step of a stand-in may be collective as that of a parameter is.
    with _no_gradients(parameters.values()):
        tried = {name: _tried(each) for name, each in parameters.items()}
    living = {name: _living(each) for name, each in parameters.items()}
    found: dict[str, dict[str, Tensor]] = {}
    problem = ""
    if _first():
        for key, value in tensors.items():
            name, _, kind = key.rpartition(SEPARATOR)
            found.setdefault(name or key, {})[kind] = value
        problem = _difference(tried, living, found)
    if not problem:
        # In the order in which the optimizer makes it: a file has its own.
        found = {name: _in_order((tried[name] or [{}])[-1], found[name]) for name in parameters if name in found}
    plan = [(name, kind, value.shape, value.dtype) for name, kept in found.items() for kind, value in kept.items()]
    if _several():
        said: list[Any] = [problem, plan]
        # NCCL would bring it to the current device, which may be another rank's.
        device = next((each.parameter.device for each in parameters.values()), None)
        dist.broadcast_object_list(said, 0, device=device)
        problem, plan = said
    if problem:
        raise DataError(
            "GD-608",
            "the optimizer's state is of another model or optimizer",
            seen=problem,
            do="load what this model's own training saved, or start with fresh moments",
        )
    if not plan:
        return
    for each in parameters.values():
        each.optimizer.state.pop(each.parameter, None)
    for name, kind, shape, dtype in plan:
        each = parameters[name]
        value = found[name][kind] if _first() else torch.empty(shape, dtype=dtype, device="cpu")
        known = [made[kind] for made in [*(tried[name] or ()), living[name]] if kind in made]
        same = [made for made in known if made.shape == tuple(value.shape)]
        like = next(iter(same or known), None) or _unknown(value, each.parameter)
        each.optimizer.state[each.parameter][kind] = _placed(value, like, each.parameter)


@torch.no_grad()
def reset_optimizers(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Let the optimizers' state begin anew. Collective. Learning rates and other settings stay as they are."""
    for optimizer in _all_of(optimizers):
        mine = [each for each in held(model, [optimizer]) if each.optimizer is optimizer]
        with _no_gradients(mine):
            makes_its_own = bool(mine) and _tried(mine[0]) is not None
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
    tried: Mapping[str, Sequence[Mapping[str, _Kind]] | None], living: Mapping[str, Mapping[str, _Kind]], found: _Found
) -> str:
    """Why `found` cannot be loaded; "" if it can."""
    if strange := sorted(found.keys() - tried.keys()):
        return f"{strange[0]} is no parameter that is trained here"
    for name, made in tried.items():
        # An optimizer whose stand-in cannot step has made its state when it was made, and needs all of it.
        if name not in found and living[name] and (made is None or not found):
            return f"nothing is kept of {name}"
    for name, kept in found.items():
        made = tried[name]
        always = set(living[name]) if made is None else set.intersection(*map(set, made))
        # More than the optimizer begins with may come later, where it begins with something.
        if always - kept.keys() or (made is not None and not any(made)):
            return f"{name} has {', '.join(sorted(kept))}, not {', '.join(sorted(always)) or 'anything'}"
        for kind, value in kept.items():
            shapes = {kinds[kind].shape for kinds in [*(made or ()), living[name]] if kind in kinds}
            if shapes and tuple(value.shape) not in shapes:
                wanted = " or ".join(map(str, sorted(shapes)))
                return f"{name}{SEPARATOR}{kind} has the shape {tuple(value.shape)}, not {wanted}"
    return ""


@contextmanager
def _no_gradients(parameters: Iterable[Held]) -> Iterator[None]:
    """Nothing can be done to the parameters meanwhile by an optimizer that knows them otherwise than by its groups."""
    gradients = [(each.parameter, each.parameter.grad) for each in parameters]
    try:
        for parameter, _ in gradients:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _tried(each: Held) -> list[dict[str, _Kind]] | None:
    """What the optimizer keeps of a parameter after its first step, seen on two stand-ins: what it keeps may depend on
    the parameter's values. None if one of them cannot step."""
    if isinstance(each.optimizer, torch.optim.LBFGS):
        return [{}]  # none of it is a parameter's
    made = [_made(each, torch.full_like(each.parameter.detach(), value)) for value in (0.0, 1.0)]
    return [kinds for kinds in made if kinds is not None] if None not in made else None


def _made(each: Held, stand_in: Tensor) -> dict[str, _Kind] | None:
    """What the optimizer keeps after a first step on `stand_in`; None if that cannot step."""
    stand_in.requires_grad_()
    stand_in.grad = stand_in.detach().clone()
    twin: Any = object.__new__(type(each.optimizer))
    twin.__dict__.update(each.optimizer.__dict__)
    # A schedule counts the steps of the optimizer itself, and so do the hooks.
    twin.__dict__.pop("step", None)
    twin._optimizer_step_pre_hooks, twin._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    twin.state, twin.param_groups = defaultdict(dict), [{**each.group, "params": [stand_in]}]
    try:
        twin.step()
        return {kind: _Kind.of(value) for kind, value in twin.state.get(stand_in, {}).items() if value is not None}
    except Exception:  # of any optimizer's: one wants a closure, another sparse gradients
        return None


def _living(each: Held) -> dict[str, _Kind]:
    """What the optimizer keeps of a parameter now."""
    kept = each.optimizer.state.get(each.parameter, {})
    return {kind: _Kind.of(value) for kind, value in kept.items() if _plain(value)}


def _plain(value: Any) -> bool:
    """Can a file hold it? The memory of a tensor subclass, such as one of 8 bits, does not hold its numbers."""
    if getattr(value, "device_mesh", None) is not None:
        value = local(value)
    if isinstance(value, Tensor):
        return type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided and not value.is_quantized
    return isinstance(value, int | float)


def _in_order(kinds: Mapping[str, _Kind], kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {kind: kept[kind] for kind in [*kinds, *(kept.keys() - kinds.keys())]}


def _unknown(value: Tensor, parameter: Tensor) -> _Kind:
    """What nobody has seen the optimizer make: like its parameter, or a number."""
    if value.shape == parameter.shape:
        return _Kind.of(parameter)._replace(dtype=value.dtype)
    return _Kind(tuple(value.shape), value.dtype, torch.device("cpu"))


def _placed(value: Tensor, like: _Kind, parameter: Tensor) -> Any:
    """`value` of the first rank, as the optimizer keeps it on this one."""
    if _several():
        # Where the parameter is, for that is where the group's backend moves things.
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


def _whole(value: Tensor) -> Tensor:
    """All of what may be sharded. Collective."""
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
                "this optimizer's state is scattered over the ranks and cannot be saved by parameters' names",
                seen="ZeroRedundancyOptimizer",
                do="save it with its own consolidate_state_dict() and state_dict(), or shard with fully_shard (FSDP2)",
            )


def _nameless(optimizer: torch.optim.Optimizer, seen: str) -> DataError:
    return DataError(
        "GD-610",
        "this optimizer keeps something that is no plain tensor or number of a parameter, and cannot be saved by name",
        seen=f"{type(optimizer).__name__}: {seen}",
        do="save the optimizer's own state_dict() with the training process's checkpoint",
    )


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _first() -> bool:
    return not _several() or dist.get_rank() == 0
