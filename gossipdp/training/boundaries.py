"""When a step of the model is over: told by torch's global hooks, which see every optimizer of the process.

The optimizers given to `attach` are followed. A step within a step of another optimizer over the same parameters is a
part of it: SAM steps its base. An optimizer made anew over the parameters of a followed one takes its place at its
second step alone. A step made inside a backward pass is over when that pass is. Nothing here may touch a tensor.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Final, Protocol, TypeAlias

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gossipdp.errors import ConfigError
from gossipdp.training.tensors.schema import unwrap

__all__ = ["HOOKED", "Boundaries", "Removable"]

Optimizer: TypeAlias = torch.optim.Optimizer
HOOKED: Final = torch.optim.Optimizer.profile_hook_step(lambda self: None).__code__
"""what torch runs as the `step` of every optimizer, hooks included"""


class Removable(Protocol):
    def remove(self) -> None: ...


class _Role:
    """The parameters that one optimizer of `attach` steps on, and the optimizer that does it now."""

    def __init__(self, optimizer: Optimizer, parameters: set[nn.Parameter]) -> None:
        self.optimizer, self.parameters = optimizer, parameters
        self.stepped = False
        """`optimizer` has stepped within the outermost step that runs now"""
        self.others: list[weakref.ref[Optimizer]] = []
        """those that have stepped on `parameters` since `optimizer` last did, in their order"""


class Boundaries:
    """Args:

    model: what is attached.
    optimizers: to follow, in the order in which they step; a step is over when the last of them has stepped.
    before: called before an optimizer steps on their parameters.
    over: called when a step is over, with the optimizer that made it; None: the loop itself has said so.
    changed: called with all followed optimizers when one has taken the place of another, or has other parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        *,
        before: Callable[[Optimizer], None],
        over: Callable[[Optimizer | None], None],
        changed: Callable[[tuple[Optimizer, ...]], None],
    ) -> None:
        self._before, self._over, self._changed = before, over, changed
        trained = set(unwrap(model).parameters())
        self._roles = [_Role(each, trained & set(_parameters(each))) for each in optimizers]
        self._known: weakref.WeakKeyDictionary[Optimizer, tuple[int, list[_Role]]] = weakref.WeakKeyDictionary()
        """the number of an optimizer's parameters, and its roles"""
        for each in optimizers:
            self._roles_of(each)
        self._regrouped = False
        """a followed optimizer has other parameters than before"""
        self._by_hand = False
        """the loop says when a step is over, and optimizers do not"""
        self._backward = -1
        """the backward pass in which steps were made last"""
        self._within: list[Optimizer | None] = []
        """those that made a step in it"""
        self._hooks: list[Removable] = []
        if self._roles:
            me = weakref.ref(self)
            self._hooks += [
                register_optimizer_step_pre_hook(_eager(lambda *given: _call(me, Boundaries._begins, given[0]))),
                register_optimizer_step_post_hook(_eager(lambda *given: _call(me, Boundaries._ends, given[0]))),
            ]
        self._kept: list[Removable] = []
        self._keep()

    def close(self) -> None:
        """See no more steps."""
        for hook in (*self._hooks, *self._kept):
            hook.remove()
        self._hooks.clear()
        self._kept.clear()

    def by_hand(self) -> None:
        """A step is over, the loop says; from now on it says so itself."""
        self._by_hand = True
        self._step_over(None)

    @property
    def followed(self) -> tuple[Optimizer, ...]:
        """In the order of those that `attach` was given."""
        return tuple(dict.fromkeys(role.optimizer for role in self._roles))

    def _keep(self) -> None:
        """What is called when a step is over lives as long as the optimizers: a hook that costs no step holds it."""
        for hook in self._kept:
            hook.remove()
        self._kept = [each.register_load_state_dict_post_hook(self._nothing) for each in self.followed]

    def _nothing(self, optimizer: Optimizer) -> None:
        pass

    # -- steps ------------------------------------------------------------------------------------------------

    def _begins(self, optimizer: Optimizer) -> None:
        if not self._roles_of(optimizer):
            return
        if any(role.stepped for role in self._roles) and not self._is_inner(optimizer):
            for role in self._roles:
                role.stepped = False  # of a step that raised
        self._before(optimizer)

    def _ends(self, optimizer: Optimizer) -> None:
        roles = self._roles_of(optimizer)
        for role in roles:
            if role.optimizer is optimizer:
                role.stepped = True
                role.others.clear()
        if not roles or self._is_inner(optimizer):
            return
        before = self.followed
        for role in roles:
            if not role.stepped:
                _meet(role, optimizer)
        counts = self._roles[-1].stepped
        for role in self._roles:
            role.stepped = False
        if counts and not self._by_hand:
            self._step_over(optimizer)
        if self.followed != before or self._regrouped:
            self._regrouped = False
            self._keep()
            self._changed(self.followed)

    def _roles_of(self, optimizer: Optimizer) -> list[_Role]:
        """The roles of which `optimizer` holds parameters."""
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        known = self._known.get(optimizer)
        if known is None or known[0] != count:
            self._regrouped = known is not None and optimizer in self.followed
            held = set(_parameters(optimizer))
            known = self._known[optimizer] = count, [role for role in self._roles if role.parameters & held]
        return known[1]

    def _is_inner(self, optimizer: Optimizer) -> bool:
        """Is the step that calls a hook a part of another one, or of another `step` of the same optimizer?

        torch calls the hooks once for every class whose `step` it knows, and a subclass may call its base's. The stack
        tells, and a step that raises leaves it too.
        """
        return any(each is optimizer or self._roles_of(each) for each in _outer_steps())

    def _step_over(self, optimizer: Optimizer | None) -> None:
        backward = torch._C._current_graph_task_id()
        if backward == -1:
            return self._over(optimizer)
        # What changes parameters here changes what gradients are computed from.
        if _recomputes():
            raise ConfigError(
                "GD-317",
                "a step is made inside a backward pass that is a part of another one",
                seen="a part of the model that is recomputed by a reentrant checkpoint",
                do="use torch.utils.checkpoint with use_reentrant=False, or step after backward()",
            )
        if backward != self._backward:
            self._backward = backward
            self._within.clear()
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._backward_over)
        self._within.append(optimizer)

    def _backward_over(self) -> None:
        steps = self._within[:]
        self._within.clear()
        for optimizer in steps:
            self._over(optimizer)


