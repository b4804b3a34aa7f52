"""When a step of the model is over: torch's global hooks tell, which see every optimizer of the process.

The optimizers given to `attach` are followed. A step within another optimizer's step over the same parameters is a part
of that step: SAM steps its base. A new optimizer over the parameters of a followed one takes its place when it alone
has stepped twice. Optimizers that take turns count each for itself. A step made inside a backward pass is over when
that pass is. Nothing here touches a tensor.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Protocol, TypeAlias

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gossipdp.errors import ConfigError
from gossipdp.training.tensors.schema import unwrap

__all__ = ["Boundaries", "Removable"]

Optimizer: TypeAlias = torch.optim.Optimizer
TURN: Final = 16
"""steps in a row after which each step of an optimizer counts, although the last optimizer has made none: the critic of
a GAN makes fewer between two steps of its generator, and layers that are trained one after another make more"""
_HOOKED: Final = torch.optim.Optimizer.profile_hook_step(lambda self: None).__code__
"""the code that torch runs as the `step` of every optimizer, hooks included"""


class Removable(Protocol):
    """A handle of a torch hook."""

    def remove(self) -> None: ...


class _Role:
    """The parameters of one optimizer that `attach` was given, and the optimizer that steps on them now."""

    def __init__(self, optimizer: Optimizer, names: Mapping[nn.Parameter, str]) -> None:
        self.optimizer = optimizer
        self.parameters = names.keys() & set(_parameters(optimizer))
        self.names = {names[each] for each in self.parameters}
        self.stepped = False
        """`optimizer` has stepped within the outermost step under way"""
        self.others: list[weakref.ref[Optimizer]] = []
        """other optimizers that have stepped on `parameters` since `optimizer` last did, in order"""


class Boundaries:
    """Calls back at the steps of followed optimizers.

    Args:
        model: the attached model.
        optimizers: in the order in which they step. A step is over when the last of them has stepped, or when one
            steps more than `TURN` times in a row.
        before: called before an optimizer steps on their parameters.
        begins: called with the followed optimizers whose parameters an outermost step is about to change.
        ends: called with them after that step.
        over: called when a step is over, with the optimizer that made it; with None if the loop itself said so.
        partly: called when an optimizer has stepped and the step is not over.
        changed: called with all followed optimizers when one has taken another's place, or has other parameters.
        stepping: set here while an optimizer steps on their parameters, and while `over` runs. A step that raises
            leaves it set until the next one ends.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        *,
        before: Callable[[Optimizer], None],
        begins: Callable[[Sequence[Optimizer]], None],
        ends: Callable[[Sequence[Optimizer]], None],
        over: Callable[[Optimizer | None], None],
        partly: Callable[[], None],
        changed: Callable[[tuple[Optimizer, ...]], None],
        stepping: threading.Event,
    ) -> None:
        self._before, self._over, self._changed, self._stepping = before, over, changed, stepping
        self._step_begins, self._step_ends, self._partly = begins, ends, partly
        self._in_a_row: tuple[weakref.ref[Optimizer] | None, int] = None, 0
        """the optimizer that stepped last, and how many times in a row"""
        self._model = unwrap(model)
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        self._roles = [_Role(each, names) for each in optimizers]
        self._known: weakref.WeakKeyDictionary[Optimizer, tuple[int, list[_Role]]] = weakref.WeakKeyDictionary()
        """per optimizer: number of its parameters, and its roles"""
        for each in optimizers:
            self._roles_of(each)
        self._regrouped = False
        """a followed optimizer has other parameters than before"""
        self._by_hand = False
        """the loop says when a step is over; the steps of optimizers do not count"""
        self._backward = -1
        """the last backward pass in which steps were made"""
        self._within: list[Optimizer | None] = []
        """the optimizers that made a step in it"""
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
        """The loop says that a step is over. From now on the steps of optimizers do not count."""
        self._by_hand = True
        with self._until_over():
            self._step_over(None)

    @property
    def followed(self) -> tuple[Optimizer, ...]:
        """The optimizers that step now, in the order of those that `attach` was given."""
        return _optimizers(self._roles)

    def _keep(self) -> None:
        """Keep this object alive as long as the optimizers: a hook that no step calls refers to it."""
        for hook in self._kept:
            hook.remove()
        self._kept = [each.register_load_state_dict_post_hook(self._nothing) for each in self.followed]

    def _nothing(self, optimizer: Optimizer) -> None:
        pass

    # -- steps ------------------------------------------------------------------------------------------------

    def _begins(self, optimizer: Optimizer) -> None:
        roles = self._roles_of(optimizer)
        if not roles:
            return
        inner = self._is_inner(optimizer)
        if not inner:
            for role in self._roles:
                role.stepped = False  # the step before may have raised
        self._stepping.set()
        self._before(optimizer)
        if not inner:
            self._step_begins(_optimizers(roles))

    def _ends(self, optimizer: Optimizer) -> None:
        roles = self._roles_of(optimizer)
        for role in roles:
            if role.optimizer is optimizer:
                role.stepped = True
                role.others.clear()
        if not roles or self._is_inner(optimizer):
            return
        self._step_ends(_optimizers(roles))
        with self._until_over():
            self._outermost_ends(optimizer, roles)

    def _outermost_ends(self, optimizer: Optimizer, roles: Sequence[_Role]) -> None:
        before = self.followed
        for role in roles:
            if not role.stepped:
                _note_other(role, optimizer)
        counts = self._in_turn(optimizer) or self._roles[-1].stepped
        for role in self._roles:
            role.stepped = False
        if counts and not self._by_hand:
            self._step_over(optimizer)
        elif not self._by_hand and torch._C._current_graph_task_id() == -1:
            self._partly()
        if self.followed != before or self._regrouped:
            self._regrouped = False
            self._keep()
            self._changed(self.followed)

    def _in_turn(self, optimizer: Optimizer) -> bool:
        """After a step of `optimizer`: True if it has taken a turn of more than `TURN` steps."""
        last, times = self._in_a_row
        times = times + 1 if last is not None and last() is optimizer else 1
        self._in_a_row = weakref.ref(optimizer), times
        return times > TURN and optimizer in self.followed

    def _roles_of(self, optimizer: Optimizer) -> list[_Role]:
        """The roles whose parameters `optimizer` holds."""
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        known = self._known.get(optimizer)
        if known is None or known[0] != count:
            self._regrouped = known is not None and optimizer in self.followed
            held = set(_parameters(optimizer))
            self._meet(held)
            known = self._known[optimizer] = count, [role for role in self._roles if role.parameters & held]
        return known[1]

    def _meet(self, held: set[nn.Parameter]) -> None:
        """Of these parameters, those that have replaced others of the same name belong to the others' roles."""
        for name, parameter in self._model.named_parameters():
            if parameter in held:
                for role in self._roles:
                    if name in role.names:
                        role.parameters.add(parameter)

    def _is_inner(self, optimizer: Optimizer) -> bool:
        """True if the step that calls a hook is a part of another step, of this optimizer or of another.

        torch calls the hooks once per class whose `step` it has wrapped, and a subclass may call its base's. The stack
        shows which is outermost, also after a step that raised.
        """
        return any(each is optimizer or self._roles_of(each) for each in _outer_steps())

    def _step_over(self, optimizer: Optimizer | None) -> None:
        backward = torch._C._current_graph_task_id()
        if backward == -1:
            return self._over(optimizer)
        # A change of parameters here would change what gradients are computed from.
        if _recomputes():
            raise ConfigError(
                "GD-317",
                "a step runs inside a backward pass that is part of another one",
                seen="a reentrant checkpoint recomputes a part of the model",
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
        with self._until_over():
            for optimizer in steps:
                self._over(optimizer)

    @contextmanager
    def _until_over(self) -> Iterator[None]:
        self._stepping.set()
        try:
            yield
        finally:
            self._stepping.clear()


def _note_other(role: _Role, optimizer: Optimizer) -> None:
    """`optimizer`, which is not followed, has stepped on parameters of `role`.

    When such optimizers begin their second turn, or one of them is gone, the last of them is followed.
    """
    others = [each() for each in role.others]
    if optimizer not in others and None not in others:
        role.others.append(weakref.ref(optimizer))
        return
    role.optimizer = others[-1] or optimizer
    role.others.clear()
    role.stepped = role.optimizer is optimizer


def _optimizers(roles: Iterable[_Role]) -> tuple[Optimizer, ...]:
    return tuple(dict.fromkeys(role.optimizer for role in roles))


def _parameters(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _outer_steps() -> Iterator[Optimizer]:
    """The optimizers whose `step` is under way in this thread, around the innermost one."""
    frame: FrameType | None = sys._getframe()
    inner = False
    while frame is not None:
        if frame.f_code is _HOOKED:
            if inner and isinstance(stepping := frame.f_locals.get("self"), torch.optim.Optimizer):
                yield stepping
            inner = True
        frame = frame.f_back


def _recomputes() -> bool:
    """True if a node of a backward pass runs another backward pass now, as a reentrant checkpoint does."""
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
    """`hook`, untraced: a compiled `optimizer.step` would trace its hooks, which are no part of a graph."""
    eager: Callable[..., None] = torch.compiler.disable(hook)
    return eager
