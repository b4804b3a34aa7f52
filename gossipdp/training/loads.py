"""Notices that the script loads weights into the attached model: torch's hooks tell. Nothing here touches a tensor.

A load is known by the write. Its size says nothing, because a warm-up or a thawed layer leaps too.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from gossipdp.training.tensors.schema import unwrap

__all__ = ["Loads"]


class Loads:
    """Whether `load_state_dict` of the attached model, or of a part of it, has run.

    Args:
        model: the attached model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.noticed = False
        """weights were loaded since the last `take`"""
        self._model = model
        self._first: list[RemovableHandle] = []
        hook = _Hook(weakref.ref(self))
        self._hooks = [each.register_load_state_dict_post_hook(hook) for each in unwrap(model).modules()]

    def watch_first(self, written: Callable[[], bool]) -> None:
        """Look for a load that calls no hook, as of torch.distributed.checkpoint, once: at the first gradient.

        Later a write may be the optimizer's own, such as a climb of SAM, or a step that a backward pass makes itself.

        Args:
            written: whether weights were written since the model was loaded.
        """
        hook = _FirstGradient(weakref.ref(self), written)
        trained = (each for each in unwrap(self._model).parameters() if each.requires_grad)
        self._first = [each.register_post_accumulate_grad_hook(hook) for each in trained]

    @property
    def watching_first(self) -> bool:
        """Whether no optimizer has begun a step, and no gradient has come."""
        return bool(self._first)

    def steps_begin(self) -> None:
        """An optimizer begins a step, or the first gradient has come."""
        for hook in self._first:
            hook.remove()
        self._first.clear()

    def load(self) -> None:
        """Weights were loaded."""
        self.noticed = True

    def undo(self) -> None:
        """The weights are those of the last step again."""
        self.noticed = False

    def take(self) -> bool:
        """Whether weights were loaded since the last call."""
        noticed, self.noticed = self.noticed, False
        return noticed

    def close(self) -> None:
        """Notice no more loads."""
        self.steps_begin()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


class _FirstGradient:
    def __init__(self, loads: weakref.ref[Loads], written: Callable[[], bool]) -> None:
        self._loads, self._written = loads, written
        self._called = False

    def __call__(self, _parameter: nn.Parameter) -> None:
        # Gradients of each device come in a thread of their own.
        called, self._called = self._called, True
        # A hook of the script on this parameter may have stepped: then this one is removed, and is called all the same.
        if called or (loads := self._loads()) is None or not loads.watching_first:
            return
        loads.steps_begin()
        if self._written():
            loads.load()


class _Hook:
    def __init__(self, loads: weakref.ref[Loads]) -> None:
        self._loads = loads

    def __call__(self, _module: nn.Module, _keys: object) -> None:
        if (loads := self._loads()) is not None:
            loads.load()

    def __deepcopy__(self, _memo: dict[int, Any]) -> Callable[..., None]:
        return _nothing

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # A saved model must load where gossipdp is not installed. The method takes any arguments and returns None.
        return getattr, (contextlib.nullcontext(), "__exit__")


def _nothing(_module: nn.Module, _keys: object) -> None:
    """A copy of the model has another life."""
