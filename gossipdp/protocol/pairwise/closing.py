"""The meetings of peers whose training is over: they bring their anchors to their mean (algorithms section 12).

No outer step moves an anchor any more, and every exchange keeps the sum. So the members follow one schedule
(`schedule`), and after one cycle each holds the mean but for the rounding of the codec. A step is over when the
exchange with its partner has mixed all chunks. A partner that is not free yet is waited for; after that any member will
do. A member that comes before its step waits, because an exchange out of order makes the cycle inexact. The partner of
a step that was left out is behind, and others may wait for it, so it is let in much sooner. If members come or go, a
schedule of those left begins anew.

An exchange mixes every difference that is plausible between two replicas, and nothing of a longer one. Honest peers
therefore need no second cycle, whatever distance a short run has left between them. Each further cycle halves the
bound, so a member that lies moves a peer by about two plausible distances in all (`share`). A member whose difference
is beyond the bound stands apart. The others come to their mean without it.

Every exchange measures how far two anchors were apart. A peer agrees once a cycle is over, its last exchanges were
within TOLERANCE of the usual distance, and most members do not stand apart. It then offers nothing, and still accepts,
because others may need it. A larger distance makes it seek again. No message is sent and no vector is touched here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Final

from gossipdp.protocol.events import Closeness
from gossipdp.protocol.pairwise.matching import BUSY, DONE
from gossipdp.protocol.pairwise.schedule import Schedule
from gossipdp.protocol.wire.messages import Member

__all__ = ["BITS", "TOLERANCE", "Closing"]

BITS: Final = 16
"""of the modulo codec. With 8 bits the rounding of one cycle leaves about a hundredth of the usual distance, and the
grid shrinks too slowly to help"""
TOLERANCE: Final = 1e-3
"""distance of two anchors that agree, as a share of the usual one"""
SMALL: Final = 2
"""exchanges in a row within the tolerance, after a whole cycle"""
CYCLES: Final = 14
"""cycles after which a peer stops to seek agreement"""
MORE: Final = 12
"""steps beyond these cycles, because a partner that does not come costs a step"""
NARROWER: Final = 0.5
"""share of the bound that the next cycle keeps: in a cycle without one member, honest peers still come closer"""
DECAY: Final = 0.7
"""weight of earlier distances in the usual one"""
BEHIND: Final = 1.0
"""seconds for which a partner is waited for before one of an earlier step may come in its place, at least"""
LONGER: Final = 4.0
"""multiple of the longest exchange for which a partner is waited for"""
FINER: Final = 5.0
"""seconds of an exchange with BITS, as a multiple of one of the training, which has 3 bits unless set"""


class Closing:
    """The steps of one peer.

    Args:
        me: this peer.
        patience: seconds for which the partner of a step is waited for, at least.
    """

    def __init__(self, me: Member, random: Random, patience: float) -> None:
        self._me, self._random, self._patience = me, random, patience
        self._usual = math.nan
        self._others: dict[bytes, bool] = {}
        """the other members, and whether one of the pair can dial the other"""
        self._schedule: Schedule | None = None
        self._begun = False
        self._step = self._small = self._exchanges = 0
        self._partner: tuple[bytes, float] = b"", 0.0
        """of this step, and the weight; b"" if none is sought"""
        self._behind: set[bytes] = set()
        """partners of steps that were left out. They may still come"""
        self._apart: set[bytes] = set()
        """members whose last difference was beyond the bound"""
        self._known: set[bytes] = set()
        """all that have been members of this closing"""
        self._made = 0
        """whole exchanges since the last new member came"""
        self._near: set[bytes] = set()
        """without a schedule: members within the tolerance since the last one beyond it"""
        self._since, self._longest, self._last = 0.0, 0.0, math.nan
        self._expected = 0.0
        """seconds that an exchange may take, as those of the training tell"""
        self._busy = False
        """an exchange is under way"""
        self.most = 0
        """steps, at most"""

    # -- what is known ----------------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """The peer closes: it exchanges with the other members of the closing alone."""
        return self._begun

    @property
    def closeness(self) -> Closeness:
        """How close the anchors are."""
        alone = self._made >= self._period and self._apart >= self._others.keys()
        over = self._begun and (self._agrees or self._step >= self.most or alone)
        now = self._last if self._others else 0.0
        return Closeness(over, self._agrees, self._usual, now, self._exchanges, tuple(sorted(self._apart)))

    @property
    def _agrees(self) -> bool:
        if 2 * len(self._apart & self._others.keys()) > len(self._others):
            return False
        if self._schedule is None or not self._others:
            return self._near | self._apart >= {peer for peer, reached in self._others.items() if reached}
        return self._step >= self._schedule.period and self._small >= SMALL

    @property
    def share(self) -> float:
        """The share of the plausible distance that the next exchange may bring."""
        return NARROWER ** (self._made // self._period)

    @property
    def partner(self) -> tuple[bytes, float]:
        """The partner of this step and the weight of the exchange; b"" if none is sought."""
        return self._partner

    @property
    def needed(self) -> float:
        """Seconds for which another member may be in an exchange before it comes to this peer."""
        return 2.0 * LONGER * max(self._longest, self._expected)

    def measured(self, distance: float, whole: float) -> None:
        """An exchange of the training is over.

        Args:
            distance: of the two anchors before it, RMS per parameter; NaN: unknown.
            whole: seconds that all chunks would have taken; 0: unknown.
        """
        self._busy = False
        self._expected = FINER * whole or self._expected
        if not math.isnan(distance):
            known = math.isnan(self._usual)
            self._usual = distance if known else DECAY * self._usual + (1.0 - DECAY) * distance

    # -- the members ------------------------------------------------------------------------------------------

    def meet(self, others: Sequence[Member], seed: bytes, now: float) -> None:
        """These are the other members that close. If any has come, or has gone too early, begin anew.

        Args:
            seed: the same for all.
        """
        there = {member.id: bool(member.address or self._me.address) for member in others}
        if self._begun and there == self._others:
            return
        settled = self._begun and self._agrees and there.keys() < self._others.keys()
        self._begun, self._others = True, there
        if settled:
            self._near &= there.keys()
            return
        if not there.keys() <= self._known:
            self._known |= there.keys()
            self._made = 0
        # Two outbound-only peers cannot meet, so no schedule is exact with them. Random partners need more steps.
        hidden = sum(not member.address for member in (self._me, *others))
        self._schedule = Schedule([self._me.id, *there], seed) if hidden < 2 else None
        self.most = CYCLES * self._period + MORE
        self._step = self._small = 0
        self._near.clear()
        self._behind.clear()
        self._next(now)

    @property
    def _period(self) -> int:
        """Steps of a cycle."""
        return self._schedule.period if self._schedule else max(1, 2 * len(self._others))

    def _next(self, now: float) -> None:
        """Choose the partner of this step."""
        self._partner, self._since = (b"", 0.0), now
        while self._others and not self._partner[0] and not self.closeness.over:
            if self._schedule is not None:
                self._partner = self._schedule.partner(self._me.id, self._step) or (b"", 0.0)
                self._step += not self._partner[0]
            else:
                reached = [peer for peer, reached in self._others.items() if reached]
                far = [peer for peer in reached if peer not in self._near]
                self._partner = self._random.choice(far or reached), 0.5

    # -- meetings ---------------------------------------------------------------------------------------------

    def began(self) -> None:
        """An exchange begins. No step is left out while it lasts: a large model takes minutes."""
        self._busy = True

    def objection(self, source: bytes, now: float) -> str:
        """Why an offer of `source` is refused, or ""."""
        if source not in self._others or self._exchanges >= 2 * self.most:
            return DONE
        if self._schedule is None or self._partner[0] in (b"", source):
            return ""
        wait = max(BEHIND, self._longest) if source in self._behind else self._wait
        return "" if now >= self._since + wait else BUSY

    def refused(self, now: float) -> None:
        """The partner has no time. Without a schedule another one will do."""
        if self._schedule is None:
            since = self._since
            self._next(now)
            self._since = since

    def met(self, partner: bytes, distance: float, duration: float, now: float, *, apart: bool = False) -> None:
        """An exchange is over.

        Args:
            distance: of the two anchors before it, RMS per parameter; NaN unless all chunks were mixed.
            apart: a difference was beyond the bound, and was not mixed.
            duration: seconds.
        """
        self._busy, self._since = False, now
        if partner not in self._others:
            return  # an exchange of the training
        self._exchanges += 1
        self._longest = max(self._longest, duration)
        if math.isnan(distance):
            return
        self._made += 1
        if apart:
            self._apart.add(partner)
        else:
            self._judge(partner, distance)
        if self._schedule is None or partner == self._partner[0]:
            self._leave_step(now)
        elif not self._partner[0]:
            self._next(now)

    def _judge(self, partner: bytes, distance: float) -> None:
        self._apart.discard(partner)
        self._last = distance
        if self._made <= self._period and not distance <= self._usual:
            self._usual = distance  # a short run does not know it yet: the first cycle shows it
        if distance <= TOLERANCE * self._usual:
            self._small += 1
            self._near.add(partner)
        else:
            self._small = 0
            self._near.clear()

    @property
    def _wait(self) -> float:
        return max(self._patience, 0.5 * self.needed)

    def timer(self) -> float | None:
        """When `handle_timer` is to be called, or None."""
        return self._since + 2.0 * self._wait if self._partner[0] and not self._busy else None

    def handle_timer(self, now: float) -> None:
        """Leave a step out whose partner does not come."""
        due = self.timer()
        if due is not None and now >= due:
            self._small = 0
            self._behind.add(self._partner[0])
            self._leave_step(now)

    def _leave_step(self, now: float) -> None:
        self._step += 1
        self._next(now)
