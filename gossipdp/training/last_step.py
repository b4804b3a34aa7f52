"""Whether the parameters are still those that the last step left. What else is written there is no training.

A callback may write averaged weights when training ends, and a script may load its best ones. A few elements are
remembered after every step, on their device, so that no step waits for it. Nothing here knows the daemon.
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
"""parameters of which one element is remembered, at most"""
PLACE: Final = 0.618
"""place of that element in each dimension, as a fraction"""


class LastStep:
    """One element each of some parameters.

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

    @torch.no_grad()
    def over(self) -> None:
        """A step is over, and the corrections of its boundary are applied."""
        if self._moved():
            self._addresses = [local(each).data_ptr() for each in self._some]
            self._elements = [[_element(each) for each in of_kind] for _, of_kind in groupby(self._some, _kind)]
        self._seen = [torch.stack(each) for each in self._elements]

    @torch.no_grad()
    def stands(self) -> bool:
        """True if the parameters are those of the last step. Waits for the device."""
        if not self._seen or self._moved():
            return not self._seen
        now = [torch.stack(each) for each in self._elements]
        # NaN is equal to NaN here.
        return all(
            bool(((one == other) | (one.isnan() & other.isnan())).all())
            for one, other in zip(self._seen, now, strict=True)
        )

    def _moved(self) -> bool:
        """True if a parameter has other memory than before."""
        return self._addresses != [local(each).data_ptr() for each in self._some]


def _kind(parameter: Tensor) -> tuple[str, str]:
    return str(parameter.device), str(parameter.dtype)


def _element(parameter: Tensor) -> Tensor:
    """One element of `parameter`, in its own memory."""
    held = local(parameter).detach()
    return held[tuple(int(PLACE * size) for size in held.shape)]
