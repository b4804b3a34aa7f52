"""Two sides of a network meet again after a long partition: which of the two models goes on (protocol section 9).

Replicas that were cut off for a few rounds are averaged. After many rounds their mean is worse than either replica.
Progress reports are the version vectors that reveal such a partition (Parker et al. 1983, "Detection of mutual
inconsistency in distributed systems"). Within a side the greatest line replaces all others, as in an election by
flooding (Lynch 1996, section 4.1). A peer that follows a side takes over its line. So every peer climbs one finite
order, and lost or late messages only delay the end: one line, without a vote.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from gossipdp.protocol.course.rules import NO_LINE, strength
from gossipdp.protocol.course.sides import FREEZE, Sides
from gossipdp.protocol.course.table import GAP, Action, Event, Gap
from gossipdp.protocol.events import Notice
from gossipdp.protocol.membership.progress import Own
from gossipdp.protocol.parts import Parts
from gossipdp.protocol.state_machine import next_state
from gossipdp.protocol.wire.messages import Line

__all__ = ["ALONE", "HEARING", "LAST", "Meeting"]

LAST: Final = 0xFFFF_FFFF
"""Greatest generation of a line: a larger one cannot be encoded."""
HEARING: Final = 8
"""Periods from the first meeting to the verdict. A side's greatest line has reached its members by then."""
ALONE: Final = 24
"""Periods after the verdict in which other members of this side may come back."""


class Meeting:
    """Names this peer's side, and judges which of two sides follows the other.

    Args:
        sides: What members say, and which of them are apart.
    """

    def __init__(self, parts: Parts, sides: Sides) -> None:
        self._membership, self._sides, self._outputs = parts.membership, sides, parts.outputs
        self._rounds, self._period = parts.config.apart_rounds, parts.membership.config.join_interval
        self.line = NO_LINE
        """The line that this peer holds."""
        self._since = -math.inf
        """Time at which this peer took the line."""
        self._hearsay = False
        """This peer named the line because another said that it is apart. Such a line counts no members."""
        self._verdict_at = math.inf
        self._judged_at = -math.inf
        self.gap = Gap.TOGETHER

    @property
    def under_way(self) -> bool:
        """Two sides are meeting."""
        return self.gap is not Gap.TOGETHER

    @property
    def due_at(self) -> float:
        """Time of the verdict. Infinite if none is awaited."""
        return self._verdict_at if self.gap is Gap.HEARING else math.inf

    def take(self, line: Line, now: float) -> None:
        """Hold a line that another peer named."""
        self.line, self._since, self._hearsay = line, now, False

    def found_apart(self, own: Own, now: float, *, trains: bool) -> None:
        """Members were found to be apart since the last call: name this side, unless a member of it has just done so.

        Args:
            own: This peer's progress.
            trains: This peer trains, or has ended its part of the run.
        """
        opens = self._fire(Event.APART) is Action.OPEN
        hearsay = not self._sides.measured
        corrects, anew = self._hearsay and not hearsay, opens and not self._fresh(now)
        if anew or corrects or self.line == NO_LINE:
            # A peer that only heard that it is apart, because it was stopped itself, knows nothing of its side.
            settled = [peer for peer in self._sides.own() if self._sides.settled(peer, now)]
            members = 0 if hearsay else 1 + len(settled)
            trains = self._train(settled, trains=trains)
            generation = self.line.generation if corrects and not anew else self._next_generation()
            self.line = Line(generation, members, own.clock, own.rounds, self._membership.me.id, trains)
            self._since, self._hearsay = now, hearsay
        self._verdict_at = now + HEARING * self._period

    def offered(self, line: Line, source: bytes, now: float) -> None:
        """`source` is of this peer's side and holds another line."""
        if line.members and self._newer(line, now) and not self._sides.recent(source, now, line.maker):
            self.take(line, now)

    def judge(self, now: float, *, trains: bool) -> bool:
        """Members are held apart, or were.

        Args:
            trains: This peer trains, or has ended its part of the run.

        Returns:
            Whether this peer is to follow a greater line, and can reach a holder.
        """
        if not self._sides.present():
            if self.gap is not Gap.TOGETHER:
                self._fire(Event.ABSENT)
                self._sides.close()
            return False
        if now < self.due_at < math.inf:
            return False
        if self.gap is Gap.HEARING:
            self._fire(Event.VERDICT_DUE)
            self._announce(now)
        if any(map(self._membership.reaches, self._sides.greater(self.line))):
            return True
        if now >= self._judged_at + ALONE * self._period:
            company = self._sides.company()
            trains = self._train([peer for peer in company if self._sides.settled(peer, now)], trains=trains)
            if self._sides.misnamed(self.line, trains=trains):
                self._fire(Event.MISNAMED)
                self.take(
                    replace(
                        self.line,
                        generation=self._next_generation(),
                        members=1 + len(company),
                        maker=self._membership.me.id,
                        trains=self.line.trains or trains,
                    ),
                    now,
                )
        return False

    def change_sides(self, line: Line, now: float) -> None:
        """This peer now holds the model of the side `line`."""
        self._sides.change(line)
        self.take(line, now)
        self._verdict_at = now + HEARING * self._period
        self._fire(Event.CHANGED_SIDES)

    def _fire(self, event: Event) -> Action | None:
        self.gap, action = next_state(GAP, self.gap, event)
        return action

    def _train(self, others: Sequence[bytes], *, trains: bool) -> bool:
        """Whether this peer trains, or one of `others` does."""
        return trains or not set(self._membership.training()).isdisjoint(others)

    def _next_generation(self) -> int:
        # A peer may claim the last generation. One more would make this peer's messages unreadable.
        return min(self.line.generation + 1, LAST)

    def _newer(self, line: Line, now: float) -> bool:
        """Whether `line`, said within this peer's side, replaces the one held."""
        if self.gap is not Gap.TOGETHER or self._fresh(now):
            return strength(line) > strength(self.line)
        return line.generation > self.line.generation

    def _fresh(self, now: float) -> bool:
        """Whether the line held is young enough to be of a reunion that begins now."""
        return now < self._since + FREEZE * self._period

    def _announce(self, now: float) -> None:
        back = len(self._sides.present())
        who = f"{self._sides.named() or 'members'} {'is' if back == 1 else 'are'}"
        text = f"{who} back after more than {self._rounds} rounds: "
        greater = self._sides.greater(self.line)
        verdict = "this peer's side follows theirs" if greater else "their side is to follow this one's"
        self._outputs.emit(Notice("GD-607", text + verdict))
        self._judged_at = now
