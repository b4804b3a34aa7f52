"""Two halves of a network that meet again after long: one keeps its model, the other fetches it anew.

Replicas that were cut from each other for a few rounds are averaged. After many rounds they stand in different basins
and their mean is worse than either, so who comes back after `apart_rounds` of this peer's own rounds is held *apart*:
no exchange with it until one side has re-synced. Progress reports serve as the version vectors by which such a
partition is seen (Parker et al. 1983, "Detection of mutual inconsistency in distributed systems").

A side is known by its `Line`: what the first of its members to notice said of it, once and for all. Lines are ordered,
more members first; within a side the greatest line said becomes everybody's, as in an election by flooding (Lynch 1996,
section 4.1), and whoever hears of a greater line across the gap fetches the model from one who holds it, and takes the
line over with it. So each step of each peer goes up one finite order: whatever is lost, or noticed late, all end at one
line, and no vote is needed. Two members who lie alike can make a network follow them, one cannot, but for those who
can hear of it alone: behind a NAT, where no other member can be dialled. A restarted founder is a peer like any other:
nobody founds twice.

Whoever has fallen behind (`lag`) follows the network in the same way (`following`). What decides is here, and what is
said for it; no vector, and nothing of the fetching.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from gossipdp.protocol.events import Notice
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.membership.progress import Own, ProgressBoard
from gossipdp.protocol.membership.view import MAX_MEMBERS
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.partition.absences import Absences
from gossipdp.protocol.partition.follower import Follower
from gossipdp.protocol.partition.lag import BEHIND, VOUCHERS, Lag
from gossipdp.protocol.rounds.standby import Standby
from gossipdp.protocol.transfer.joiner import Joiner
from gossipdp.protocol.wire.messages import (
    Line,
    Lineage,
    Member,
    State,
    StateAsk,
    StateProbe,
    StateRequest,
)

__all__ = ["NEVER", "NO_LINE", "Reunion", "strength"]

HEARING: Final = 8
"""periods from the first meeting to the verdict: a side's greatest line has reached its members by then"""
FREEZE: Final = 16
"""periods for which a line said or heard is still this reunion's, though nobody is known to be apart"""
TELLS: Final = 4
"""members of each side told per period"""
SPARE: Final = ("idle", "late")
"""why a peer without a training process fetches the model anew"""
VOICES: Final = 2
"""peers that must hold a line of several members before it is followed: one may lie"""
ALONE: Final = 24
"""periods after the verdict in which others of this side may come back"""
GREETED: Final = 32
"""members told at once who has come over"""
MAX_LIVES: Final = 2 * MAX_MEMBERS
"""members remembered, twice what membership holds"""
LIVE: Final = (State.ALIVE, State.SUSPECT)
NEVER: Final = 1 << 40
"""steps a round with which nobody ever is apart, or lags: where all apply the same increments, these tell it"""
NO_LINE: Final = Line(0, 0, 0, 0, b"")
LAST: Final = 0xFFFF_FFFF
"""generation of a line"""


_Strength: TypeAlias = tuple[int, int, int, bytes, int]


def strength(line: Line) -> _Strength:
    """The order of lines: members, clock, rounds, then the lower id; the last makes it strict."""
    return (line.members, line.clock, line.rounds, bytes(255 - byte for byte in line.maker), line.generation)


