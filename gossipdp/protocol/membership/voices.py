"""What the members say whose word counts (`contacts`): how fast they train, and how far the network's clock is."""

from __future__ import annotations

from typing import Final

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.membership.clock_claims import ClockClaims
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.rounds.speed import Speed
from gossipdp.protocol.strikes import Strikes
from gossipdp.protocol.wire.messages import State

__all__ = ["Voices"]

CLAIMS_LAST: Final = 60.0
"""seconds for which the speed of a member that pauses counts for claims of the clock"""


class Voices:
    """Reads the view and the progress board. It changes neither."""

    def __init__(
        self, view: View, progress: ProgressBoard, speed: Speed, admission: Admission, strikes: Strikes, now: float
    ) -> None:
        self._view, self._progress, self._speed = view, progress, speed
        self._admission, self._strikes = admission, strikes
        self._claims = ClockClaims(now)

    def speeds(self, lasting: float, now: float) -> list[float]:
        """Steps a second that members train, by their own reports. Members that are set aside do not count.

        Args:
            lasting: seconds. Members that have paused or been failed for longer do not count, nor do those that left.
        """
        view, seen = self._view, self._view.contacts.seen
        dead = [peer for peer, at in view.dead.items() if now - at < lasting]
        failed = [peer for peer in dead if view.members[peer].state == State.FAILED]
        sights = {peer: seen[peer] for peer in [*(member.id for member in view.alive()), *failed] if peer in seen}
        train = [peer for peer, sight in sights.items() if sight.speed and sight.rested < lasting]
        return [sights[peer].speed for peer in view.contacts.voices(train) if not self._strikes.shuns(peer, now)]

    def clock(self, now: float) -> int:
        """The network's clock in steps, now that a member claims a later one."""
        voices = filter(self._admission.admits, self._view.contacts.voices(self._view.members))
        reports = map(self._progress.of, voices)
        claims = [report.clock for report in reports if report is not None and report.id != self._view.me.id]
        speeds = self.speeds(CLAIMS_LAST, now) + ([self._speed.own] if self._speed.own else [])
        return self._claims.heard(self._progress.clock(), claims, speeds, now)
