"""The outer step of `pairwise` where `[outer]` leaves it to the peer (algorithms section 3)."""

from __future__ import annotations

from typing import Final

from gossipdp.protocol.model import Outer

__all__ = ["usual_step", "waits"]

EARLY_MOMENTUM: Final = 0.6
"""mu while the learning rate is high: more of it makes the first rounds overshoot"""
LATE_MOMENTUM: Final = 0.8
"""mu after that, where all members are equally fast"""
UNEQUAL: Final = 0.16
"""what mu loses after that for each doubling by which speeds are apart. Under much momentum replicas whose steps are
unequal drift apart"""
FEW: Final = 1.14
"""mu is at most 1 - FEW / N among N members. It makes a movement up to 1 / (1 - mu) times as long. The linear scaling
rule (Goyal et al. 2017, arXiv 1706.02677) allows N hosts a movement N times as long as one host's"""
LATE_LANDING: Final = 0.3
"""what alpha loses where an exchange fills its round, and its correction lands a whole round late"""
TOGETHER: Final = 0.35
"""Share of a round within which a correction may land with the round's first exchange. A correction that lands later
makes the outer loop swing"""


def usual_step(*, early: bool, fill: float, spread: float, peers: int) -> Outer:
    """The outer step of a whole round.

    Args:
        early: the network is in its early rounds.
        fill: share of a round that one exchange takes; 0 while unknown.
        spread: see `speed.spread`.
        peers: members that train, this one included.
    """
    late = max(EARLY_MOMENTUM, LATE_MOMENTUM - UNEQUAL * spread)
    most = max(0.0, 1.0 - FEW / peers)
    return Outer(1.0 - LATE_LANDING * min(1.0, fill), min(most, EARLY_MOMENTUM if early else late))


def waits(momentum: float, fill: float) -> bool:
    """Whether the correction of an outer step waits for the round's first exchange, so that both land at once.

    The correction is the lookahead of a momentum. A replica that has it before the others' news stands ahead of their
    mean, and the exchange takes a part of that back.

    Args:
        momentum: mu of the outer step.
        fill: share of a round that one exchange takes; 0 while unknown.
    """
    return momentum > 0.0 and fill <= TOGETHER
