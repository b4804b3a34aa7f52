"""Two sides of a network meet again after a long partition: one keeps its model, the other fetches it.

Replicas that were cut off for a few rounds are averaged. After many rounds their mean is worse than either replica. So
a member that returns after `apart_rounds` of this peer's own rounds is held *apart*: no exchange with it until one side
has re-synced. Progress reports are the version vectors that reveal such a partition (Parker et al. 1983, "Detection of
mutual inconsistency in distributed systems").

A side is known by its `Line`: what the first of its members to notice said of it, once and for all. Lines are ordered:
sides that train first, then those of more members. Within a side the greatest line replaces all others, as in an
election by flooding (Lynch 1996, section 4.1). A peer that hears of a greater line across the gap fetches the model
from a holder, and takes over its line. So every peer climbs one finite order. Lost or late messages only delay the end:
one line, without a vote. Two members that tell the same lie can make a network follow them. One member cannot, except
for a peer that can hear only that member. A restarted founder is a peer like any other.

A peer that has fallen behind (`lag`) follows the network in the same way. So does one whose training has not begun and
whose model is old (`standby`). It turns to a greater line if its own side gives it no model. This file decides.
`follower` fetches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from gossipdp.protocol.course.age import Age, more_than_a_copy, renewal
from gossipdp.protocol.course.facts import Facts
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.membership.progress import Own, ProgressBoard
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.partition.absences import Absences
from gossipdp.protocol.partition.follower import Follower
from gossipdp.protocol.partition.lag import BEHIND, VOUCHERS, Lag
from gossipdp.protocol.partition.lines import NO_LINE
from gossipdp.protocol.partition.reasons import SPARE, Reason
from gossipdp.protocol.partition.sides import Sides
from gossipdp.protocol.partition.states import COURSE, Action, Course, Event
from gossipdp.protocol.partition.verdict import Verdict
from gossipdp.protocol.state_machine import Machine
from gossipdp.protocol.transfer.arrived import Arrived
from gossipdp.protocol.transfer.joiner import Joiner
from gossipdp.protocol.wire.messages import Line, Lineage, Member, State, StateAsk, StateProbe, StateRequest

__all__ = ["Reunion"]

TELLS: Final = 4
"""Members of each side that are told per period."""
GREETED: Final = 32
"""Members told at once by a peer that has changed sides."""


class Reunion:
    """Decides what becomes of this peer's model when parts of the network meet again.

    Args:
        joiner: Makes a joiner that replaces the model, by a model newer than this network clock.
        every: Steps of a round.
        me: This peer's progress.
        hold: True: offer and accept no exchange. False: exchange again. Returns True once no exchange is under way.
        done: Callback: a model was fetched for this reason, in this many seconds.
        age: Of the model here.
        facts: What the decisions rest on now.
        givers: Members of this peer's side that can give a newer model.
        finishing: Whether the run of this peer ends. The peer then does not watch whether it lags.
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
        done: Callable[[Arrived, Reason, float], None],
        age: Age,
        facts: Callable[[], Facts],
        givers: Callable[[], Sequence[bytes]],
        finishing: Callable[[], bool] = lambda: False,
    ) -> None:
        self._membership, self._random, self._outputs = membership, random, outputs
        self._hold, self._done, self._finishing = hold, done, finishing
        self._age, self._facts, self._givers = age, facts, givers
        self._steps = apart_rounds * every
        self._period = membership.config.join_interval
        self.follower = Follower(joiner, outputs, hold, self._period, random)
        absences = Absences(progress, lambda: me().clock, self._steps)
        self._sides = Sides(membership, absences, self._period)
        self._lag = Lag(
            progress, every=every, period=self._period, me=me, side=lambda: membership.voices(self._sides.own())
        )
        self._verdict = Verdict(
            membership,
            self._sides,
            outputs,
            apart_rounds=apart_rounds,
            period=self._period,
            me=me,
            trains=lambda: more_than_a_copy(age, ends=facts().ends),
        )
        self._course = Machine(COURSE, Course.JOINING, self._course_actions())
        self._number = 0
        """Of the last message sent."""
        self._wanted = NO_LINE
        """The line that is followed. It stays wanted when it loses holders."""
        self._tick_at = math.inf
        """When members are told next."""
        self._buried = 0
        """How often this peer was thought dead, when last looked at."""

    def _course_actions(self) -> dict[Action, Callable[[float], None]]:
        return {
            Action.ASK: self._ask,
            Action.RESUME: self._resume,
            Action.TRUST: self._trust,
            Action.FOLLOW_SIDE: self._follow_side,
            Action.FOLLOW_NETWORK: self._follow_network,
            Action.RENEW: self._renew,
            Action.TURN: self._turn,
            Action.ADOPT: self._adopt,
            Action.KEEP: self._end,
        }

    @property
    def reason(self) -> Reason | None:
        """Why this peer follows another model right now."""
        return self.follower.reason

    @property
    def apart(self) -> dict[bytes, int]:
        """Members with which this peer exchanges nothing, and the incarnation of each. Always the same dictionary."""
        return self._sides.apart

    @property
    def line(self) -> Line:
        """The line that this peer holds."""
        return self._verdict.line

    @property
    def undecided(self) -> bool:
        """Two sides have met, and the verdict is still to come."""
        return math.isfinite(self._verdict.due_at)

    def present(self) -> list[bytes]:
        """Members held apart that are alive and can be heard."""
        return self._sides.present()

    # -- what the peer tells ----------------------------------------------------------------------------------

    def ready(self, source: bytes, missing: Sequence[Member], now: float) -> None:
        """The model is here.

        Args:
            source: The member that gave it. b"" for this peer's own.
            missing: Members remembered from an earlier life, if this peer went on from its checkpoint.
        """
        self._verdict.begin(self._sides.said(source), now)
        for member in missing:
            self._sides.missing(member)
        self._lag.fetched(now)
        self._course.fire(Event.READY, now)

    def began(self) -> None:
        """An exchange begins."""
        self._lag.began()

    def mixed(self, now: float) -> None:
        """An exchange has mixed a chunk. This peer is in step, unless it has slept meanwhile."""
        self._lag.mixed(now)
        if self._course.state is Course.ASKING and not self._lag.far():
            self._course.fire(Event.CAUGHT_UP, now)

    def member_changed(self, member: Member, now: float) -> None:
        """Membership has news of `member`."""
        self._sides.prune()
        if member.state in (State.FAILED, State.LEFT):
            self._sides.lost(member)
            self._lag.dismiss(member.id)
            self.follower.gone(member.id, now)
        elif self._course.state is Course.JOINING:
            self._sides.seen(member)
        else:
            self._back(member, now)

    def _back(self, member: Member, now: float) -> None:
        back = self._sides.back(member, now)
        if back.lost:
            self._lag.cut_off()
        if back.new:
            self._lag.dismiss(member.id)
        if member.id in self.apart:
            self._lag.dismiss(member.id)
            # It may have changed sides, and its message may be lost.
            self._tick_at = min(self._tick_at, now)

    def gives(self, message: StateRequest | StateAsk | StateProbe, peer: bytes) -> bool:
        """Whether `peer` may have this peer's state.

        Not while it is partly another model, or perhaps long out of date. While there are two sides, this peer is no
        witness for a transfer of the other side.
        """
        foreign = isinstance(message, StateProbe) and not self._sides.knows(peer) and self.present()
        # Two idle peers may ask each other at once. Neither has replaced a chunk yet.
        whole = not self.reason or (self.reason in SPARE and self.follower.untouched)
        return whole and self._course.state is not Course.ASKING and not foreign

    def asked(self, source: bytes, now: float, *, trusted: bool) -> None:
        """`source` asks for the model. If it is not `trusted`, it cannot make this peer give up sooner."""
        # A peer follows a side for long, but not if no member of it can be reached and another peer has no model.
        if trusted and self.reason is Reason.APART:
            holders = [peer for peer in self._holders() if self._membership.reaches(peer)]
            if all(map(self._sides.gives_up, holders)):
                self.follower.wanted(now)
        if self.line != NO_LINE:
            # The joiner will be of this peer's side.
            self.tell(source)

    # -- lines ------------------------------------------------------------------------------------------------

    def receive(self, word: Lineage, source: bytes, now: float) -> None:
        """`source` says which line it holds."""
        # What was said to an earlier life of this peer is void: its side may differ.
        void = word.apart and word.life != self._membership.me.incarnation
        if void or not self._sides.hear(word, source) or self._course.state is Course.JOINING:
            return
        heeded = bool(self._membership.voices([source]))
        if self._sides.place(word, source, self.line) and heeded:
            self._verdict.offered(word.line, source, now)
        self._sides.settle(source, gives_up=word.lag == BEHIND)
        if source in self.apart:
            self._lag.dismiss(source)
        elif heeded:
            self._lag.heard(source, word.lag)
        if word.reply:
            self.tell(source)

    def tell(self, peer: bytes, *, reply: bool = False) -> None:
        """Say which line this peer holds. `reply`: ask for the line of `peer`."""
        lag = BEHIND if self.reason else self._lag.told()
        me, member = self._membership.me, self._membership.members.get(peer)
        life = 0 if member is None else member.incarnation
        self._number += 1
        apart = peer in self.apart
        self._outputs.send(peer, Lineage(me.incarnation, self._number, life, apart, reply, lag, self.line))

    def _tell_some(self, peers: list[bytes]) -> None:
        reached = [peer for peer in peers if self._membership.reaches(peer)]
        for peer in self._random.sample(reached, min(TELLS, len(reached))):
            self.tell(peer, reply=True)

    # -- time -------------------------------------------------------------------------------------------------

    def timer(self) -> float | None:
        """When `handle_timer` wants to be called next, or None."""
        least, follower = self._tick_at, self.follower.timer()
        if self.apart and self._judges:
            least = min(least, self._verdict.due_at)
        if follower is not None:
            least = min(least, follower)
        return None if math.isinf(least) else least

    def handle_timer(self, now: float) -> None:
        """Tell members of both sides once a period, as long as there is a reason."""
        self.follower.handle_timer(now)
        if now < self._tick_at:
            return
        present, asking = self.present(), self._course.state is Course.ASKING
        self._tick_at = now + self._period if present or asking or self.reason else math.inf
        if present:
            self._tell_some(present)
        if present or asking or self.reason is Reason.LAG:
            self._tell_some(self._sides.own())

    def step(self, now: float) -> None:
        """Draw conclusions after any input."""
        if self._course.state is Course.JOINING:
            return
        if self._sides.take_noticed():
            self._verdict.found_apart(now)
            self._tick_at = now
        outranked = self._judges and (self.apart or self._verdict.open) and self._verdict.judge(now)
        if outranked and not self.follower.busy:
            self._course.fire(Event.OUTRANKED, now)
        elif self.reason:
            self._fetch(now)
        if not self.reason and self._renewal is not None:
            self._course.fire(Event.OUTDATED, now)
        elif not self.reason and not self._finishing():
            self._watch_lag(now)
        elif self._course.state is Course.ASKING:
            # The run ends. The model is not given up, so there is nothing left to ask for.
            self._course.fire(Event.UNVOUCHED, now)

    def stop(self, now: float) -> None:
        """This peer leaves. A peer that does not train keeps the model that it has."""
        if self.reason in SPARE:
            self._conclude(now)

    # -- the course -------------------------------------------------------------------------------------------

    @property
    def _judges(self) -> bool:
        """Whether this peer follows a greater line as soon as one is proven."""
        return not self.reason or self.reason in SPARE

    def _watch_lag(self, now: float) -> None:
        if self._membership.buried != self._buried:
            self._buried = self._membership.buried
            self._lag.cut_off()
        if self._course.state is Course.ASKING:
            if self._lag.proven(now):
                self._course.fire(Event.VOUCHED, now)
            elif self._lag.disproven(now):
                self._course.fire(Event.UNVOUCHED, now)
        elif len(self._membership.members) > VOUCHERS and self._lag.suspected(now):
            self._course.fire(Event.SUSPECTED, now)

    def _ask(self, now: float) -> None:
        self._lag.ask(now)
        self._hold(True, now)
        self._tick_at = now

    def _resume(self, now: float) -> None:
        self._hold(False, now)

    def _trust(self, now: float) -> None:
        self._lag.fetched(now)
        self._hold(False, now)

    def _follow_side(self, now: float) -> None:
        self._wanted = self._sides.line_of(self._sides.greater(self.line)[0])
        self._follow(Reason.APART, now)

    def _follow_network(self, now: float) -> None:
        self._follow(Reason.LAG, now)

    def _renew(self, now: float) -> None:
        reason, age, clock = self._renewal, self._age, self._facts().clock
        assert reason is not None
        self._follow(reason, now, behind=age.at(clock), newer_than=age.least(clock), keep=age.trained)

    @property
    def _renewal(self) -> Reason | None:
        """Why this peer, which does not train, fetches the model anew now."""
        if not self._age.idle:
            return None
        reason = renewal(self._age, self._facts())
        return reason if reason is not None and self._givers() else None

    def _turn(self, now: float) -> None:
        self._end(now)
        self._follow_side(now)

    def _follow(self, reason: Reason, now: float, *, behind: int = 0, newer_than: int = -1, keep: bool = True) -> None:
        self._tick_at = now + self._period
        members, others = 1 + len(self._sides.own()), len(self.present())
        self.follower.begin(reason, members, others, now, behind=behind, newer_than=newer_than, keep=keep)

    def _holders(self) -> list[bytes]:
        """Holders of the line followed, or of another line that is greater than this peer's."""
        return self._sides.holders(self._wanted) or self._sides.greater(self.line)

    def _fetch(self, now: float) -> None:
        if self.follower.over(now):
            return self._conclude(now)
        if self.reason is Reason.LAG:
            wanted: Sequence[bytes] = self._lag.vouchers
        elif self.reason in SPARE:
            wanted = self._givers()
        else:
            wanted = self._holders()
        alive = {member.id for member in self._membership.alive() if self._membership.reaches(member.id)}
        present, training = [peer for peer in wanted if peer in alive], set(self._membership.training())
        # A member that does not train holds an older model.
        return self.follower.fetch([peer for peer in present if peer in training] or present, now)

    def _conclude(self, now: float) -> None:
        self._course.fire(Event.FETCHED if self.follower.complete else Event.GAVE_UP, now)

    def _adopt(self, now: float) -> None:
        arrived, source, reason = self.follower.arrived, self.follower.source, self.reason
        assert arrived is not None and reason is not None
        # Whatever the reason was: a model of the other side brings this peer to that side.
        if reason is Reason.APART or source in self.apart:
            self._verdict.change_sides(self._sides.said(source), now)
            self._tick_at = now
        self._done(arrived, reason, now - self.follower.began)
        self._end(now)

    def _end(self, now: float) -> None:
        # A peer that gave up does not try again at once: `step` says when.
        self._age.attempted(self.reason, self._facts(), complete=self.follower.complete)
        self._lag.fetched(now)
        self.follower.end(now)
        for peer in self._sides.own()[:GREETED]:
            self.tell(peer)
