"""What the baselines share: a model that is the mean of the replicas, and its bytes."""

from __future__ import annotations

from torch import Tensor

from peers.plan.clock import FLOAT
from simulations.lab.core import Lab

__all__ = ["Averaged", "model_bytes"]


class Averaged:
    """A method whose model is the mean of the replicas. It needs no preparation."""

    def begin(self, lab: Lab) -> None:
        pass

    def model(self, lab: Lab) -> Tensor:
        return lab.mean


def model_bytes(lab: Lab) -> float:
    """Bytes of all parameters in fp32."""
    return FLOAT * lab.problem.parameters
