"""Several modules as one model: a network and a loss with weights of its own, a generator and a discriminator.

Nothing here touches a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from torch import nn

from gossipdp.errors import MismatchError
from gossipdp.training.tensors.schema import unwrap

__all__ = ["Modules", "as_one", "parts_of"]

Modules: TypeAlias = nn.Module | list[nn.Module] | tuple[nn.Module, ...] | Mapping[str, nn.Module]
"""One module, or several in a list or by name. Parameter `weight` of the module under "head" is "head.weight"; of the
second module in a list it is "1.weight"."""


class _Parts(nn.Module):
    """Holds modules, without a change of their training mode or hooks."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__()
        # `add_module` refuses names of its own methods, such as "train".
        self._modules.update({name: unwrap(module) for name, module in modules.items()})


def as_one(model: Modules) -> nn.Module:
    """One module that holds all parameters and buffers of `model`.

    Raises:
        MismatchError: GD-305, `model` is no module, or a name in it cannot be part of a parameter's name.
    """
    if isinstance(model, nn.Module):
        return model
    modules: dict[str, nn.Module] = {}
    if isinstance(model, Mapping):
        modules = {name: model[name] for name in sorted(model, key=str)}  # hosts may differ in their order
    elif isinstance(model, list | tuple):
        modules = {str(place): module for place, module in enumerate(model)}
    wrong = [f"{name!r}: {type(module).__name__}" for name, module in modules.items() if not _fits(name, module)]
    if wrong or not modules:
        raise MismatchError(
            "GD-305",
            "the model is neither a torch module nor a collection of them",
            seen=", ".join(wrong) or type(model).__name__,
            do="attach one module, a list of modules, or a mapping from names without '.' to modules",
        )
    return _Parts(modules)


def parts_of(model: nn.Module) -> list[nn.Module]:
    """The modules that `as_one` was given, unwrapped."""
    return [*model.children()] if isinstance(model, _Parts) else [unwrap(model)]


def _fits(name: object, module: object) -> bool:
    return isinstance(module, nn.Module) and isinstance(name, str) and name != "" and "." not in name
