"""The model, setting and options that several suites share: those of B1."""

from __future__ import annotations

from typing import Any, Final

from simulations.lab.core import Setting

__all__ = ["EPIDEMIC", "MLP", "WARMUP", "WIDER", "diloco"]

MLP: Final = Setting(peers=16, every=20, rounds=60, lr=8e-3, evaluate_every=3)
"""What B1 to B6 train with; the learning rate is near the best of pairwise and DiLoCo, others have theirs (rates)."""

EPIDEMIC: Final = {"compressor": "topk128", "alpha": 2.0}
"""alpha 1 is for runs longer than these (suite defaults)"""
WIDER: Final = {**EPIDEMIC, "compressor": "topk256"}
"""the daemon's default"""

WARMUP: Final = 200
"""steps, the daemon's default"""
FEW: Final = 30


def diloco(rounds: int, peers: int = MLP.peers) -> dict[str, Any]:
    """DiLoCo's options in other suites: the outer step and momentum that were the better ones in so many outer steps of
    so many peers (alpha 1 of 0.7, 0.9 and 1; mu 0.8 in 60 rounds of 16, 0.6 in 15 and in 10, and of 8 peers in B4 and
    B9), and a first outer step as plain as pairwise's, which was better in all."""
    return {"alpha": 1.0, "mu": 0.8 if rounds >= FEW and peers >= MLP.peers else 0.6, "plain_first": True}
