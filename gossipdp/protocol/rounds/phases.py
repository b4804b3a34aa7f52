"""How many exchanges a round has, and how long it is, while a network is young or a peer alone: what the laboratory's
rounds have in common with the daemon's.

Constants and arithmetic alone: nothing here may know a message, a clock or a member.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ALONE_AFTER", "WARMUP_EVERY", "exchanges_per_round"]

WARMUP_EVERY: Final = 5
"""H during the warm start, at the least, of a peer as fast as most"""
ALONE_AFTER: Final = 2
"""rounds without an exchange after which a peer steps as if alone: lr 1, momentum 0"""


def exchanges_per_round(members: int, early: bool) -> int:
    """m = min(3, ceil(log2 N)) while the learning rate is high, then 1 (algorithms section 6)."""
    return min(3, max(1, (members - 1).bit_length())) if early else 1