class Reunion:
    """Args:

    joiner: fetches the model with `Resync`, if it is newer than this step of the network's clock.
    every: steps a round.
    me: this peer's progress.
    hold: offer and accept no exchange (True), or do so again; true once none is under way.
    done: called with clock and rounds of what was fetched, and the seconds that took.
    standby: says when this peer is to fetch the model anew because it trains nothing.
    """

    def __init__(
        self,
        membership: Membership,
        progress: ProgressBoard,
        joiner: Callable[[int], Joiner],
        *,
        random: Random,
        outputs: Outputs,
        apart_rounds: int,
        every: int,
        me: Callable[[], Own],
        hold: Callable[[bool, float], bool],
        done: Callable[[int, int, float], None],
        standby: Standby | None = None,
    ) -> None:
        self._membership, self._progress, self._random, self._outputs = membership, progress, random, outputs
        self._me, self._hold, self._done, self._standby = me, hold, done, standby
        self._rounds, self._steps = apart_rounds, apart_rounds * every
        self._period = membership.config.join_interval
        self.follower = Follower(joiner, outputs, hold, self._period, random)
        self._lag = Lag(progress, every=every, period=self._period, me=me, side=self._own_side)
        self.apart: dict[bytes, int] = {}
        """whom this peer exchanges nothing with, and the incarnation it knows of each"""
        self.line = NO_LINE
        self.astray: Sequence[bytes] = ()
        """whose state is to be fetched, for this peer's is not what the network has agreed on; the owner says so"""
        self._ready = False
        self._absences = Absences(progress, lambda: me().clock, self._steps)
        self._long_gone: set[bytes] = set()
        """who were lost for long, and are back in a later life that has not said yet whose model it has"""
        self._number = 0
        self._numbers: dict[bytes, tuple[int, int]] = {}
        self._said: dict[bytes, Line] = {}
        self._followers: set[bytes] = set()
        """of those held apart, who are giving their model up"""
        self._theirs: dict[bytes, Line] = {}
        """lines of those held apart who know of it: what they said before may be of an earlier reunion"""
        self._noticed = self._measured = self._weak = self._open = False
        self._line_at = -math.inf
        self._judged_at = -math.inf
        self._wanted = NO_LINE
        """the line that is being followed, though its holders become few"""
        self._verdict_at = self._tick_at = math.inf
        self._buried = 0

    @property
    def reason(self) -> str:
        """Why this peer follows others right now: apart, lag, diverged, idle or late; or ""."""
        return self.follower.reason

    # -- what the peer tells ----------------------------------------------------------------------------------

    def ready(self, source: bytes, missing: list[Member], now: float) -> None:
        """The model is here: fetched from `source`, or, at b"", this peer's own. `missing`: members remembered from an
        earlier life who were not there when this peer went on from its checkpoint."""
        self._ready = True
        self.line, self._line_at = self._said.get(source, NO_LINE), now
        for member in missing:
            if member.id not in self._membership.members:
                self._absences.misses(member.id)
        self._lag.fetched(now)

    def began(self) -> None:
        """An exchange begins."""
        self._lag.began()

    def mixed(self, now: float) -> None:
        """An exchange has mixed something: this peer is in step, if it has not slept meanwhile."""
        asking = self._lag.asking_until is not None
        self._lag.mixed(now)
        if asking and self._lag.asking_until is None:
            self._hold(False, now)

    def member_changed(self, member: Member, now: float) -> None:
        """Membership has news of `member`."""
        if len(self._absences) > MAX_LIVES:
            self._forget()
        peer = member.id
        if member.state in (State.FAILED, State.LEFT):
            self._said.pop(peer, None)
            self._theirs.pop(peer, None)
            self._followers.discard(peer)
            self._long_gone.discard(peer)
            self._lag.vouchers.discard(peer)
            self.follower.gone(peer, now)
        if member.state == State.LEFT:
            self._absences.left(member)
            self.apart.pop(peer, None)
        elif member.state == State.FAILED:
            self._absences.failed(member, counts=peer not in self.apart)
        elif self._ready:
            self._back(member, now)
        else:
            self._absences.seen(member)

    def _forget(self) -> None:
        """Keep nothing of whom membership has forgotten."""
        members = self._membership.members.keys()
        tables: tuple[dict[bytes, Any], ...] = (self._numbers, self._said, self._theirs, self.apart)
        for table in tables:
            for peer in table.keys() - members:
                del table[peer]
        self._long_gone &= members
        self._absences.forget(members)

    def _back(self, member: Member, now: float) -> None:
        """`member` is alive, again or for the first time."""
        peer, back = member.id, self._absences.back(member, now)
        if back.lost:
            self._lag.cut_off()
        if back.same and back.long:
            self._part(peer, measured=True)
        elif back.new:
            # A new life has its model from one side or the other, and says so; while there are two, that is awaited.
            self.apart.pop(peer, None)
            self._theirs.pop(peer, None)
            self._followers.discard(peer)
            self._lag.vouchers.discard(peer)
            if back.long:
                self._long_gone.add(peer)
            if self._measured and self.present():
                self.apart[peer] = member.incarnation
        if peer in self.apart:
            # It may have changed sides, and its word been lost.
            self._tick_at = min(self._tick_at, now)

    def _part(self, peer: bytes, *, measured: bool) -> None:
        self.apart[peer] = self._absences.life(peer)
        self._lag.vouchers.discard(peer)
        self._measured = self._measured or measured
        self._noticed = True

    def present(self) -> list[bytes]:
        """Whoever is held apart, and there; but two outbound-only peers never exchange, and cannot tell each other."""
        members = self._membership.members
        return self._within_hearing([peer for peer in self.apart if peer in members and members[peer].state in LIVE])

    def _within_hearing(self, peers: list[bytes]) -> list[bytes]:
        """Those of `peers` with whom this one can speak."""
        members, reachable = self._membership.members, self._membership.me.address
        return [peer for peer in peers if reachable or members[peer].address]

    def _own_side(self) -> list[bytes]:
        return [member.id for member in self._membership.alive() if member.id not in self.apart]

    def gives(self, message: StateRequest | StateAsk | StateProbe, peer: bytes) -> bool:
        """May `peer` have of this peer's state? Not while it is half another's, or perhaps long out of date; and while
        there are two sides, whoever fetches the model of one is not to judge it by the other's."""
        foreign = isinstance(message, StateProbe) and peer not in self._theirs and self.present()
        # Two idle peers may ask each other at once: neither has given anything up yet.
        whole = not self.reason or (self.reason in SPARE and self.follower.untouched)
        return whole and self._lag.asking_until is None and not foreign

    # -- lines ------------------------------------------------------------------------------------------------

    def receive(self, word: Lineage, source: bytes, now: float) -> None:
        """`source` says which line it holds."""
        member = self._membership.members.get(source)
        if member is None or word.incarnation < member.incarnation:
            return
        if word.apart and (self._steps >= NEVER or word.life != self._membership.me.incarnation):
            return  # there are no sides; or said to an earlier life, whose side need not be this one's
        if (word.incarnation, word.number) <= self._numbers.get(source, (0, 0)):
            return  # older than what it has said since
        self._numbers[source] = word.incarnation, word.number
        self._said[source] = line = word.line
        if not self._ready:
            return
        if line == self.line:
            if line != NO_LINE:
                self.apart.pop(source, None)
                self._theirs.pop(source, None)
            elif word.apart:
                self._told_apart(source)
        elif source in self.apart or word.apart or self._foreign(line):
            if source not in self.apart:
                self._told_apart(source)
            if word.apart:
                self._theirs[source] = line
        elif line.members and self._newer(line, now) and not self._recent(source, now, line.maker):
            self.line, self._line_at, self._weak = line, now, False
        if source in self.apart and word.lag == BEHIND:
            self._followers.add(source)
        else:
            self._followers.discard(source)
        self._long_gone.discard(source)
        if source not in self.apart:
            self._lag.heard(source, word.lag)
        if word.reply:
            self.tell(source)

    def _recent(self, peer: bytes, now: float, maker: bytes = b"") -> bool:
        """Has `peer`, or the maker of its line, been here too shortly to be known as one of this peer's side? Its word
        may come before membership's news that it is back."""
        latest = max(map(self._absences.arrived, (peer, maker)))
        return self._absences.lost(peer) or now < latest + FREEZE * self._period

    def _newer(self, line: Line, now: float) -> bool:
        """Is `line`, said within this peer's side, to take the place of the one held?"""
        if self._current(now):
            return strength(line) > strength(self.line)
        return line.generation > self.line.generation

    def _told_apart(self, peer: bytes) -> None:
        """By another's word; perhaps this peer's own view says so too."""
        self._part(peer, measured=peer in self._long_gone or self._absences.long(peer))

    def _foreign(self, line: Line) -> bool:
        """Was `line` said by somebody of another side?"""
        far = line.maker in self.apart or self._absences.long(line.maker)
        return line != NO_LINE and (far or line in self._theirs.values())

    def _declare(self, now: float) -> None:
        """Somebody is apart: this peer's side needs a line, if nobody of it has just said one."""
        stale = not self._current(now)
        stronger = self._weak and self._measured
        if self.line == NO_LINE or stale or stronger:
            # Whoever only hears that it is apart, for it was stopped itself, knows nothing of a side.
            self._weak = not self._measured
            settled = [peer for peer in self._own_side() if not self._recent(peer, now)]
            members = 0 if self._weak else 1 + len(settled)
            generation = self.line.generation if stronger and not stale else self._next_generation()
            own = self._me()
            self.line = Line(generation, members, own.clock, own.rounds, self._membership.me.id)
            self._line_at = now
        self._open = True
        self._verdict_at = now + HEARING * self._period
        self._tick_at = now

    def _next_generation(self) -> int:
        # Whoever claims the last one must not make this peer say what nobody can read.
        return min(self.line.generation + 1, LAST)

    def _current(self, now: float) -> bool:
        """Is the line of the reunion that is under way, and not of an earlier one?"""
        return self._open or now < self._line_at + FREEZE * self._period

    def tell(self, peer: bytes, *, reply: bool = False) -> None:
        """Say which line this peer holds; with `reply`, ask for that of `peer`."""
        lag = BEHIND if self.reason else self._lag.told()
        me, member = self._membership.me, self._membership.members.get(peer)
        life = 0 if member is None else member.incarnation
        self._number += 1
        apart = peer in self.apart
        self._outputs.send(peer, Lineage(me.incarnation, self._number, life, apart, reply, lag, self.line))

    # -- time -------------------------------------------------------------------------------------------------

    def timer(self) -> float | None:
        least, follower = self._tick_at, self.follower.timer()
        if self.apart and not self.reason:
            least = min(least, self._verdict_at)
        if follower is not None:
            least = min(least, follower)
        return None if math.isinf(least) else least

    def handle_timer(self, now: float) -> None:
        self.follower.handle_timer(now)
        if now < self._tick_at:
            return
        present, asking = self.present(), self._lag.asking_until is not None
        self._tick_at = now + self._period if present or asking or self.reason else math.inf
        if present:
            self._tell_some(present)
        if present or asking or self.reason == "lag":
            self._tell_some(self._own_side())

    def _tell_some(self, peers: list[bytes]) -> None:
        reached = [peer for peer in peers if self._membership.reaches(peer)]
        for peer in self._random.sample(reached, min(TELLS, len(reached))):
            self.tell(peer, reply=True)

    def step(self, now: float) -> None:
        """Whatever has changed: is somebody apart, and which side gives way? Does this peer lag?"""
        if not self._ready:
            return
        if self._noticed:
            self._noticed = False
            self._declare(now)
        if self.reason:
            self._fetch(now)
        elif self.apart or self._open:
            self._judge(now)
        if not self.reason and self.astray:
            self._follow("diverged", now)
        elif not self.reason and self._standby is not None and (reason := self._standby.reason):
            self._follow(reason, now)
        elif not self.reason:
            self._watch_lag(now)

    def _judge(self, now: float) -> None:
        present = self.present()
        if not present:
            self._measured = self._open = False
            self._verdict_at = math.inf
        elif now >= self._verdict_at:
            self._verdict_at = math.inf
            text = f"{len(present)} members are back after more than {self._rounds} rounds: "
            verdict = "this peer's side follows theirs" if self._greater() else "their side is to follow this one's"
            self._outputs.emit(Notice("GD-607", text + verdict))
            self._judged_at = now
        if self._verdict_at < math.inf or not present:
            return
        if any(map(self._membership.reaches, self._greater())):
            self._follow("apart", now)
        elif now >= self._judged_at + ALONE * self._period and self._misjudged():
            members = 1 + len(self._company())
            self.line = replace(
                self.line, generation=self._next_generation(), members=members, maker=self._membership.me.id
            )
            self._line_at, self._weak = now, False

    def _greater(self) -> list[bytes]:
        """Who holds the greatest line of those across the gap that are greater than this peer's. One alone is no proof
        of a side of several, nor for who has company at all; and who gives its own model up right now is not to be
        followed."""
        voices: dict[Line, list[bytes]] = {}
        for peer, line in self._theirs.items():
            if peer in self.apart and peer not in self._followers and strength(line) > strength(self.line):
                voices.setdefault(line, []).append(peer)
        if not voices:
            return []
        alive = [member.id for member in self._membership.alive()]
        # Behind a NAT, with nobody else who can be dialled, one speaks for all whom this peer cannot hear.
        enough = 1 if len(self._within_hearing(alive)) == 1 < len(alive) else VOICES
        least = VOICES if self._company() else 1
        proven = [line for line, holders in voices.items() if len(holders) >= min(max(line.members, least), enough)]
        return voices[max(proven, key=strength)] if proven else []

    def _company(self) -> list[bytes]:
        """Who is heard of this peer's side."""
        return self._within_hearing(self._own_side())

    def _misjudged(self) -> bool:
        """Is this peer all that is heard of a side of several? Nobody follows one voice: it has to speak for itself.
        Two outbound-only peers of a side are two of them. Or has it company, though its line is one of less: said by
        one who only heard that it was apart, or was alone then? They are a side as any other."""
        if self._company():
            return self.line.members < 2
        return self.line.members > 1 and not self._followers

    def _watch_lag(self, now: float) -> None:
        if self._membership.buried != self._buried:
            self._buried = self._membership.buried
            self._lag.cut_off()
        if len(self._membership.members) > VOUCHERS and self._lag.suspected(now):
            self._hold(True, now)
            self._tick_at = now
        elif self._lag.proven(now):
            self._follow("lag", now)
        elif self._lag.disproven(now):
            self._lag.fetched(now)
            self._hold(False, now)

    # -- following --------------------------------------------------------------------------------------------

    def _follow(self, reason: str, now: float) -> None:
        self._lag.asking_until = None
        self._tick_at = now + self._period
        self._wanted = self._theirs[self._greater()[0]] if reason == "apart" else NO_LINE
        members, others = 1 + len(self._own_side()), len(self.present())
        if self._standby is None or reason not in SPARE:
            return self.follower.begin(reason, members, others, now)
        age, clock, keep = self._standby.age, self._standby.clock, self._standby.trained
        return self.follower.begin(reason, members, others, now, behind=age, newer_than=clock, keep=keep)

    def asked(self, now: float) -> None:
        """Somebody asks for the model that is being given up: while nobody can be asked for the other side's, there is
        not to be none for long. Who lags or has diverged has members to follow, and is not hurried."""
        givers = [peer for peer in self._holders() if self._membership.reaches(peer) and peer not in self._followers]
        if self.reason == "apart" and not givers:
            self.follower.wanted(now)

    def _holders(self) -> list[bytes]:
        """Of the line followed, or of one that is greater than this peer's as well."""
        return [peer for peer, line in self._theirs.items() if line == self._wanted] or self._greater()

    def _fetch(self, now: float) -> None:
        if self.follower.over(now):
            self._followed(now)
            return
        if self.reason == "lag":
            wanted = sorted(self._lag.vouchers)
        elif self.reason == "diverged":
            wanted = list(self.astray)
        elif self._standby is not None and self.reason in SPARE:
            wanted = list(self._standby.givers())
        else:
            wanted = self._holders()
        alive = {member.id for member in self._membership.alive() if self._membership.reaches(member.id)}
        self.follower.fetch([peer for peer in wanted if peer in alive], now)

    def stop(self, now: float) -> None:
        """This peer leaves: if it is a spare, it keeps the model that it has."""
        if self.reason in SPARE:
            self._followed(now)

    def _followed(self, now: float) -> None:
        manifest = self.follower.manifest
        if manifest is not None:
            # A model that came from the other side, for whatever reason, brings this peer to that side.
            if self.reason == "apart" or self.follower.source in self.apart:
                self._change_sides(self._said.get(self.follower.source, NO_LINE), now)
            self._done(manifest.clock, manifest.rounds, now - self.follower.began)
        # Who has given up tries again when `spreading` says so, and not at once.
        self.astray = ()
        if self._standby is not None:
            self._standby.tried(self.reason, complete=manifest is not None)
        self._lag.fetched(now)
        self.follower.end(now)
        for peer in self._own_side()[:GREETED]:
            self.tell(peer)

    def _change_sides(self, line: Line, now: float) -> None:
        """Those who were apart are this peer's side now, and its former side is apart, until it says otherwise."""
        former = {peer: self._absences.life(peer) for peer in self._own_side() if self._said.get(peer) != line}
        others = {peer: life for peer, life in self.apart.items() if self._theirs.get(peer, line) != line}
        self._theirs = {peer: self._theirs[peer] for peer in others}
        self.apart.clear()
        self.apart.update(former | others)
        self.line, self._line_at, self._weak, self._measured, self._open = line, now, False, True, True
        self._verdict_at, self._tick_at = now + HEARING * self._period, now
