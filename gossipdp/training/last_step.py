"""Whether the parameters are still those that the last step left: what else is written there is no training.

A callback may write averaged weights when training ends, and a script may load its best ones. A few numbers are
remembered after every step, on their device, so that no step waits for it. Nothing here may know the daemon.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import torch
from torch import Tensor

from gossipdp.training.tensors.schema import local

__all__ = ["LastStep"]

PARAMETERS: Final = 16
PLACE: Final = 0.618
"""of the number that is looked at, from the beginning of a dimension"""


class LastStep:
    """Args:

    parameters: those that are trained.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        some = [each for each in parameters if local(each).numel()]
        some = some[:: -(-len(some) // PARAMETERS) or 1]
        # One call stacks the numbers of one device and type.
        self._some = sorted(some, key=_kind)
        self._places: list[int] = []
        self._numbers: list[list[Tensor]] = []
        self._seen: list[Tensor] = []

    @torch.no_grad()
    def over(self) -> None:
        """A step is over, with all that follows from it."""
        if self._moved():
            self._places = [local(each).data_ptr() for each in self._some]
            self._numbers = [[_number(each) for each in alike] for _, alike in groupby(self._some, _kind)]
        self._seen = [torch.stack(each) for each in self._numbers]

    @torch.no_grad()
    def stands(self) -> bool:
        """Are the parameters those of the last step? Waits for the device."""
        if not self._seen or self._moved():
            return not self._seen
        now = [torch.stack(each) for each in self._numbers]
        # NaN is equal to NaN here.
        return all(
            bool(((one == other) | (one.isnan() & other.isnan())).all())
            for one, other in zip(self._seen, now, strict=True)
        )

    def _moved(self) -> bool:
        return self._places != [local(each).data_ptr() for each in self._some]


def _kind(parameter: Tensor) -> tuple[str, str]:
    return str(parameter.device), str(parameter.dtype)


def _number(parameter: Tensor) -> Tensor:
    """One number of `parameter`, in its own memory."""
    held = local(parameter).detach()
    return held[tuple(int(PLACE * size) for size in held.shape)]
