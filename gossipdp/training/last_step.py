"""Knows whether parameters are still those that the last step left, or the script has written others since.

What a script does after each step, such as to clip weights, belongs to the step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import Final

import torch
from torch import Tensor

from gossipdp.training.tensors.schema import local

__all__ = ["LastStep"]

PARAMETERS: Final = 16
"""parameters of which one element is remembered, at most"""
PLACE: Final = 0.618
"""place of that element in each dimension, as a fraction"""
RECENT: Final = 32
"""steps before which writes are remembered"""
LONGER: Final = 2.0
"""a write of up to this many times the length of the script's usual ones is another of them"""


class LastStep:
    """Whether parameters are still those that the last step left: one element of some is remembered on its device.

    Args:
        parameters: those that are trained.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        some = [each for each in parameters if local(each).numel()]
        some = some[:: -(-len(some) // PARAMETERS) or 1]
        # One call stacks the elements of one device and type.
        self._some = sorted(some, key=_kind)
        self._addresses: list[int] = []
        self._elements: list[list[Tensor]] = []
        self._seen: list[Tensor] = []
        self._recent: deque[tuple[list[Tensor], list[Tensor]]] = deque(maxlen=RECENT)
        """elements after recent steps, and before the next one"""

    @torch.no_grad()
    def over(self) -> None:
        """A step is over, and the corrections of its boundary are applied."""
        if self._moved():
            self._addresses = [local(each).data_ptr() for each in self._some]
            self._elements = [[_element(each) for each in of_kind] for _, of_kind in groupby(self._some, _kind)]
        self._seen = self._now()

    @torch.no_grad()
    def begins(self) -> None:
        """A step begins, and no weights were loaded since the last one. Never waits."""
        if self._seen and not self._moved():
            self._recent.append((self._seen, self._now()))

    @torch.no_grad()
    def stands(self) -> bool:
        """True if the parameters are those of the last step, up to a usual write. Waits for the device."""
        if not self._seen or self._moved():
            return not self._seen
        changed = _change(self._seen, self._now())
        return changed == 0.0 or changed <= LONGER * self._usual()

    def _usual(self) -> float:
        """How far the script's own writes usually go: the second furthest, because one is no habit."""
        return sorted([0.0, 0.0, *(_change(*each) for each in self._recent)])[-2]

    def _now(self) -> list[Tensor]:
        return [torch.stack(each) for each in self._elements]

    def written(self) -> bool:
        """True if parameters have been written in place since the last step. Waits for the device."""
        return bool(self._seen) and not self._moved() and not self.stands()

    def _moved(self) -> bool:
        """True if a parameter has other memory than before."""
        return self._addresses != [local(each).data_ptr() for each in self._some]


def _kind(parameter: Tensor) -> tuple[str, str]:
    return str(parameter.device), str(parameter.dtype)


def _change(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """The largest difference of two elements. NaN is equal to NaN here."""
    changes = (
        torch.where((one == other) | (one.isnan() & other.isnan()), 0.0, (one.double() - other.double()).abs())
        for one, other in zip(before, after, strict=True)
    )
    return max((float(each.nan_to_num(nan=torch.inf).max()) for each in changes), default=0.0)


def _element(parameter: Tensor) -> Tensor:
    """One element of `parameter`, in its own memory."""
    held = local(parameter).detach()
    return held[tuple(int(PLACE * size) for size in held.shape)]
