"""Published methods that the laboratory compares with, by name, each with the parameters of its paper.

    BASELINES["diloco"]()        a new method; one run uses one object

A baseline is one class. Its docstring has the equation, the paper, and the cost in bytes and simulated seconds.

`synchronous.py` and `decoupled_momentum.py` have methods that wait for all peers, `overlapped.py` and `decoupled.py`
DiLoCo that does not wait. `parameter_server.py`, `gossip.py` and `push_sum.py` have the rest. The project's own method
is in `methods`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from peers.plan.clock import compute_seconds, own_pace
from simulations.lab.baselines.costs import Averaged
from simulations.lab.baselines.decoupled import DecoupledDiLoCo
from simulations.lab.baselines.decoupled_momentum import DeMo
from simulations.lab.baselines.gossip import AdPsgd, Choco, DPsgd, Gasloc, NoLoCo, PairAveraging, exponential, ring
from simulations.lab.baselines.overlapped import OverlappedDiLoCo, OverlappedFourBitDiLoCo
from simulations.lab.baselines.parameter_server import AsynchronousServer, SynchronousServer
from simulations.lab.baselines.push_sum import Sgp
from simulations.lab.baselines.synchronous import Ddp, DiLoCo, FourBitDiLoCo, LocalSgd, SparseLoCo, Sparta
from simulations.lab.compressors import COMPRESSORS
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


BASELINES: dict[str, Callable[[], Method]] = {
    "local-only": LocalOnly,
    "ddp": Ddp,
    "server": SynchronousServer,
    "server-async": AsynchronousServer,
    "local-sgd": LocalSgd,
    "diloco": DiLoCo,
    "diloco-4bit": FourBitDiLoCo,
    "diloco-overlapped": OverlappedDiLoCo,
    "diloco-4bit-overlapped": OverlappedFourBitDiLoCo,
    "sparseloco": lambda: SparseLoCo(COMPRESSORS["topk64"]),
    "demo": DeMo,
    "sparta": Sparta,
    "noloco": NoLoCo,
    "gasloc": Gasloc,
    "swarm": PairAveraging,
    "ad-psgd": AdPsgd,
    "d-psgd-ring": lambda: DPsgd(ring, "d-psgd-ring"),
    "d-psgd-ring-local": lambda: DPsgd(ring, "d-psgd-ring-local", local=True),
    "d-psgd-exponential": lambda: DPsgd(exponential, "d-psgd-exponential"),
    "d-psgd-exponential-local": lambda: DPsgd(exponential, "d-psgd-exponential-local", local=True),
    "sgp": Sgp,
    "sgp-local": lambda: Sgp("sgp-local", local=True),
    "choco": lambda: Choco(COMPRESSORS["sign"]),
    "choco-local": lambda: Choco(COMPRESSORS["sign"], name="choco-local", local=True),
}
"""methods named `-local` make H steps between exchanges; in their papers they make one"""

# A line in the dictionary would change the fingerprint of every kept answer of a baseline. This one changes none.
BASELINES["diloco-decoupled"] = DecoupledDiLoCo
