"""Which entries of an optimizer's param groups its own `step()` changes: these are state, the others are settings.

A group is compared before and after a step. A scheduler and the user change groups between steps. Nothing here knows
the daemon.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

__all__ = ["GroupEntries", "Seen", "changed", "seen"]

Optimizer: TypeAlias = torch.optim.Optimizer


class _Value(NamedTuple):
    """A value as it was: changes in place show, too."""

    value: Any
    mark: Any
    """the version of a tensor; a copy of a list or a dictionary"""


Seen: TypeAlias = Mapping[str, _Value]
"""the entries of a group at one time, by name"""


def seen(group: Mapping[str, Any]) -> Seen:
    """The entries of `group` now, for `changed`."""
    return {name: _Value(value, _mark(value)) for name, value in group.items() if name != "params"}


def changed(before: Seen, group: Mapping[str, Any]) -> set[str]:
    """Names of the entries of `group` that are new or different since `before`."""
    now = seen(group)
    return {name for name, value in now.items() if name not in before or _differs(before[name], value)}


def _mark(value: Any) -> Any:
    if isinstance(value, Tensor):
        return None if value.is_inference() else value._version
    return copy.copy(value) if isinstance(value, list | dict | set) else None


def _differs(before: _Value, now: _Value) -> bool:
    if before.value is not now.value and (isinstance(before.value, Tensor) or isinstance(now.value, Tensor)):
        return True
    one, other = (before, now) if before.value is now.value else (before.value, now.value)
    try:
        return bool(one != other)
    except (RuntimeError, ValueError):  # an array, or a list of tensors, has no single answer
        return True


class GroupEntries:
    """The entries that steps of followed optimizers have changed, per optimizer and group.

    `begins` and `ends` go around each outermost step. A step that raises has no `ends`.
    """

    def __init__(self) -> None:
        self._before: weakref.WeakKeyDictionary[Optimizer, list[Seen]] = weakref.WeakKeyDictionary()
        self._names: weakref.WeakKeyDictionary[Optimizer, dict[int, set[str]]] = weakref.WeakKeyDictionary()
        """by a group's place"""

    def begins(self, optimizers: Sequence[Optimizer]) -> None:
        """These step now."""
        for each in optimizers:
            self._before[each] = [seen(group) for group in each.param_groups]

    def ends(self, optimizers: Sequence[Optimizer]) -> None:
        """Their step is over."""
        for each in optimizers:
            # A step that loads a state, or adds a group, leaves other groups than it began with.
            for place, (before, group) in enumerate(zip(self._before.pop(each, []), each.param_groups, strict=False)):
                if names := changed(before, group):
                    self._of(each, place).update(names)

    def add(self, optimizer: Optimizer, group: Mapping[str, Any], name: str) -> None:
        """A loaded state has this entry."""
        self._of(optimizer, _place(optimizer, group)).add(name)

    def names(self, optimizer: Optimizer, group: Mapping[str, Any]) -> frozenset[str]:
        """Entries of `group` that steps have changed, here or before the state that was loaded."""
        return frozenset(self._of(optimizer, _place(optimizer, group)))

    def _of(self, optimizer: Optimizer, place: int) -> set[str]:
        return self._names.setdefault(optimizer, {}).setdefault(place, set())


def _place(optimizer: Optimizer, group: Mapping[str, Any]) -> int:
    return next(place for place, each in enumerate(optimizer.param_groups) if each is group)
