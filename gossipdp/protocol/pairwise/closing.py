"""The meetings of peers whose training is over: they bring their anchors to their mean (algorithms section 12).

No outer step moves an anchor any more, and every exchange keeps the sum. So the members follow one schedule
(`schedule`), and after one cycle each holds the mean but for the rounding of the codec. The steps of a round robin
follow, in which each meets two others and sees that it is so. A step is over when the exchange with its partner has
mixed all chunks. A partner that is not free yet is waited for; after that any member will do. A member that comes
before its step waits, because an exchange out of order makes the cycle inexact. The partner of a step that was left out
is behind, and others may wait for it, so it is let in much sooner. If members come or go, a schedule of those left
begins anew.

An exchange mixes every difference that is plausible between two replicas, and nothing of a longer one. Honest peers
therefore need no second cycle, whatever distance a short run has left between them. Each further period of exchanges
halves the bound, and with it what a member that lies can move. A member whose difference is beyond the bound is an
outlier. The others come to their mean without it.

A peer that agrees (`agreement`) after a whole cycle offers nothing more. It still accepts, because others may need it,
and a larger distance makes it seek again. No message is sent and no vector is touched here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from random import Random
from typing import Final

from gossipdp.protocol.causes import Objection
from gossipdp.protocol.events import Closeness
from gossipdp.protocol.pairwise.schedule import Schedule
from gossipdp.protocol.wire.messages import Member

__all__ = ["BITS", "NEAR", "TOLERANCE", "Agreement", "Closing"]


TOLERANCE: Final = 1e-3
"""distance of two anchors that agree, as a share of the usual one"""
NEAR: Final = 2
"""near exchanges in a row, with as many members where there are as many"""
DECAY: Final = 0.7
"""weight of earlier distances in the usual one"""


class Agreement:
    """Whether this peer holds the mean of all, by what its own exchanges show (algorithms section 12).

    A member is near if its last whole difference was within TOLERANCE of the usual distance, and this anchor has not
    moved by more since. It is an outlier if a difference was beyond the bound, so that nothing of it was mixed. Where
    there are outliers, a peer agrees only as part of a majority: it has mixed with more than half of the members.
    """

    def __init__(self) -> None:
        self.usual = self.last = math.nan
        """distance of two anchors at the end of the training, and at the last whole exchange; RMS per parameter"""
        self.outliers: set[bytes] = set()
        self._near: set[bytes] = set()
        self._mixed: set[bytes] = set()
        """members with which a whole difference was mixed"""
        self._row = 0
        """near exchanges in a row"""
        self._trained = False
        """the training has told the usual distance"""

    def measured(self, distance: float) -> None:
        """An exchange of the training has measured this distance, RMS per parameter."""
        self.usual = DECAY * self.usual + (1.0 - DECAY) * distance if self._trained else distance
        self._trained = True

    def exchanged(self, partner: bytes, distance: float, moved: float, *, outlier: bool, first: bool) -> None:
        """An exchange of the closing is over.

        Args:
            distance: of the two anchors before it, RMS per parameter; NaN unless all chunks were compared.
            moved: of what was mixed, RMS per parameter.
            outlier: a difference was beyond the bound.
            first: in the first cycle. It shows the usual distance if the training has told none.
        """
        whole = not outlier and not math.isnan(distance)
        if outlier:
            self.outliers.add(partner)
        elif whole:
            self.outliers.discard(partner)
            self._mixed.add(partner)
            self.last = distance
            if first and not self._trained and not distance <= self.usual:
                self.usual = distance
        if whole and distance <= TOLERANCE * self.usual:
            self._near.add(partner)
            self._row += 1
        elif moved > 0.0 and not moved <= TOLERANCE * self.usual:
            self.disturbed()

    def disturbed(self) -> None:
        """This anchor has moved by an unknown distance."""
        self._near.clear()
        self._row = 0

    def is_far(self, member: bytes) -> bool:
        """Whether an exchange with this member may still bring something."""
        return member not in self._near and member not in self.outliers

    def holds(self, reached: Set[bytes], size: int, *, all_near: bool) -> bool:
        """Whether this peer holds the mean, as far as it can know.

        Args:
            reached: the other members that it can meet.
            size: members that it could meet when the schedule began, this peer included.
            all_near: every one of `reached` has to be near, because no schedule spreads the mean.
        """
        if self.outliers and 2 * (1 + len(self._mixed)) <= size:
            return False
        others = reached - self.outliers
        if all_near:
            return bool(self._near) and self._near >= others
        return self._row >= NEAR and len(self._near) >= min(NEAR, len(others))

    def holds_alone(self, exchanges: int) -> bool:
        """The same once no other member is left, after this number of exchanges."""
        return exchanges == 0 or bool(self._near)

    def begin_anew(self, there: Set[bytes]) -> None:
        """Other members close now: what was near may not hold their mean."""
        self._mixed &= there
        if there:
            self.disturbed()


BITS: Final = 16
"""of the modulo codec. With 8 bits the rounding of one cycle leaves about a hundredth of the usual distance, and the
grid shrinks too slowly to help"""
CYCLES: Final = 14
"""periods of the schedule after which a peer stops seeking agreement"""
MORE: Final = 12
"""steps beyond these, because a partner that does not come costs a step"""
NARROWER: Final = 0.5
"""share of the bound that is left after a period: in a cycle without one member, honest peers still come closer"""
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
        self._agreement = Agreement()
        self._others: dict[bytes, bool] = {}
        """the other members, and whether one of the pair can dial the other"""
        self._schedule: Schedule | None = None
        self._begun = False
        self._step = self._exchanges = 0
        self._size = 1
        """members that this peer could meet when the schedule began, itself included"""
        self._partner: tuple[bytes, float] = b"", 0.0
        """of this step, and the weight; b"" if none is sought"""
        self._behind: set[bytes] = set()
        """partners of steps that were left out. They may still come"""
        self._known: set[bytes] = set()
        """all that have been members of this closing"""
        self._made = 0
        """exchanges that compared or mixed anything, since the last new member came"""
        self._since = self._longest = 0.0
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
        agreement, agrees = self._agreement, self._agrees
        hopeless = bool(self._others) and self._made >= self._period and agreement.outliers >= self._reached
        over = self._begun and (agrees or self._step >= self.most or hopeless or not self._reached)
        now = 0.0 if self._begun and not self._others else agreement.last
        return Closeness(over, agrees, agreement.usual, now, self._exchanges, tuple(sorted(agreement.outliers)))

    @property
    def _reached(self) -> set[bytes]:
        """The other members that this peer can meet."""
        return {peer for peer, reached in self._others.items() if reached}

    @property
    def _agrees(self) -> bool:
        if not self._others:
            return self._agreement.holds_alone(self._exchanges)
        if self._schedule is None:
            return self._agreement.holds(self._reached, self._size, all_near=True)
        return self._step >= self._schedule.period and self._agreement.holds(self._reached, self._size, all_near=False)

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
            self._agreement.measured(distance)

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
            return
        if not there.keys() <= self._known:
            self._known |= there.keys()
            self._made = 0
        # Two outbound-only peers cannot meet, so no schedule is exact with them. Random partners need more steps.
        hidden = sum(not member.address for member in (self._me, *others))
        self._schedule = Schedule([self._me.id, *there], seed) if hidden < 2 else None
        self.most = CYCLES * self._period + MORE
        self._step, self._size = 0, 1 + len(self._reached)
        self._agreement.begin_anew(there.keys())
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
                self._partner = self._planned(self._schedule)
                self._step += not self._partner[0]
            else:
                reached = sorted(self._reached)
                far = [peer for peer in reached if self._agreement.is_far(peer)]
                self._partner = self._random.choice(far or reached), 0.5

    def _planned(self, schedule: Schedule) -> tuple[bytes, float]:
        """The partner of this step and the weight; b"" if this peer is idle in it."""
        # With an odd number of members one is idle in each step of the round robin.
        checks = NEAR + len(schedule.members) % 2
        cycle, phase = divmod(self._step, schedule.period + checks)
        if phase < schedule.period:
            return schedule.partner(self._me.id, cycle * schedule.period + phase) or (b"", 0.0)
        return schedule.opponent(self._me.id, cycle * checks + phase - schedule.period), 0.5

    # -- meetings ---------------------------------------------------------------------------------------------

    def began(self) -> None:
        """An exchange begins. No step is left out while it lasts: a large model takes minutes."""
        self._busy = True

    def objection(self, source: bytes, now: float) -> Objection | None:
        """Why an offer of `source` is refused, or None."""
        if source not in self._others or self._exchanges >= 2 * self.most:
            return Objection.DONE
        if self._schedule is None or self._partner[0] in (b"", source):
            return None
        wait = max(BEHIND, self._longest) if source in self._behind else self._wait
        return None if now >= self._since + wait else Objection.BUSY

    def refused(self, now: float) -> None:
        """The partner has no time. Without a schedule another one will do."""
        if self._schedule is None:
            since = self._since
            self._next(now)
            self._since = since

    def met(
        self, partner: bytes, distance: float, moved: float, duration: float, now: float, *, outlier: bool = False
    ) -> None:
        """An exchange of the closing is over.

        Args:
            distance: of the two anchors before it, RMS per parameter; NaN unless all chunks were compared.
            moved: of what was mixed, RMS per parameter.
            duration: seconds.
            outlier: a difference was beyond the bound.
        """
        self._busy, self._since = False, now
        if partner not in self._others:
            return  # it has gone meanwhile
        self._exchanges += 1
        self._longest = max(self._longest, duration)
        whole = not math.isnan(distance)
        self._made += whole or moved > 0.0
        first = self._made <= self._period
        self._agreement.exchanged(partner, distance, moved, outlier=outlier, first=first)
        if whole and (self._schedule is None or partner == self._partner[0]):
            self._leave_step(now)
        elif not self._partner[0]:
            self._next(now)

    def disturbed(self, now: float) -> None:
        """A chunk was mixed after its exchange had ended."""
        self._agreement.disturbed()
        if self._begun and not self._partner[0]:
            self._next(now)

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
            self._behind.add(self._partner[0])
            self._leave_step(now)

    def _leave_step(self, now: float) -> None:
        self._step += 1
        self._next(now)
