"""Whether this peer has fallen behind the network because it was cut off or stopped (algorithms section 8).

A lie of one member takes the clocks of all others ahead (`clock_claims`), but not what they train. A straggler that
exchanges now and then does not lag. Two members must vouch, because peers that were all without exchanges for long
would follow each other otherwise. This file decides; it sends and fetches nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gossipdp.protocol.course.rules import lags
from gossipdp.protocol.membership.progress import Own
from gossipdp.protocol.wire.messages import Progress

__all__ = [
    "ALONE",
    "ALONE_FOR",
    "ASKING",
    "BEHIND",
    "LAG_ROUNDS",
    "LISTEN",
    "NEW",
    "VOUCHERS",
    "Clocks",
    "Lag",
    "steps_made",
]

LAG_ROUNDS: Final = 3
"""Rounds behind from which a peer lags."""
VOUCHERS: Final = 2
"""Members that must vouch for the network before it is followed."""
ASKING: Final = 8
"""Periods within which the vouchers must be found."""
LISTEN: Final = 4
"""Periods of these before a voucher is followed. A voucher may be of another side and say so only then."""
ALONE: Final = 6
"""Own rounds without an exchange after which a peer counts as cut off although it lost no member."""
ALONE_FOR: Final = 128
"""Periods that must have passed as well. Until failed members are detected, offers to them are in vain."""
BEHIND: Final = (1 << 63) - 1
"""Lag that a peer reports while it gives its model up."""
NEW: Final = BEHIND - 1
"""Lag that a peer reports until it has kept step for long enough to be followed."""


def steps_made(report: Progress, mark: int, trained: int | None) -> int:
    """Steps that the network's clock has gained since `mark` by this report of one member.

    Args:
        trained: Steps that the member had reported to have trained itself then. None: it was not known.
    """
    gained = report.clock - mark
    return gained if trained is None else min(gained, report.steps - trained)


@dataclass(frozen=True, slots=True)
class Clocks:
    """How far the network is at one moment, in steps."""

    network: int
    own: Own
    """this peer's progress"""
    others: Sequence[Progress]
    """reports of members that this peer would exchange with"""

    def trained(self) -> dict[bytes, int]:
        """Steps that each of them has trained itself."""
        return {report.id: report.steps for report in self.others}


class Lag:
    """Notices that this peer has fallen behind the others for good.

    Args:
        every: Steps of a round.
        period: Seconds.
    """

    def __init__(self, *, every: int, period: float) -> None:
        self._usual, self._period = LAG_ROUNDS * every, period
        self._vouchers: set[bytes] = set()
        self._asking_until = 0.0
        """End of the asking."""
        self._mark = 0
        """The network's clock at the last exchange or transfer."""
        self._mixed_at = 0.0
        """Time of the last exchange or transfer."""
        self._in_step_from = 0
        """The network's clock when this peer caught up after a gap. For a while after it the peer does not vouch."""
        self._cut = False
        """This peer was cut off since the last exchange or transfer began."""
        self._trained: dict[bytes, int] = {}
        """Steps that each member had reported then."""
        self._begun = 0
        """The network's clock when the latest exchange began."""
        self._trained_then: dict[bytes, int] = {}
        """Steps that each member had reported when it began."""
        self._cut_since = False
        """This peer was cut off since the latest exchange began."""

    @property
    def vouchers(self) -> list[bytes]:
        """Members that have kept step and may be followed."""
        return sorted(self._vouchers)

    def steps(self, clocks: Clocks) -> int:
        """Steps of the network's clock since the last exchange or transfer. Two members must report them."""
        made = sorted(steps_made(report, self._mark, self._trained.get(report.id)) for report in clocks.others)
        return max(0, made[-VOUCHERS]) if len(made) >= VOUCHERS else 0

    def told(self, clocks: Clocks) -> int:
        """The lag that this peer reports to others."""
        new = clocks.network < self._in_step_from + self._usual
        return NEW if new else self._without(clocks)

    def heard(self, peer: bytes, steps: int) -> None:
        """`peer` reports its lag."""
        if steps <= self._usual:
            self._vouchers.add(peer)
        elif steps >= NEW:
            self._vouchers.discard(peer)

    def dismiss(self, peer: bytes) -> None:
        """`peer` does not vouch any more: it is gone, or of another side."""
        self._vouchers.discard(peer)

    def cut_off(self) -> None:
        """A lost member is back, or this peer was thought dead itself."""
        self._cut = self._cut_since = True

    def began(self, clocks: Clocks) -> None:
        """An exchange begins."""
        self._begun, self._trained_then, self._cut_since = clocks.network, clocks.trained(), False

    def mixed(self, clocks: Clocks, now: float) -> None:
        """An exchange has mixed a chunk. This peer is in step as of its beginning: it may have slept since."""
        gap = self._without(clocks) > self._usual
        if self._begun >= self._mark:
            self._mark, self._trained = self._begun, self._trained_then
        self._mixed_at, self._cut = now, self._cut_since
        if gap:
            self._in_step_from = clocks.network

    def fetched(self, clocks: Clocks, now: float) -> None:
        """The model has just come here, from any source."""
        self._mark, self._trained, self._mixed_at, self._cut = clocks.network, clocks.trained(), now, False
        self._in_step_from = self._mark

    def _without(self, clocks: Clocks) -> int:
        """Steps without an exchange or transfer. Own steps count, because after a cut the others' are not known yet."""
        return max(self.steps(clocks), clocks.own.clock - self._mark)

    def possible(self, alone: int, now: float) -> bool:
        """Whether this peer was cut off, or had no exchange for many of its rounds. alone: these rounds."""
        return self._cut or (now >= self._mixed_at + ALONE_FOR * self._period and alone >= ALONE)

    def ask(self, now: float) -> None:
        """Others are asked from now on."""
        self._vouchers.clear()
        self._asking_until = now + ASKING * self._period

    def proven(self, clocks: Clocks, now: float) -> bool:
        """While asking: whether the answers prove a network, and that this peer is behind it."""
        if now < self._asking_until - (ASKING - LISTEN) * self._period:
            return False
        return len(self._vouchers) >= VOUCHERS and self.far(clocks)

    def disproven(self, now: float) -> bool:
        """While asking: whether no two members keep step. Then there is no network to follow, and averaging goes on."""
        return now >= self._asking_until

    def far(self, clocks: Clocks) -> bool:
        """Whether this peer is too far behind."""
        return lags(self.steps(clocks), self._usual, clocks.own.transfer)
