"""Published methods that the laboratory compares with, by name, each with the parameters of its paper.

    BASELINES["diloco"]()        a new method; one run uses one object

A baseline is one class. Its docstring has the equation, the paper, and the cost in bytes and simulated seconds.

`synchronous.py` and `sparse.py` have methods that wait for all peers, `overlapped.py` and `decoupled.py` DiLoCo that
does not wait. The project's own method is in `methods`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from peers.plan.clock import compute_seconds, own_pace
from simulations.lab.baselines.costs import Averaged
from simulations.lab.baselines.decoupled import DecoupledDiLoCo
from simulations.lab.baselines.overlapped import OverlappedDiLoCo, OverlappedFourBitDiLoCo
from simulations.lab.baselines.sparse import SparseLoCo
from simulations.lab.baselines.synchronous import Ddp, DiLoCo, FourBitDiLoCo, LocalSgd
from simulations.lab.core import Lab, Method

__all__ = ["BASELINES", "LocalOnly"]


@dataclass
class LocalOnly(Averaged):
    """No communication: theta_i <- inner^H_i(theta_i). The model is that of peer 0."""

    name: str = "local-only"

    def round(self, lab: Lab) -> None:
        lab.train(own_pace(lab))
        lab.elapse(compute_seconds(lab, lab.setting.every))

    def model(self, lab: Lab) -> Tensor:
        return lab.x[0]


BASELINES: dict[str, Callable[..., Method]] = {
    "local-only": LocalOnly,
    "ddp": Ddp,
    "local-sgd": LocalSgd,
    "diloco": DiLoCo,
    "diloco-4bit": FourBitDiLoCo,
    "diloco-overlapped": OverlappedDiLoCo,
    "diloco-4bit-overlapped": OverlappedFourBitDiLoCo,
    "diloco-decoupled": DecoupledDiLoCo,
    "sparseloco": SparseLoCo,
}
