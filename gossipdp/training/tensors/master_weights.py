"""A layout that notices an optimizer which keeps the weights itself, and puts them back over what the network says.

One with master weights steps on a copy and writes that over the parameters: it undoes every correction, and a joiner's
first step replaces the network's model by the one it was made with. So some elements are remembered as they were before
a change and after it; where a step leaves them nearer to what they were, it was of that kind. The device is waited for
once a change, and no more once a correction has stayed: a model that is loaded may do so where a correction does not,
for a copy may be made with the first step. Nothing here may know the daemon.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.optimizers import held
from gossipdp.training.tensors.schema import local

__all__ = ["Watched"]

TENSORS: Final = 64
"""about so many are looked at"""
ELEMENTS: Final = 16
"""of each, at most"""
FEWEST: Final = 32
"""elements that must have moved; of fewer a usual step may go back by chance"""
MARGIN: Final = 2.0
"""times as near: a step that is longer than a third of a change may be either's"""
LOOKS: Final = 16
"""steps that may move nothing, such as those that a scaler of gradients skips, before a change is forgotten"""


class Watched(Layout):
    """Args: as `Layout`, and the optimizers that step on the model."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        excluded: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(model, excluded)
        self.follow(model, optimizers)

    def follow(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Watch the parameters of these optimizers from now on."""
        doubtful = [each.parameter for each in held(model, optimizers) if not _of_torch(each.optimizer)]
        self._some = doubtful[:: -(-len(doubtful) // TENSORS) or 1]
        self._before: Tensor | None = None
        self._after: Tensor | None = None
        self._correction, self._stayed = False, not doubtful
        self._looks = 0

    def load(self, start: int, values: Tensor, *, shards: bool = True, rest: bool = True) -> None:
        self._changes(correction=False)
        super().load(start, values, shards=shards, rest=rest)

    def add(self, start: int, values: Tensor, *, shards: bool = True, rest: bool = True) -> None:
        self._changes(correction=True)
        super().add(start, values, shards=shards, rest=rest)

    def stepping(self) -> None:
        """A step begins."""
        if self._before is not None and self._after is None:
            self._after = self._elements()

    @torch.no_grad()
    def undone(self) -> bool:
        """Has the step that is over put back what was there before a change?"""
        before, after = self._before, self._after
        if before is None or after is None:
            return False
        now = self._elements()
        changed = after != before
        moved = changed & (now != after)
        counts = torch.stack([changed.sum(), moved.sum()]).float()
        ways = torch.stack([torch.where(moved, now - each, 0.0).norm() for each in (before, after)])
        of, count, back, on = torch.cat([counts, ways]).tolist()
        self._looks += 1
        if count < FEWEST <= of and self._looks < LOOKS:
            return False
        self._before = self._after = None
        self._stayed = self._correction and count >= FEWEST and MARGIN * on < back
        return bool(count >= FEWEST and MARGIN * back < on)

    def _changes(self, *, correction: bool) -> None:
        if self._stayed or (self._before is not None and self._after is None):
            return
        self._before, self._after = self._elements(), None
        self._correction, self._looks = correction, 0

    def _elements(self) -> Tensor:
        parts = [local(each).reshape(-1) for each in self._some]
        some = [part[:: max(1, len(part) // ELEMENTS)][:ELEMENTS].to(self.device, torch.float32) for part in parts]
        return torch.cat(some)


def _of_torch(optimizer: torch.optim.Optimizer) -> bool:
    """None of torch's own keeps weights, and LBFGS may well go all the way back to where a correction came from."""
    return type(optimizer).__module__.partition(".")[0] == "torch"
