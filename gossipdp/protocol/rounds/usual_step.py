"""The outer step of `pairwise` where `[outer]` leaves it to the peer (algorithms section 3)."""

from __future__ import annotations

from typing import Final

from gossipdp.protocol.model import Outer

__all__ = ["usual_step"]

EARLY_MOMENTUM: Final = 0.6
"""mu while the learning rate is high: more of it makes the first rounds overshoot"""
LATE_MOMENTUM: Final = 0.8
"""mu after that, where all members are equally fast"""
UNEQUAL: Final = 0.16
"""what mu loses after that for each doubling by which speeds are apart. Under much momentum replicas whose steps are
unequal drift apart"""
LATE_LANDING: Final = 0.3
"""what alpha loses where an exchange fills its round, and its correction lands a whole round late"""


def usual_step(*, early: bool, fill: float, spread: float) -> Outer:
    """The outer step of a whole round.

    Args:
        early: the network is in its early rounds.
        fill: share of a round that one exchange takes; 0 while unknown.
        spread: see `speed.spread`.
    """
    late = max(EARLY_MOMENTUM, LATE_MOMENTUM - UNEQUAL * spread)
    return Outer(1.0 - LATE_LANDING * min(1.0, fill), EARLY_MOMENTUM if early else late)
