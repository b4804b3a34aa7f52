"""A layout that notices an optimizer with master weights, which undoes what the network changes.

Such an optimizer steps on a copy of the weights and writes the copy over the parameters. It undoes every correction,
and a joiner's first step would replace the network's model by the joiner's initial one. So some elements are remembered
before and after a change. A step that leaves them nearer to what they were before has undone it. One undone load is
told, or two undone corrections in a row. The device is waited for once per change, and not again after a correction has
stayed. A loaded model may stay where a correction does not, because the copy may be made at the first step. Nothing
here knows the daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from gossipdp.errors import ConfigError, GossipdpError
from gossipdp.training.reasons import warn
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.optimizers import held, of_torch
from gossipdp.training.tensors.schema import local
from gossipdp.training.tensors.streams import dense

__all__ = ["MasterWeights", "put_back"]

TENSORS: Final = 64
"""tensors that are remembered, about"""
ELEMENTS: Final = 16
"""elements of each, at most"""
FEWEST: Final = 32
"""elements that must have moved; fewer may move back by chance in an ordinary step"""
MARGIN: Final = 2.0
"""ratio of distances that decides; a step longer than a third of a change could be of either kind"""
TWICE: Final = 2
"""corrections in a row that must have been undone. One may be by chance: against a partner that has hardly moved, a
correction takes half of this host's last steps back, and the next step repeats them"""
LOOKS: Final = 16
"""steps without movement, such as those a gradient scaler skips, after which a change is forgotten"""


class MasterWeights(Layout):
    """A `Layout` that can tell whether a step has undone a change.

    Args:
        model, excluded, warn: as `Layout`.
        optimizers: those that step on the model. Torch's own are not watched.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        excluded: frozenset[str] = frozenset(),
        warn: Callable[[GossipdpError], None] = warn,
    ) -> None:
        super().__init__(model, excluded, warn)
        self.follow(model, optimizers)

    def follow(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Watch the parameters of these optimizers from now on."""
        # None of torch's keeps master weights, and LBFGS may step all the way back over a correction.
        doubtful = [each.parameter for each in held(model, optimizers) if not of_torch(each.optimizer)]
        self._some = doubtful[:: -(-len(doubtful) // TENSORS) or 1]
        self._before: Tensor | None = None
        """elements before the last change"""
        self._after: Tensor | None = None
        """elements after it, at the beginning of the next step"""
        self._correction = False
        """the last change was a correction, and not a load"""
        self._stayed = not doubtful
        """a correction has survived a step: nothing is watched any more"""
        self._looks = 0
        self._undone = 0
        """corrections in a row that were undone"""

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
        """After a step: True if it has put back a loaded model, or a second correction in a row."""
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
        if not (count >= FEWEST and MARGIN * back < on):
            self._undone = 0
            return False
        self._undone += 1
        return not self._correction or self._undone >= TWICE

    def _changes(self, *, correction: bool) -> None:
        if self._stayed or (self._before is not None and self._after is None):
            return
        self._before, self._after = self._elements(), None
        self._correction, self._looks = correction, 0

    def _elements(self) -> Tensor:
        parts = [dense(local(each)) for each in self._some]
        some = [part[:: max(1, len(part) // ELEMENTS)][:ELEMENTS].to(self.device, torch.float32) for part in parts]
        return torch.cat(some)


def put_back(names: str) -> ConfigError:
    """The error GD-317 for optimizers whose corrections are undone. names: their classes."""
    return ConfigError(
        "GD-317",
        "this optimizer keeps its own copy of the weights, and has overwritten those of the network with it",
        seen=f"{names}: its step put the parameters back to their values before the correction",
        do="step on the parameters themselves: in fp32 under autocast, or in bf16 with an optimizer of torch; turn"
        " master weights off",
    )
