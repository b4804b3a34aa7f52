"""Which tensors a script keeps from being exchanged: `attach(..., exclude=...)`. Nothing here touches a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import Tensor, nn

from gossipdp.errors import ConfigError
from gossipdp.training.tensors.schema import places, plain_name, unwrap

__all__ = ["Exclude", "excluded_names"]

Exclude: TypeAlias = str | Iterable[str] | Callable[[str, Tensor], bool]
"""Names or patterns of tensors, such as "queue" or "head.*", or a function of name and tensor that returns True for
one."""


def excluded_names(model: nn.Module, exclude: Exclude) -> frozenset[str]:
    """Names of the parameters and persistent buffers of `model` that match `exclude`.

    Raises:
        ConfigError: GD-303, a name or a pattern matches none.
    """
    model = unwrap(model)
    tensors: dict[str, Tensor] = {plain_name(name): each for name, each in model.named_parameters()}
    for name, module, key in places(model):
        if (buffer := module._buffers[key]) is not None:
            tensors[name] = buffer
    if callable(exclude):
        return frozenset(name for name, tensor in tensors.items() if exclude(name, tensor))
    found: set[str] = set()
    for pattern in [exclude] if isinstance(exclude, str) else exclude:
        matches = {name for name in tensors if name == pattern or fnmatchcase(name, pattern)}
        if not matches:
            raise ConfigError(
                "GD-303",
                "attach(exclude=...) names a tensor that this model does not have",
                seen=f"{pattern!r} matches none of {len(tensors)} parameters and persistent buffers",
                do="use a name of model.state_dict(), or a pattern such as 'queue*'",
            )
        found |= matches
    return frozenset(found)
