"""What an optimizer keeps of a parameter: seen on stand-ins, because the optimizer itself must not step here.

An optimizer may keep more than a parameter's own state: entries of its param group that its step changes, and entries
of its state under names of their own. Each parameter has these too, as "group::step" or "shared::k".
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from gossipdp.training.optimizer_state.group_entries import changed, seen
from gossipdp.training.tensors.optimizers import Held
from gossipdp.training.tensors.schema import local

__all__ = [
    "GROUP",
    "SHARED",
    "StateEntry",
    "as_tensor",
    "entries_after_first_step",
    "entries_now",
    "group_names",
    "like_parameter",
    "no_gradients",
    "storable",
]

GROUP: Final = "group::"
SHARED: Final = "shared::"
"""prefixes of the names of what parameters share"""

ELEMENTWISE: Final = tuple(
    getattr(torch.optim, name)
    for name in ["Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"]
)
"""these classes only: what they keep has the shape of its parameter, or one element, whatever the parameter's values"""
SMALL: Final = (5, 3)
"""shape of their stand-ins; no stand-in of theirs takes the memory of an embedding"""


class StateEntry(NamedTuple):
    """Form of one entry of an optimizer's state for a parameter, without its value."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    number: bool = False
    """True for a Python number"""
    mesh: Any = None
    placements: Any = None
    """both of a DTensor"""

    @classmethod
    def of(cls, value: Any) -> StateEntry:
        if not isinstance(value, Tensor):
            return cls((), as_tensor(value).dtype, torch.device("cpu"), number=True)
        mesh, placements = getattr(value, "device_mesh", None), getattr(value, "placements", None)
        return cls(tuple(value.shape), value.dtype, value.device, False, mesh, placements)


@contextmanager
def no_gradients(parameters: Iterable[Held]) -> Iterator[None]:
    """Take the gradients away meanwhile. An optimizer may know its parameters by other ways than its groups."""
    gradients = [(each.parameter, each.parameter.grad) for each in parameters]
    try:
        for parameter, _ in gradients:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


def entries_after_first_step(each: Held) -> list[dict[str, StateEntry]] | None:
    """What the optimizer keeps of a parameter after its first step, by name.

    Two stand-ins step, with zeros and with ones, because what is kept may depend on the parameter's values. One of a
    few elements is enough for most of torch's own.

    Returns:
        One dictionary per stand-in. None if a stand-in cannot step.
    """
    if isinstance(each.optimizer, torch.optim.LBFGS):
        return [{}]  # it keeps nothing by parameters
    if type(each.optimizer) in ELEMENTWISE and type(each.parameter) is nn.Parameter:
        entries = _step_stand_in(each, each.parameter.detach().new_ones(SMALL))
        return None if entries is None else [_as_large(each.parameter, entries)]
    made = [_step_stand_in(each, torch.full_like(each.parameter.detach(), value)) for value in (0.0, 1.0)]
    return [entries for entries in made if entries is not None] if None not in made else None


def _as_large(parameter: Tensor, entries: dict[str, StateEntry]) -> dict[str, StateEntry]:
    shape = tuple(parameter.shape)
    return {name: each._replace(shape=shape) if each.shape == SMALL else each for name, each in entries.items()}


def _step_stand_in(each: Held, stand_in: Tensor) -> dict[str, StateEntry] | None:
    stand_in.requires_grad_()
    stand_in.grad = stand_in.detach().clone()
    twin: Any = object.__new__(type(each.optimizer))
    twin.__dict__.update(each.optimizer.__dict__)
    # A learning rate schedule and the hooks count the optimizer's own steps only.
    twin.__dict__.pop("step", None)
    twin._optimizer_step_pre_hooks, twin._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    try:
        # A step may change tensors of the group in place, and the live group is not to change.
        group = copy.deepcopy({name: value for name, value in each.group.items() if name != "params"})
        group["params"] = [stand_in]
        twin.state, twin.param_groups, before = defaultdict(dict), [group], seen(group)
        twin.step()
        made = dict(twin.state.get(stand_in, {}))
        made |= {GROUP + name: group[name] for name in sorted(changed(before, group))}
        made |= {SHARED + name: value for name, value in twin.state.items() if isinstance(name, str)}
        return {name: StateEntry.of(value) for name, value in made.items() if value is not None}
    except Exception:  # any optimizer may want more: a closure, or sparse gradients
        return None


def group_names(each: Held, known: Set[str]) -> frozenset[str]:
    """Entries of the parameter's group that the first step of a small stand-in changes.

    Args:
        known: entries that are no longer as they were before the first step.
    """
    defaults = each.optimizer.defaults
    new = {name: value for name, value in each.group.items() if name not in known}
    each = each._replace(group=new | {name: defaults[name] for name in known if name in defaults})
    entries = _step_stand_in(each, torch.ones(SMALL, dtype=each.parameter.dtype, device=each.parameter.device)) or {}
    return frozenset(name.removeprefix(GROUP) for name in entries if name.startswith(GROUP))


def entries_now(each: Held) -> dict[str, StateEntry]:
    """What the optimizer keeps of a parameter now, by name."""
    kept = each.optimizer.state.get(each.parameter, {})
    return {name: StateEntry.of(value) for name, value in kept.items() if storable(value)}


def like_parameter(value: Tensor, parameter: Tensor) -> StateEntry:
    """The guess for an entry that the optimizer was not seen to make: like its parameter, or a tensor on the CPU."""
    if value.shape == parameter.shape:
        return StateEntry.of(parameter)._replace(dtype=value.dtype)
    return StateEntry(tuple(value.shape), value.dtype, torch.device("cpu"))


def storable(value: Any) -> bool:
    """True if a file can hold `value`. The memory of a tensor subclass, such as an 8-bit one, lacks its numbers."""
    if getattr(value, "device_mesh", None) is not None:
        value = local(value)
    if isinstance(value, Tensor):
        return type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided and not value.is_quantized
    return isinstance(value, int | float)


def as_tensor(value: Tensor | float) -> Tensor:
    """`value`; a Python number as a tensor on the CPU that has all its digits."""
    if isinstance(value, Tensor):
        return value
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None, device="cpu")
