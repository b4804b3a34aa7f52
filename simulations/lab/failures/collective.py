"""DiLoCo among the hosts that are there: its collective, its last round, and hosts that copy its state.

`quorum.py` and `elastic.py` say who takes part and when. The equations and the codec are those of `FourBitDiLoCo`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from gossipdp.codecs.blocks import BLOCK
from peers.plan.timeline import Counts
from simulations.lab.baselines.costs import model_bytes
from simulations.lab.baselines.synchronous import FourBitDiLoCo, e3m0
from simulations.lab.core import Lab
from simulations.lab.failures.lab import HostLab, hosted

__all__ = ["TURNS", "HostedDiLoCo", "all_reduce_bytes", "indices"]

TURNS = 2
"""messages of a collective that follow one another: all parts to their owners, and the sums back"""


def all_reduce_bytes(hosts: int, size: float) -> float:
    """Bytes that each of `hosts` hosts receives in an all-reduce of `size` bytes (see `peers/plan/clock.py`)."""
    return 2.0 * (1.0 - 1.0 / hosts) * size


def indices(hosts: Sequence[int]) -> Counts:
    return np.array(hosts, np.int64)


@dataclass
class HostedDiLoCo(FourBitDiLoCo):
    """What the two kinds of DiLoCo share."""

    def begin(self, lab: Lab) -> None:
        self.settle(hosted(lab).hosts.there(0.0))
        super().begin(lab)

    def holders(self, lab: Lab) -> Sequence[int]:
        return self.members

    def settle(self, members: Sequence[int]) -> None:
        """These hosts hold theta and take part from now on."""
        self.members = list(members)

    def fitting(self, lab: HostLab, every: int) -> int:
        """Steps of a round, at most `every`, that end with their collective before the end of the run."""
        moved = self.collective(lab, self.members, lab.seconds) - lab.seconds
        if math.isinf(moved):
            return every
        return max(0, min(every, math.floor((lab.limit - lab.seconds - moved) / lab.setting.step_seconds + 1e-9)))

    def train(self, lab: HostLab, hosts: Sequence[int], steps: int) -> None:
        """`steps` steps of each of these hosts, from now on."""
        began = lab.seconds
        for number in range(steps):
            lab.set_clock(began + number * lab.setting.step_seconds)
            lab.step(hosts)

    def collective(self, lab: HostLab, hosts: Sequence[int], begin: float) -> float:
        """When a collective of these hosts ends; infinite if one of them dies before."""
        if len(hosts) == 1 or math.isinf(begin):
            return begin
        return lab.hosts.transfer(hosts, begin, self._collective_bytes(lab, hosts), TURNS)

    def reduce(self, lab: Lab, drifts: Tensor) -> Tensor:
        """The mean over the members, with the clock at the end of their collective."""
        there = hosted(lab)
        there.received[self.members] += self._collective_bytes(there, self.members)
        there.set_clock(self.collective(there, self.members, lab.seconds))
        return e3m0(e3m0(drifts[self.members]).mean(0, keepdim=True))[0]

    def _collective_bytes(self, lab: Lab, hosts: Sequence[int]) -> float:
        parameters = lab.problem.parameters
        return all_reduce_bytes(len(hosts), 0.5 * parameters + 2.0 * -(-parameters // BLOCK))

    def state_bytes(self, lab: Lab) -> float:
        """Bytes of theta, v and Adam's two moments in fp32."""
        return 4.0 * model_bytes(lab)

    def admit(self, lab: HostLab, source: int, newcomers: Sequence[int]) -> None:
        """Newcomers copy the state of `source`. The caller has counted the seconds."""
        if newcomers:
            lab.restore(lab.state(source), newcomers)
            lab.received[list(newcomers)] += self.state_bytes(lab)
