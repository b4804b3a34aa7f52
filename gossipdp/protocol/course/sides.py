"""Which members are of this peer's side, which are held apart, and which of their lines is proven.

What members say is kept here, and judged. Nothing is sent, and no time is kept but that of returns. How long a member
was lost counts in training steps rather than seconds. It is lost from its failure until it is heard again. If this peer
knew it before, this peer's own clock measures the absence. A member first heard of as failed is measured by its own
steps, because its clock may count on from another's.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gossipdp.protocol.contribution import Contribution
from gossipdp.protocol.course.rules import NO_LINE, side_to_follow
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.membership.view import LIVE, MAX_MEMBERS
from gossipdp.protocol.wire.messages import Line, Lineage, Member, State

__all__ = ["FREEZE", "MAX_LIVES", "Absences", "Return", "Sides"]

FREEZE: Final = 16
"""Periods for which a line may be of the reunion that begins, and a returned member of another side."""
NAMED: Final = 4
"""Members that a notice names."""
MAX_LIVES: Final = 2 * MAX_MEMBERS
"""Members remembered: twice the limit of membership."""


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


class Sides:
    """The parts of the network that trained apart, as the members report them.

    Args:
        absences: How long each member was lost.
        period: Seconds.
    """

    def __init__(self, membership: Membership, absences: Absences, period: float) -> None:
        self._membership, self._absences, self._period = membership, absences, period
        self.apart: dict[bytes, int] = {}
        """Members with which this peer exchanges nothing, and the incarnation of each."""
        self.measured = False
        """In this reunion an absence was measured here. Otherwise others only said that this peer is apart."""
        self._noticed = False
        self._long_gone: set[bytes] = set()
        """Members that were lost for long and returned in a later life. They have not named their line yet."""
        self._numbers: dict[bytes, tuple[int, int]] = {}
        """(incarnation, number) of the last message of each sender."""
        self._said: dict[bytes, Line] = {}
        """The line that each member said last."""
        self.theirs: dict[bytes, Line] = {}
        """Lines of members held apart that know of it. An earlier line may be of an earlier reunion."""
        self.followers: set[bytes] = set()
        """Members held apart that are giving up their model."""

    # -- members of each side ---------------------------------------------------------------------------------

    def present(self) -> list[bytes]:
        """Members held apart that are alive and can be heard. Two outbound-only peers never hear each other."""
        members = self._membership.members
        return self.within_hearing([peer for peer in self.apart if peer in members and members[peer].state in LIVE])

    def named(self) -> str:
        """Names of the members that `present` returns; of many, some."""
        names = sorted(self._membership.members[peer].name for peer in self.present())
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return ", ".join(names[:NAMED]) + more

    def own(self) -> list[bytes]:
        """Live members of this peer's side."""
        return [member.id for member in self._membership.alive() if member.id not in self.apart]

    def company(self) -> list[bytes]:
        """Live members of this peer's side that it can hear."""
        return self.within_hearing(self.own())

    def within_hearing(self, peers: list[bytes]) -> list[bytes]:
        """Those of `peers` with which this peer can exchange messages."""
        members, reachable = self._membership.members, self._membership.me.address
        return [peer for peer in peers if reachable or members[peer].address]

    def said(self, peer: bytes) -> Line:
        """The line that `peer` said last."""
        return self._said.get(peer, NO_LINE)

    def holders(self, line: Line) -> list[bytes]:
        """Members held apart that hold `line`."""
        return [peer for peer, theirs in self.theirs.items() if theirs == line]

    # -- news of members --------------------------------------------------------------------------------------

    def missing(self, member: Member) -> None:
        """`member` is remembered from an earlier life of this peer, and may be lost since."""
        if member.id not in self._membership.members:
            self._absences.misses(member.id)

    def lost(self, member: Member) -> None:
        """`member` has failed or left."""
        peer = member.id
        self._said.pop(peer, None)
        self.theirs.pop(peer, None)
        self.followers.discard(peer)
        self._long_gone.discard(peer)
        if member.state == State.LEFT:
            self._absences.left(member)
            self.apart.pop(peer, None)
        else:
            self._absences.failed(member, counts=peer not in self.apart)

    def seen(self, member: Member) -> None:
        """`member` is alive, and this peer has no model yet."""
        self._absences.seen(member)

    def back(self, member: Member, now: float) -> Return:
        """`member` is alive, again or for the first time."""
        peer, back = member.id, self._absences.back(member, now)
        if back.same and back.long:
            self.part(peer, measured=True)
        elif back.new:
            # A new life has fetched its model from one side, and will name its line. Until then it is held apart.
            self.apart.pop(peer, None)
            self.theirs.pop(peer, None)
            self.followers.discard(peer)
            if back.long:
                self._long_gone.add(peer)
            if self.measured and self.present():
                self.apart[peer] = member.incarnation
        return back

    def prune(self) -> None:
        """Forget members that membership has forgotten, once more are known than it can hold."""
        if len(self._absences) <= MAX_LIVES:
            return
        members = self._membership.members.keys()
        tables: tuple[dict[bytes, Any], ...] = (self._numbers, self._said, self.theirs, self.apart)
        for table in tables:
            for peer in table.keys() - members:
                del table[peer]
        self._long_gone &= members
        self._absences.forget(members)

    # -- what members say -------------------------------------------------------------------------------------

    def hear(self, word: Lineage, source: bytes) -> bool:
        """Keep the line that `source` says. False: the message is of an earlier life, or a later one has come."""
        member = self._membership.members.get(source)
        if member is None or word.incarnation < member.incarnation:
            return False
        if (word.incarnation, word.number) <= self._numbers.get(source, (0, 0)):
            return False
        self._numbers[source] = word.incarnation, word.number
        self._said[source] = word.line
        return True

    def place(self, word: Lineage, source: bytes, own: Line) -> bool:
        """Decide whether `source` is of this peer's side, which holds the line `own`.

        Returns:
            True if it is, and holds another line.
        """
        line = word.line
        if line == own:
            if line != NO_LINE:
                self.apart.pop(source, None)
                self.theirs.pop(source, None)
            elif word.apart and self._may_part(source):
                self.part(source, measured=self._long_lost(source))
            return False
        if source not in self.apart:
            foreign = self._foreign(line)
            if not word.apart and not foreign:
                return True
            if not foreign and not self._may_part(source):
                return False
            self.part(source, measured=self._long_lost(source))
        if word.apart:
            self.theirs[source] = line
        return False

    def settle(self, source: bytes, *, gives_up: bool) -> None:
        """`source` has named its line, and says whether it is giving up its model."""
        if source in self.apart and gives_up:
            self.followers.add(source)
        else:
            self.followers.discard(source)
        self._long_gone.discard(source)

    def part(self, peer: bytes, *, measured: bool) -> None:
        """Hold `peer` apart."""
        self.apart[peer] = self._absences.life(peer)
        self.measured = self.measured or measured
        self._noticed = True

    def _may_part(self, source: bytes) -> bool:
        """Whether the word of `source` that it was apart counts: it has a voice, or this peer itself has lost it."""
        return self._long_lost(source) or bool(self._membership.voices([source]))

    def _long_lost(self, peer: bytes) -> bool:
        return peer in self._long_gone or self._absences.long(peer)

    def take_noticed(self) -> bool:
        """Whether a member was found to be apart since the last call."""
        noticed, self._noticed = self._noticed, False
        return noticed

    def recent(self, peer: bytes, now: float, maker: bytes = b"") -> bool:
        """Whether `peer`, or the maker of its line, returned too lately to count as one of this peer's side.

        Its message may come before membership's news that it is back.
        """
        latest = max(map(self._absences.arrived, (peer, maker)))
        return self._absences.lost(peer) or now < latest + FREEZE * self._period

    def settled(self, peer: bytes, now: float) -> bool:
        """Whether `peer` was of this peer's side before the reunion. A silent suspect may be cut off from it."""
        suspect = self._membership.members[peer].state == State.SUSPECT
        silent = not self._membership.heard_since(peer, now - FREEZE * self._period)
        return not (self.recent(peer, now) or (suspect and silent))

    def _foreign(self, line: Line) -> bool:
        """Whether a member of another side named `line`."""
        far = line.maker in self.apart or self._absences.long(line.maker)
        return line != NO_LINE and (far or line in self.theirs.values())

    # -- the verdict ------------------------------------------------------------------------------------------

    def greater(self, own: Line) -> list[bytes]:
        """Holders of the line across the gap that this peer is to follow (`side_to_follow`)."""
        voices: dict[Line, list[bytes]] = {}
        for peer in self._membership.voices(self.theirs):
            line = self.theirs[peer]
            if peer in self.apart and peer not in self.followers:
                voices.setdefault(line, []).append(peer)
        if not voices:
            return []
        alive = [member.id for member in self._membership.alive()]
        # Behind a NAT, with a single member that can be dialled, that member is the only voice there can be.
        few = len(self.within_hearing(alive)) == 1 < len(alive) or len(self._membership.voices(alive)) == 1 < len(alive)
        followed = side_to_follow(own, voices, company=bool(self.company()), few=few)
        return [] if followed is None else voices[followed]

    def misnamed(self, own: Line, *, trains: bool) -> bool:
        """Whether the line `own` describes this side so that it can neither win nor be followed.

        A peer that hears no other member of its side cannot prove a line of several: one voice is not followed. Two
        outbound-only peers of a side are two such peers. A peer with company may hold a line of less than two members,
        named by hearsay or by a peer that was alone then. A line that denies training is weaker than the line of one
        member that trains. A peer with company does not follow a single member.

        Args:
            trains: This side trains now.
        """
        if trains and not own.trains:
            return True
        if self.company():
            return own.members < 2
        return own.members > 1 and not self.followers

    def close(self) -> None:
        """The reunion is over. What was measured does not count for the next one."""
        self.measured = False

    def change(self, line: Line) -> None:
        """This peer now holds the model of the side `line`. Its former side is apart until it says otherwise."""
        former = {peer: self._absences.life(peer) for peer in self.own() if self._said.get(peer) != line}
        others = {peer: life for peer, life in self.apart.items() if self.theirs.get(peer, line) != line}
        self.theirs = {peer: self.theirs[peer] for peer in others}
        self.apart.clear()
        self.apart.update(former | others)
        self.measured = True
