"""The setting and options of B1 that several suites share."""

from __future__ import annotations

from typing import Any, Final

from simulations.lab.core import Setting

__all__ = ["MLP", "SPARSELOCO", "WARMUP", "diloco"]

MLP: Final = Setting(peers=16, every=20, rounds=60, lr=8e-3, evaluate_every=3)
"""Setting of B1 to B6. The learning rate is near the best of pairwise and DiLoCo; `rates.py` has the others."""

SPARSELOCO: Final = {"compressor": "topk128", "alpha": 2.0}

WARMUP: Final = 200
"""steps of a warm start, the daemon's default"""
FEW: Final = 30


def diloco(rounds: int, peers: int = MLP.peers) -> dict[str, Any]:
    """DiLoCo's options in other suites, the best of those tried for this number of rounds and peers.

    alpha was 1 among 0.7, 0.9 and 1. mu was 0.8 for 60 rounds of 16 peers, and 0.6 for 15 and 10 rounds and for 8 peers
    (B4, B9). A plain first outer step, as in pairwise, was better in all of them.
    """
    return {"alpha": 1.0, "mu": 0.8 if rounds >= FEW and peers >= MLP.peers else 0.6, "plain_first": True}
