"""Has this peer fallen behind the network, for it was cut off or stopped? Then it is better off with the others' model.

Lag counts steps of the network's clock, as two others have it, since this peer last finished an exchange or transfer
(algorithms section 8). Only a peer that was cut off lags: a straggler that nobody happened to ask does not. And only a
network that goes on can be followed: two members that have kept step must vouch for it, else all who were without
exchanges for long, after a storm, would follow each other. Meanwhile nothing is exchanged, for an average with a state
so old would only hide how old it is. Nothing is sent or fetched here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gossipdp.protocol.membership.progress import Own, ProgressBoard

__all__ = ["BEHIND", "LAG_ROUNDS", "LISTEN", "NEW", "VOUCHERS", "Lag"]

LAG_ROUNDS: Final = 3
VOUCHERS: Final = 2
ASKING: Final = 8
"""periods in which vouchers must be found"""
LISTEN: Final = 4
"""of these periods, those before any voucher is followed: a voucher may be of another side, and say so only then"""
ALONE: Final = 6
"""own rounds without an exchange after which a peer counts as cut off, though it has lost nobody"""
ALONE_FOR: Final = 128
"""and periods: until those who are gone have been found to be, offers to them are made in vain"""
BEHIND: Final = (1 << 63) - 1
"""the lag of a peer that is giving its model up"""
NEW: Final = BEHIND - 1
"""the lag of one that has not kept step for long enough to be followed"""


class Lag:
    """Args:

    every: steps a round.
    period: seconds.
    me: this peer's progress.
    side: members alive whom this peer would exchange with.
    """

    def __init__(
        self,
        progress: ProgressBoard,
        *,
        every: int,
        period: float,
        me: Callable[[], Own],
        side: Callable[[], Sequence[bytes]],
    ) -> None:
        self._progress, self._usual, self._period = progress, LAG_ROUNDS * every, period
        self._me, self._side = me, side
        self.vouchers: set[bytes] = set()
        """who has kept step, and may be followed"""
        self.asking_until: float | None = None
        """others are being asked whether there is a network to follow"""
        self._mark = 0
        """the network's clock at the last exchange or transfer"""
        self._mixed_at = 0.0
        self._in_step_from = 0
        """the network's clock when this peer caught up after a gap: for a while it vouches for nothing"""
        self._cut = False
        self._begun = 0
        """the network's clock when the latest exchange began"""
        self._cut_since = False
        """this peer has been cut off since then"""

    def steps(self) -> int:
        """Of the network's clock since the last exchange or transfer, as two others have it: one may be ahead alone."""
        clocks = self._clocks()
        return max(0, clocks[-VOUCHERS] - self._mark) if len(clocks) >= VOUCHERS else 0

    def told(self) -> int:
        """What others hear of it."""
        new = self._progress.clock() < self._in_step_from + self._usual
        return NEW if new else self._without()

    def heard(self, peer: bytes, steps: int) -> None:
        """`peer` tells its lag."""
        if steps <= self._usual:
            self.vouchers.add(peer)
        elif steps >= NEW:
            self.vouchers.discard(peer)

    def cut_off(self) -> None:
        """Somebody who was lost is back, or this peer was thought dead itself."""
        self._cut = self._cut_since = True

    def began(self) -> None:
        """An exchange begins."""
        self._begun, self._cut_since = self._progress.clock(), False

    def mixed(self, now: float) -> None:
        """An exchange has mixed something: this peer is in step as of its beginning. It may have slept since."""
        gap = self._without() > self._usual
        self._mark, self._mixed_at, self._cut = max(self._mark, self._begun), now, self._cut_since
        if not self._far():
            self.asking_until = None
        if gap:
            self._in_step_from = self._progress.clock()

    def fetched(self, now: float) -> None:
        """The model has just come here, from wherever."""
        self._mark, self._mixed_at, self._cut = self._progress.clock(), now, False
        self.asking_until = None
        self._in_step_from = self._mark

    def _without(self) -> int:
        """Steps without an exchange or transfer, its own among them: after a cut the others' are not known yet."""
        return max(self.steps(), self._me().clock - self._mark)

    def suspected(self, now: float) -> bool:
        """Is it time to ask others? Then they are asked from now on."""
        if self.asking_until is not None:
            return False
        alone = now >= self._mixed_at + ALONE_FOR * self._period and self._me().alone >= ALONE
        if not self._cut and not alone:
            return False
        if not self._far():
            return False
        self.vouchers.clear()
        self.asking_until = now + ASKING * self._period
        return True

    def proven(self, now: float) -> bool:
        """Those asked have answered: there is a network, and this peer is behind it."""
        if self.asking_until is None or now < self.asking_until - (ASKING - LISTEN) * self._period:
            return False
        return len(self.vouchers) >= VOUCHERS and self.steps() > self._limit()

    def disproven(self, now: float) -> bool:
        """No two keep step: there is nobody to follow, and averaging brings all together."""
        return self.asking_until is not None and now >= self.asking_until

    def _far(self) -> bool:
        """Is anybody too far ahead?"""
        clocks = self._clocks()
        return bool(clocks) and clocks[-1] - self._mark > self._limit()

    def _clocks(self) -> list[int]:
        reports = (self._progress.of(peer) for peer in self._side())
        return sorted(report.clock for report in reports if report is not None)

    def _limit(self) -> float:
        return max(self._usual, 2.0 * self._me().transfer)