def _meet(role: _Role, optimizer: Optimizer) -> None:
    """`optimizer` has stepped on parameters of `role` and is not the one that is followed. Where those that do so begin
    anew, the last of them is followed; one that is gone has been replaced."""
    others = [each() for each in role.others]
    if optimizer not in others and None not in others:
        role.others.append(weakref.ref(optimizer))
        return
    role.optimizer = others[-1] or optimizer
    role.others.clear()
    role.stepped = role.optimizer is optimizer


def _parameters(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _outer_steps() -> Iterator[Optimizer]:
    """The optimizers whose `step` runs now around the innermost one of this thread."""
    frame: FrameType | None = sys._getframe()
    inner = False
    while frame is not None:
        if frame.f_code is HOOKED:
            if inner and isinstance(stepping := frame.f_locals.get("self"), torch.optim.Optimizer):
                yield stepping
            inner = True
        frame = frame.f_back


def _recomputes() -> bool:
    """Does a node of a backward pass run another backward pass now, as a reentrant checkpoint does?"""
    engine = torch.autograd.graph._engine_run_backward.__code__
    node = BackwardCFunction.apply.__code__
    frame: FrameType | None = sys._getframe()
    inside = False
    while frame is not None:
        if inside and frame.f_code is node:
            return True
        inside = inside or frame.f_code is engine
        frame = frame.f_back
    return False


def _call(me: weakref.ref[Boundaries], what: Callable[[Boundaries, Optimizer], None], optimizer: Optimizer) -> None:
    if (boundaries := me()) is not None:
        what(boundaries, optimizer)


def _eager(hook: Callable[..., None]) -> Callable[..., None]:
    """A compiled `optimizer.step` would trace its hooks, which are no part of a graph."""
    eager: Callable[..., None] = torch.compiler.disable(hook)
    return eager
