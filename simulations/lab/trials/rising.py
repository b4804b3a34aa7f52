"""A trial: the outer learning rate of `pairwise` rises over the run. The trial is not in the product."""

from __future__ import annotations

from dataclasses import replace

from gossipdp.protocol.model import Outer
from simulations.lab.core import Lab
from simulations.lab.methods.pairwise import PairwiseGossip, PairwiseOptions

__all__ = ["RisingGossip"]


class RisingGossip(PairwiseGossip):
    """`pairwise` whose alpha rises in a straight line from `first` at the start to `last` at the end."""

    def __init__(self, options: PairwiseOptions | None = None, *, first: float = 0.4, last: float = 0.9) -> None:
        super().__init__(options, "pairwise, alpha rising")
        self._first, self._last = first, last

    def _outer_step(self, lab: Lab) -> Outer:
        lr = self._first + (self._last - self._first) * lab.progress
        return replace(super()._outer_step(lab), lr=lr)
