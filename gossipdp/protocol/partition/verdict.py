"""Names this peer's side and judges which of two sides follows the other: the machine `GAP`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from gossipdp.protocol.events import Notice
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.membership.progress import Own
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.partition.lines import NO_LINE, HeldLine, strength
from gossipdp.protocol.partition.sides import FREEZE, Sides
from gossipdp.protocol.partition.states import GAP, Action, Event, Gap
from gossipdp.protocol.state_machine import Machine
from gossipdp.protocol.wire.messages import Line

__all__ = ["ALONE", "HEARING", "Verdict"]

HEARING: Final = 8
"""Periods from the first meeting to the verdict. A side's greatest line has reached its members by then."""
ALONE: Final = 24
"""Periods after the verdict in which other members of this side may come back."""


class Verdict:
    """Finds out which side's model goes on.

    Args:
        sides: What members say, and which of them are apart.
        apart_rounds: Rounds of absence after which a member is held apart. The notice names them.
        period: Seconds.
        me: This peer's progress.
        trains: Whether this peer trains, or has ended its part of the run.
    """

    def __init__(
        self,
        membership: Membership,
        sides: Sides,
        outputs: Outputs,
        *,
        apart_rounds: int,
        period: float,
        me: Callable[[], Own],
        trains: Callable[[], bool],
    ) -> None:
        self._membership, self._sides, self._outputs = membership, sides, outputs
        self._rounds, self._period, self._me, self._trains = apart_rounds, period, me, trains
        self._held = HeldLine(membership.me.id)
        self._verdict_at = math.inf
        self._judged_at = -math.inf
        actions: dict[Action, Callable[[float], None]] = {
            Action.OPEN: self._open,
            Action.EXTEND: self._extend,
            Action.CLOSE: self._close,
            Action.ANNOUNCE: self._announce,
            Action.RENAME: self._rename,
        }
        self._gap = Machine(GAP, Gap.TOGETHER, actions)

    @property
    def line(self) -> Line:
        """The line that this peer holds."""
        return self._held.line

    @property
    def open(self) -> bool:
        """A reunion is under way."""
        return self._gap.state is not Gap.TOGETHER

    @property
    def due_at(self) -> float:
        """Time of the verdict. Infinite if none is awaited."""
        return self._verdict_at if self._gap.state is Gap.HEARING else math.inf

    def begin(self, line: Line, now: float) -> None:
        """This peer has its model from a member that holds `line`, or it is its own."""
        self._held.take(line, now)

    def found_apart(self, now: float) -> None:
        """Members were found to be apart since the last call."""
        self._gap.fire(Event.APART, now)

    def offered(self, line: Line, source: bytes, now: float) -> None:
        """`source` is of this peer's side and holds another line."""
        if line.members and self._newer(line, now) and not self._sides.recent(source, now, line.maker):
            self._held.take(line, now)

    def judge(self, now: float) -> bool:
        """Members are held apart, or were. True: this peer is to follow a greater line, and can reach a holder."""
        if not self._sides.present():
            self._gap.fire(Event.ABSENT, now)
            return False
        if now < self.due_at < math.inf:
            return False
        self._gap.fire(Event.VERDICT_DUE, now)
        if any(map(self._membership.reaches, self._sides.greater(self.line))):
            return True
        if now >= self._judged_at + ALONE * self._period and self._sides.misnamed(self.line):
            self._gap.fire(Event.MISNAMED, now)
        return False

    def change_sides(self, line: Line, now: float) -> None:
        """This peer now holds the model of the side `line`."""
        self._sides.change(line)
        self._held.take(line, now)
        self._verdict_at = now + HEARING * self._period
        self._gap.fire(Event.CHANGED_SIDES, now)

    def _newer(self, line: Line, now: float) -> bool:
        """Whether `line`, said within this peer's side, replaces the one held."""
        if self.open or self._fresh(now):
            return strength(line) > strength(self.line)
        return line.generation > self.line.generation

    def _fresh(self, now: float) -> bool:
        """Whether the line held is young enough to be of a reunion that begins now."""
        return now < self._held.since + FREEZE * self._period

    # -- actions of the table ---------------------------------------------------------------------------------

    def _open(self, now: float) -> None:
        self._name_side(now, anew=not self._fresh(now))

    def _extend(self, now: float) -> None:
        self._name_side(now, anew=False)

    def _name_side(self, now: float, *, anew: bool) -> None:
        """Name this side, unless a member of it has just done so. Put the verdict off."""
        held, hearsay = self._held, not self._sides.measured
        corrects = held.hearsay and not hearsay
        if anew or corrects or held.line == NO_LINE:
            # A peer that only heard that it is apart, because it was stopped itself, knows nothing of its side.
            settled = [peer for peer in self._sides.own() if self._sides.settled(peer, now)]
            members = 0 if hearsay else 1 + len(settled)
            trains = self._trains() or not set(self._membership.training()).isdisjoint(settled)
            held.name(self._me(), now, members=members, trains=trains, hearsay=hearsay, corrects=corrects and not anew)
        self._verdict_at = now + HEARING * self._period

    def _close(self, now: float) -> None:
        self._sides.close()

    def _announce(self, now: float) -> None:
        back = len(self._sides.present())
        who = f"{self._sides.named() or 'members'} {'is' if back == 1 else 'are'}"
        text = f"{who} back after more than {self._rounds} rounds: "
        greater = self._sides.greater(self.line)
        verdict = "this peer's side follows theirs" if greater else "their side is to follow this one's"
        self._outputs.emit(Notice("GD-607", text + verdict))
        self._judged_at = now

    def _rename(self, now: float) -> None:
        self._held.recount(1 + len(self._sides.company()), now)
