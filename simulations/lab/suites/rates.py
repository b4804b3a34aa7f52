"""Learning rates of methods on the byte-level MLP, as multiples of that of `model.MLP`, which is near pairwise's best.

The mean of the steps of N replicas is shorter than each step. Outer momentum makes up for it, so a method without it
needs a larger rate.

Each rate is the best mean of three seeds in B1's setting among 1, 2, 4 and 8 times. One seed would mislead: with seed 0
DDP's rate was twice as large, which costs 0.06 nats on the other seeds. The page of B1 lists all rates. This module
defines no arm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["RATES"]

RATES: Final[Mapping[str, float]] = {
    "ad-psgd": 4.0,
    "choco": 2.0,
    "choco-local": 2.0,
    "d-psgd-exponential": 4.0,
    "d-psgd-exponential-local": 2.0,
    "d-psgd-ring": 4.0,
    "d-psgd-ring-local": 2.0,
    "ddp": 2.0,
    "local-sgd": 2.0,
    "server": 2.0,
    "server-async": 2.0,
    "sgp": 4.0,
    "sgp-local": 2.0,
    "sparseloco": 2.0,
    "swarm": 2.0,
}
"""by method; 1 for methods not named. Where fast hosts make more steps, they are the best of half, once and twice after
1,200 s of B4, for all methods tried there"""
