"""How long members were lost, in training steps rather than seconds.

A member is lost from its failure until it is heard again. If this peer knew it before, this peer's own clock measures
the absence. A member first heard of as failed is measured by its own steps, because its clock may count on from
another's. `reunion` decides what follows from a long absence.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import Any, NamedTuple

from gossipdp.protocol.contribution import Contribution
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.wire.messages import Member

__all__ = ["Absences", "Return"]


@dataclass(slots=True)
class _Lost:
    """The progress of both peers when a member was lost."""

    incarnation: int
    """Of the lost life. 0 for a member missed since an earlier life of this peer."""
    own: int | None
    """This peer's clock. None if this peer came later itself."""
    theirs: int | None
    """The member's own steps, if reported."""


class Return(NamedTuple):
    """A member is alive, again or for the first time."""

    lost: bool
    """It was lost until now."""
    long: bool
    """It was lost for long."""
    new: bool
    """This life of it was not known before."""
    same: bool
    """It is the life that was lost."""


class Absences:
    """How long each lost member has been away, in steps of the network's clock.

    Args:
        contribution: Has this peer's own clock.
        steps: Steps from which an absence is long.
    """

    def __init__(self, progress: ProgressBoard, contribution: Contribution, steps: int) -> None:
        self._progress, self._contribution, self._steps = progress, contribution, steps
        self._lives: dict[bytes, int] = {}
        """The last incarnation known of each member."""
        self._lost: dict[bytes, _Lost] = {}
        self._arrived: dict[bytes, float] = {}
        """Time at which each member came, or came back."""

    def __len__(self) -> int:
        """Members known."""
        return len(self._lives)

    def life(self, peer: bytes) -> int:
        """The last incarnation known, or 0."""
        return self._lives.get(peer, 0)

    def misses(self, peer: bytes) -> None:
        """`peer` was there in an earlier life of this peer, and is not there now."""
        self._lost[peer] = _Lost(0, self._contribution.own_clock, None)

    def failed(self, member: Member, *, counts: bool) -> None:
        """`member` has failed. If not `counts`, only its incarnation is kept."""
        peer, before = member.id, self._lives.get(member.id)
        self._lives[peer] = member.incarnation
        known = self._lost.get(peer)
        if counts and (known is None or known.incarnation < member.incarnation):
            report = self._progress.of(peer)
            own = self._contribution.own_clock if before is not None else None
            self._lost[peer] = _Lost(member.incarnation, own, None if report is None else report.steps)

    def left(self, member: Member) -> None:
        """`member` has said goodbye. Its absence does not count."""
        self._lives[member.id] = member.incarnation
        self._lost.pop(member.id, None)

    def seen(self, member: Member) -> None:
        """`member` is alive. A peer without a model draws no conclusion."""
        self._lives[member.id] = member.incarnation

    def back(self, member: Member, now: float) -> Return:
        """`member` is alive. It is not lost any more."""
        peer, before = member.id, self._lives.get(member.id)
        self._lives[peer] = member.incarnation
        long, lost = self.long(peer), self._lost.pop(peer, None)
        new = before is None or before < member.incarnation
        if lost is not None or new:
            self._arrived[peer] = now
        return Return(lost is not None, long, new, lost is not None and lost.incarnation in (0, member.incarnation))

    def lost(self, peer: bytes) -> bool:
        """Whether `peer` is lost."""
        return peer in self._lost

    def long(self, peer: bytes) -> bool:
        """Whether `peer` is lost, and has been for long."""
        lost = self._lost.get(peer)
        if lost is None:
            return False
        if lost.own is not None:
            return self._contribution.own_clock - lost.own >= self._steps
        report = self._progress.of(peer)
        return report is not None and lost.theirs is not None and report.steps - lost.theirs >= self._steps

    def arrived(self, peer: bytes) -> float:
        """Time at which `peer` came, or came back. -inf if that is not known."""
        return self._arrived.get(peer, -math.inf)

    def forget(self, members: Container[bytes]) -> None:
        """Forget all peers that are not in `members`."""
        tables: tuple[dict[bytes, Any], ...] = (self._lives, self._lost, self._arrived)
        for table in tables:
            for peer in [peer for peer in table if peer not in members]:
                del table[peer]
