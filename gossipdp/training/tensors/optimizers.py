"""The optimizers that a peer follows: unwrapped, and refused before training if their steps cannot be seen.

Nothing here touches a tensor or knows the daemon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from gossipdp.errors import ConfigError
from gossipdp.training.tensors.schema import plain_name, unwrap

__all__ = ["Held", "bare", "followed", "held", "of_torch", "refuse_strangers", "unheld"]


WRAPPERS: Final = ("AcceleratedOptimizer", "_FabricOptimizer", "LightningOptimizer")
"""classes around a torch optimizer, which is their `optimizer`; the last two imitate its class"""


HOOKS: Final = tuple(f"_optimizer_{each}_hooks" for each in ("step_pre", "step_post", "load_state_dict_post"))
"""attributes that `Optimizer.__init__` makes, and that `attach` needs"""


class Held(NamedTuple):
    """A parameter of the model, and the optimizer that steps on it."""

    name: str
    parameter: nn.Parameter
    optimizer: torch.optim.Optimizer
    group: dict[str, Any]


def bare(optimizer: object) -> torch.optim.Optimizer:
    """The torch optimizer inside the wrapper of Accelerate, Fabric or Lightning, on which no hook would fire.

    Other torch optimizers are returned as they are.

    Raises:
        ConfigError: GD-317, it is no torch optimizer, or steps on a copy of the parameters.
    """
    # By class name, because DeepSpeed's has `.optimizer` too, which steps on a flat copy of the parameters.
    wrapped = any(kind.__name__ in WRAPPERS for kind in type(optimizer).__mro__)
    inner = getattr(optimizer, "optimizer", None) if wrapped else optimizer
    if not _whole(inner) or "DeepSpeed" in type(inner).__name__:
        do = "train with DDP or FSDP2 (fully_shard) and a torch optimizer; DeepSpeed is not supported"
        if "DeepSpeed" not in type(inner).__name__ and (path := _inside(inner)):
            do = f"pass the optimizer inside: `attach(model, optimizer{path})`; keep calling step() on the wrapper"
        raise ConfigError(
            "GD-317",
            "this optimizer does not step on the model's own parameters, and cannot be followed",
            seen=f"{type(inner).__module__}.{type(inner).__name__}",
            do=do,
        )
    assert isinstance(inner, torch.optim.Optimizer)
    return inner


def _whole(optimizer: object) -> bool:
    """True if torch calls hooks at its steps. A subclass that never called Optimizer.__init__ has not all of them."""
    return isinstance(optimizer, torch.optim.Optimizer) and all(hasattr(optimizer, each) for each in HOOKS)


def _inside(wrapper: object, depth: int = 3) -> str:
    """Attribute path to a torch optimizer, or a list of them, inside `wrapper`: ".inner.optim"; "" if it has none."""
    kept = {} if isinstance(wrapper, nn.Module | type) else getattr(wrapper, "__dict__", {})
    for name, value in kept.items():
        several = isinstance(value, list | tuple) and len(value) > 0 and all(map(_whole, value))
        if _whole(value) or several:
            return f".{name}"
    for name, value in kept.items():
        if depth > 1 and not isinstance(value, torch.Tensor) and (path := _inside(value, depth - 1)):
            return f".{name}{path}"
    return ""


def followed(optimizer: object) -> tuple[torch.optim.Optimizer, ...]:
    """One optimizer or a sequence of them, each unwrapped, in their order.

    Raises:
        ConfigError: GD-317, as `bare`, or there is none, or two of them step on one parameter.
    """
    given = optimizer if isinstance(optimizer, Sequence) else [optimizer]
    found = tuple(bare(each) for each in given)
    if not found:
        raise ConfigError("GD-317", "there is no optimizer to follow", seen="none in the sequence", do="pass one")
    parameters = [parameter for each in found for group in each.param_groups for parameter in group["params"]]
    if len(set(parameters)) < len(parameters):
        raise ConfigError(
            "GD-317",
            "two optimizers step on one parameter, so gossipdp cannot know when its step is over",
            seen=", ".join(type(each).__name__ for each in found),
            do="pass each optimizer once; if several share parameters, pass only the one that steps last",
        )
    return found


def held(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[Held]:
    """The parameters of `model` that one of `optimizers` steps on, in the model's order."""
    of = {
        parameter: (optimizer, group)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for name, parameter in unwrap(model).named_parameters():
        if parameter in of:
            yield Held(plain_name(name), parameter, *of[parameter])


def of_torch(optimizer: torch.optim.Optimizer) -> bool:
    """True for torch's own classes."""
    return type(optimizer).__module__.partition(".")[0] == "torch"


def refuse_strangers(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Check that each of `optimizers` steps on an exchanged parameter.

    Raises:
        ConfigError: GD-317, one does not.
    """
    steps = {id(each.optimizer) for each in held(model, optimizers) if each.parameter.requires_grad}
    for optimizer in optimizers:
        if id(optimizer) not in steps:
            count = sum(len(group["params"]) for group in optimizer.param_groups)
            raise ConfigError(
                "GD-317",
                "this optimizer steps on no trained parameter of this model, and gossip would exchange what it"
                " never changes",
                seen=f"{type(optimizer).__name__} of {count} parameters, none of them the model's",
                do="make it from the parameters of the attached model, after that model is sharded and copied;"
                " do not pass the optimizer of another model",
            )


def unheld(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> list[ConfigError]:
    """GD-319 if `optimizers` train parameters that `model` does not hold: they are not exchanged."""
    known = set(unwrap(model).parameters())
    strangers = [
        group["param_names"][place] if "param_names" in group else f"parameter {place} of group {number} {shape}"
        for optimizer in optimizers
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
        if parameter.requires_grad and parameter not in known
        for shape in [tuple(parameter.shape)]
    ]
    cause = "the optimizer trains parameters that the attached model does not hold"
    do = "attach every module that is trained: attach([model, loss], optimizer), or GossipCallback(modules=[loss])"
    if not strangers:
        return []
    seen = f"{len(strangers)}, the first is {strangers[0]}; they are not exchanged"
    return [ConfigError("GD-319", cause, seen=seen, do=do)]
