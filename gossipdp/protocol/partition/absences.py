"""Who was lost, and for how long: by how far this peer, or who was lost, has trained meanwhile, not in seconds.

A member is lost from when it fails until it is heard again. Of one that this peer knew before, its own clock tells how
long that was; of one that it first heard of as failed, the member's own steps do, for its clock it may count on from
another's. What follows from a long absence is decided in `reunion`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, NamedTuple

from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.wire.messages import Member

__all__ = ["Absences", "Return"]


@dataclass(slots=True)
class _Lost:
    """How far both had come when a member was lost: this peer by its clock (None if it came later itself), the other by
    its own steps. `incarnation` is 0 for one missed since an earlier life of this peer."""

    incarnation: int
    own: int | None
    theirs: int | None


class Return(NamedTuple):
    """A member is there, again or for the first time."""

    lost: bool
    """it was lost until now"""
    long: bool
    """for long"""
    new: bool
    """this life of it was not known before"""
    same: bool
    """it is the life that was lost"""


class Absences:
    """Args:

    clock: this peer's own.
    steps: from which on an absence is long.
    """

    def __init__(self, progress: ProgressBoard, clock: Callable[[], int], steps: int) -> None:
        self._progress, self._clock, self._steps = progress, clock, steps
        self._lives: dict[bytes, int] = {}
        self._lost: dict[bytes, _Lost] = {}
        self._arrived: dict[bytes, float] = {}

    def __len__(self) -> int:
        """Members of whom anything is known."""
        return len(self._lives)

    def life(self, peer: bytes) -> int:
        """Its incarnation as far as it is known, or 0."""
        return self._lives.get(peer, 0)

    def misses(self, peer: bytes) -> None:
        """It was there in an earlier life of this peer, and is not."""
        self._lost[peer] = _Lost(0, self._clock(), None)

    def failed(self, member: Member, *, counts: bool) -> None:
        """`member` is lost, unless it had been already; if not `counts`, it is to be as it was before."""
        peer, before = member.id, self._lives.get(member.id)
        self._lives[peer] = member.incarnation
        known = self._lost.get(peer)
        if counts and (known is None or known.incarnation < member.incarnation):
            report = self._progress.of(peer)
            own = self._clock() if before is not None else None
            self._lost[peer] = _Lost(member.incarnation, own, None if report is None else report.steps)

    def left(self, member: Member) -> None:
        """It has said goodbye, and will be missed by nobody."""
        self._lives[member.id] = member.incarnation
        self._lost.pop(member.id, None)

    def seen(self, member: Member) -> None:
        """It is there, which says nothing to a peer without a model."""
        self._lives[member.id] = member.incarnation

    def back(self, member: Member, now: float) -> Return:
        """It is there, and is lost no more."""
        peer, before = member.id, self._lives.get(member.id)
        self._lives[peer] = member.incarnation
        long, lost = self.long(peer), self._lost.pop(peer, None)
        new = before is None or before < member.incarnation
        if lost is not None or new:
            self._arrived[peer] = now
        return Return(lost is not None, long, new, lost is not None and lost.incarnation in (0, member.incarnation))

    def lost(self, peer: bytes) -> bool:
        return peer in self._lost

    def long(self, peer: bytes) -> bool:
        """Is it lost, and has been for long?"""
        lost = self._lost.get(peer)
        if lost is None:
            return False
        if lost.own is not None:
            return self._clock() - lost.own >= self._steps
        report = self._progress.of(peer)
        return report is not None and lost.theirs is not None and report.steps - lost.theirs >= self._steps

    def arrived(self, peer: bytes) -> float:
        """When it came, or came back; long ago if that is not known."""
        return self._arrived.get(peer, -math.inf)

    def forget(self, members: Container[bytes]) -> None:
        """Keep nothing of whom `members` lacks."""
        tables: tuple[dict[bytes, Any], ...] = (self._lives, self._lost, self._arrived)
        for table in tables:
            for peer in [peer for peer in table if peer not in members]:
                del table[peer]
