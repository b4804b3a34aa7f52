"""Runs with events, as data. Their methods have names of their own, so that no other kept answer depends on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulations.lab.failures.decoupled import FailingDecoupled
from simulations.lab.failures.elastic import ElasticDdp, WaitingDiLoCo
from simulations.lab.failures.gossip import FailingPairwise
from simulations.lab.failures.hosts import FailureSetting
from simulations.lab.failures.lab import HostMethod, play
from simulations.lab.failures.quorum import QuorumDiLoCo
from simulations.lab.methods.pairwise import PairwiseOptions
from simulations.lab.runs.runs import TASKS, Run

__all__ = ["METHODS", "FailureRun"]


def _pairwise(**options: Any) -> HostMethod:
    return FailingPairwise(PairwiseOptions(**options))


METHODS: dict[str, Callable[..., HostMethod]] = {
    "pairwise": _pairwise,
    "diloco-quorum": QuorumDiLoCo,
    "diloco-waiting": WaitingDiLoCo,
    "ddp-elastic": ElasticDdp,
    "diloco-decoupled": FailingDecoupled,
}


@dataclass(frozen=True, kw_only=True)
class FailureRun(Run):
    """One method on one problem, on hosts with events."""

    setting: FailureSetting

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "kind": "failures"}

    def _code(self) -> tuple[set[str], set[str]]:
        method = self.made()
        found = {type(method).__module__, TASKS[self.problem].__module__, "simulations.lab.failures.lab"}
        return found, {__name__}

    def made(self) -> HostMethod:
        return METHODS[self.method](**self.options)

    def play(self) -> dict[str, Any]:
        """The curve, and shares of each host's time there: idle, and in steps that were lost."""
        method = self.made()
        curve, lab = play(TASKS[self.problem](**self.data), method, self.setting)
        idle, lost = lab.idle_shares(), lab.lost_shares()
        healthy = [host for host in range(lab.peers) if host not in lab.hosts.afflicted]
        return {
            "parameters": curve.parameters,
            "points": [list(point) for point in curve.points],
            "facts": {
                "idle": float(idle.mean()),
                "idle, healthy": float(idle[healthy].mean()) if healthy else float(idle.mean()),
                "lost": float(lost.mean()),
                **{f"idle, host {host}": float(share) for host, share in enumerate(idle)},
                **({"finished": method.finish(lab)} if isinstance(method, FailingPairwise) else {}),
            },
        }
