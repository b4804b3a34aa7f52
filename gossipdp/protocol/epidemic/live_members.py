"""The live members as the strategy sees them: reachable, and not set aside."""

from __future__ import annotations

from collections.abc import Callable

from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.wire.messages import Member, State

__all__ = ["LiveMembers"]


class LiveMembers:
    """The other members at one peer.

    Args:
        progress: what members report of their training.
        shuns: whether a peer is set aside at this time.
    """

    def __init__(self, membership: Membership, progress: ProgressBoard, shuns: Callable[[bytes, float], bool]) -> None:
        self._membership, self._progress, self._shuns = membership, progress, shuns
        self.live: list[bytes] = []
        """members that are alive and reachable"""
        self.heard: list[bytes] = []
        """live members that are not set aside"""
        self._lives: dict[bytes, int] = {}
        """incarnation of each member"""

    def changed(self, member: Member) -> bool:
        """Take news of a member. True if it has begun a new life."""
        before = self._lives.get(member.id)
        if member.state in (State.FAILED, State.LEFT):
            self._lives.pop(member.id, None)
        else:
            self._lives[member.id] = member.incarnation
        return before is not None and before < member.incarnation

    def follow(self, now: float) -> bool:
        """Look at the members again. True if `live` or `heard` has changed."""
        live = [member.id for member in self._membership.alive() if self._membership.reaches(member.id)]
        heard = [peer for peer in live if not self._shuns(peer, now)]
        changed = (live, heard) != (self.live, self.heard)
        self.live, self.heard = live, heard
        return changed

    def publishers(self) -> int:
        """Number of peers that publish, as far as is known: this one, and live members that have trained."""
        reports = map(self._progress.of, self.live)
        return 1 + sum(report is not None and report.steps > 0 for report in reports)
