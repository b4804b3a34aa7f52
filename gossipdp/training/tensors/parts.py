"""Several modules as one model: a network and a loss with weights of its own, a generator and a discriminator.

Nothing here may touch a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from torch import nn

from gossipdp.errors import MismatchError
from gossipdp.training.tensors.schema import unwrap

__all__ = ["Modules", "as_one"]

Modules: TypeAlias = nn.Module | list[nn.Module] | tuple[nn.Module, ...] | Mapping[str, nn.Module]
"""one module, or several: parameter `weight` of the module under "head", or of the second one, is "head.weight" or
"1.weight" on every host"""


class _Parts(nn.Module):
    """Holds modules; their training mode and hooks stay as they are."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__()
        # Not by `add_module`: it refuses the names of its own methods, such as "train".
        self._modules.update({name: unwrap(module) for name, module in modules.items()})


def as_one(model: Modules) -> nn.Module:
    """One module that holds all parameters and buffers of `model`.

    Raises:
        MismatchError: GD-305, it is no module, or a name that cannot be part of a parameter's name.
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
            "the model is no torch module, nor several",
            seen=", ".join(wrong) or type(model).__name__,
            do="attach one module, a list of modules, or a mapping from names without '.' to modules",
        )
    return _Parts(modules)


def _fits(name: object, module: object) -> bool:
    return isinstance(module, nn.Module) and isinstance(name, str) and name != "" and "." not in name
