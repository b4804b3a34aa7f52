"""The byte-level MLP that several suites train: its setting, the methods' learning rates, and DiLoCo's options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from simulations.lab.core import Setting

__all__ = ["MLP", "RATES", "START", "WARMUP", "Clocked", "diloco"]

Clocked: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any], int]]
"""method, options and H, by label"""

MLP: Final = Setting(peers=16, every=20, rounds=60, lr=8e-3, evaluate_every=3)
"""The learning rate is near the best of pairwise and DiLoCo; `RATES` has the others."""
RATES: Final[Mapping[str, float]] = {"ddp": 2.0, "local-sgd": 2.0, "sparseloco": 2.0}
"""Multiples of that rate, by method; 1 for others: the best mean of three seeds among 1, 2, 4 and 8 times.

The mean of the steps of N replicas is shorter than each step. Outer momentum makes up for it, so a method without it
needs a larger rate.
"""

START: Final = "its own warm start"
WARMUP: Final = 200
"""steps of a warm start, the daemon's default"""
FEW: Final = 30


def diloco(rounds: int, peers: int = MLP.peers) -> dict[str, Any]:
    """DiLoCo's options, the best of those tried for this number of rounds and peers (docs/laboratory.md).

    alpha was 1 among 0.7, 0.9 and 1. mu was 0.8 for 60 rounds of 16 peers, and 0.6 for 15 and 10 rounds and for 8
    peers. A plain first outer step, as in pairwise, was better in all of them.
    """
    return {"alpha": 1.0, "mu": 0.8 if rounds >= FEW and peers >= MLP.peers else 0.6, "plain_first": True}
