"""The optimizers that an attachment follows, with their moments and state."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gossipdp.training.messages import log
from gossipdp.training.optimizer_state.adam import AdamMoments
from gossipdp.training.optimizer_state.group_entries import GroupEntries
from gossipdp.training.optimizer_state.state_dict import (
    optimizer_tensors,
    refuse_empty_state,
    reset_optimizers,
    restore_optimizer,
    sharded_tensors,
)
from gossipdp.training.tensors.layout import Layout

__all__ = ["Optimizers"]


class Optimizers:
    """One or several optimizers of one model. One that was made anew takes the place of another (`follow`).

    Args:
        model: the attached model.
        optimizers: in the order in which they step.
        layout: the model's exchanged tensors; None while gossip is off.
    """

    def __init__(self, model: nn.Module, optimizers: tuple[torch.optim.Optimizer, ...], layout: Layout | None) -> None:
        self._model, self._all = model, optimizers
        self.moments = None if layout is None else AdamMoments.find(layout, model, optimizers)
        """None if no optimizer has moments that can be shared"""
        self.groups = GroupEntries()
        """the entries of param groups that steps change"""
        self._hooks: list[RemovableHandle] = []

    @property
    def all(self) -> tuple[torch.optim.Optimizer, ...]:
        """In the order in which they step."""
        return self._all

    @property
    def names(self) -> str:
        """Their classes, for messages."""
        return ", ".join(type(each).__name__ for each in self._all)

    def watch(self) -> None:
        """Count steps anew whenever a state is loaded into an optimizer, until `unwatch`."""
        self._hooks = [] if self.moments is None else self.moments.watch()

    def unwatch(self) -> None:
        """End what `watch` began."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def follow(self, optimizers: tuple[torch.optim.Optimizer, ...]) -> None:
        """These are the optimizers now: one was made anew, or has other parameters."""
        if optimizers != self._all:
            self._all = optimizers
            log.info("an optimizer was made anew; the peer follows %s", self.names)
        if self.moments is not None:
            self.unwatch()
            self.moments.follow(self._model, optimizers)
            self.watch()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer` is about to step: check the moments that it was given."""
        if self.moments is not None and self.moments.unproved:
            self.moments.prove(optimizer)

    def moved(self) -> None:
        """Parameters have moved without a step. LBFGS would take that for curvature, so its memory begins anew."""
        for each in self._all:
            if isinstance(each, torch.optim.LBFGS):
                each.state.clear()

    def reset(self) -> None:
        """Let the optimizers' state begin anew. Collective."""
        reset_optimizers(self._model, self._all)
        if self.moments is not None:
            self.moments.recount()

    def tensors(self) -> dict[str, Tensor]:
        """As `optimizer_tensors`."""
        return optimizer_tensors(self._model, self._all, self.groups)

    def shards(self) -> dict[str, Tensor]:
        """As `sharded_tensors`."""
        return sharded_tensors(self._model, self._all, self.groups)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """As `restore_optimizer`. An empty state of optimizers that keep some is refused."""
        refuse_empty_state(self._model, self._all, tensors)
        restore_optimizer(self._model, self._all, tensors, self.groups)
        if self.moments is not None:
            self.moments.recount()
