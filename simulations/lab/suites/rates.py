"""Learning rates of methods on the byte-level MLP: how many times that of `b1.MLP`, which is near pairwise's best.

The mean of N replicas' steps is shorter than each of them, and outer momentum makes up for it. So a method without it
wants a greater rate, and at pairwise's it would look worse than it is. Chosen by the mean of three seeds of B1's
setting, of 1, 2, 4 and 8 times (one seed misleads: by seed 0 DDP's was twice as great, which costs the others 0.06
nats); B1 tells what the others give. No arm may stand here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["RATES", "UNEQUAL"]

RATES: Final[Mapping[str, float]] = {
    "ad-psgd": 4.0,
    "choco": 2.0,
    "choco-local": 2.0,
    "d-psgd-exponential": 4.0,
    "d-psgd-exponential-local": 2.0,
    "d-psgd-ring": 4.0,
    "d-psgd-ring-local": 2.0,
    "ddp": 2.0,
    "epidemic": 2.0,
    "epidemic-churning": 2.0,
    "local-sgd": 2.0,
    "server": 2.0,
    "server-async": 2.0,
    "sgp": 4.0,
    "sgp-local": 2.0,
    "sparseloco": 2.0,
    "swarm": 2.0,
}
"""by method; 1 of those not named"""
UNEQUAL: Final[Mapping[str, float]] = {**RATES, "epidemic": 1.0}
"""where fast hosts make more steps: of 1, 2 and 4 times the best after 1,200 s of B4, which plays half of it, too; for
all others that were tried the rate of B1 is the best of half, once and twice as much"""
