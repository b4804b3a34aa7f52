"""How a run ends at one peer (protocol section 14, algorithms section 12).

The peer's own record tells its `Phase`, signed and gossiped like all of it. No wait is without end, and a member that
fails or leaves at any moment is not waited for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from gossipdp.protocol.contribution import Contribution
from gossipdp.protocol.course.facts import Age, Facts
from gossipdp.protocol.course.rules import outdated, renewal, stale
from gossipdp.protocol.events import FinishBegan, Finished, FinishPhase, Notice
from gossipdp.protocol.pairwise.averaging import Averaging
from gossipdp.protocol.parts import Parts
from gossipdp.protocol.rounds.pacing import Pacing
from gossipdp.protocol.rounds.rounds import Rounds
from gossipdp.protocol.wire.messages import Member, Phase, State, short

__all__ = ["Counts", "Ending", "FinishProgress"]

HAND_IN: Final = 30.0
ROUNDS: Final = 2.0
"""seconds in which a peer hands its last steps in, at least, and usual rounds for each of its exchanges: a partner may
have had all its exchanges until its next round"""
LATELY: Final = 5.0
"""seconds within which the ends of two peers count as one: news of a clock takes about as long"""
SPARES: Final = 30.0
"""seconds for which peers wait at most for spares before the first step: a member that comes later begins all anew"""
BEGINNERS: Final = 60.0
"""seconds that a peer waits at most for members that have made no step: they may begin, or never train"""
MOST_LATE: Final = 32
"""times that members join those that close already; each time all begin anew. After that no more are taken in"""
QUIET: Final = 2.0
"""probe intervals without news of the closers' progress, after which all of them tell the same counts"""


class Counts(NamedTuple):
    """Progress of the members that hold the final model. All of them tell the same."""

    clock: int
    """furthest clock in steps"""
    steps: int
    samples: int


class FinishProgress(NamedTuple):
    """What the end of this peer's run waits for."""

    phase: Phase
    left: float
    """seconds that this peer waits at most; infinity: it does not wait for members"""
    awaited: tuple[bytes, ...]
    """members that are waited for: those that train, or are not done yet"""
    closers: tuple[bytes, ...]
    """members whose training is over, this peer included"""
    handing: bool = False
    """this peer hands its last steps in to `awaited`"""
    handed_in: bool = False
    """it has done so"""


class Ending:
    """The end of one peer's run.

    Args:
        age: of the model here.
        apart: members that nothing is exchanged with.
    """

    def __init__(
        self,
        parts: Parts,
        contribution: Contribution,
        age: Age,
        apart: Mapping[bytes, int],
        pacing: Pacing,
        rounds: Rounds,
        averaging: Averaging,
    ) -> None:
        self._membership, self._progress, self._outputs = parts.membership, parts.progress, parts.outputs
        self._strikes, self._averaging = parts.strikes, averaging
        self._contribution, self._age, self._apart, self._pacing = contribution, age, apart, pacing
        self._rounds = rounds
        self._sync = parts.config.sync
        self._wait = parts.config.finish_wait
        self._follows = parts.config.finish_follow and not parts.membership.me.only_carries
        self._period = parts.membership.config.join_interval
        self._quiet = QUIET * parts.membership.config.probe_interval
        self.begun = False
        """the run of this peer ends: it does not train any more once its training process is gone"""
        self._ended = False
        self.handed_in = False
        """the own steps in this peer's model are in those of members that have trained on"""
        self.spare = False
        """they have trained on, and the final model is not the mean of this peer's and theirs"""
        self._waits: dict[bytes, float] = {}
        """members that wait for those that train, and when this peer heard of it"""
        self._handing: tuple[int, float] | None = None
        """times that each chunk is to be mixed to hand the last steps in, and until when that is tried"""
        self._before: Mapping[bytes, Member] = {}
        self._steps: Mapping[bytes, int] = {}
        """records of all members when training was over, and the steps that they had reported"""
        self.counts: Counts | None = None
        """of the members that hold this peer's final model; None before the end, or without a model"""
        self._until = math.inf
        """end of the present wait"""
        self._look_at = self._over_at = math.inf
        """when to look at the members next, and when training was over"""
        self._closed_at = math.inf
        """when this peer began to close"""
        self._others: tuple[bytes, ...] | None = None
        """the other members that close, as averaging knows them"""
        self._come: tuple[tuple[bytes, ...], float] = (), -math.inf
        """the other members that close, and when that last changed"""
        self._late = 0
        """times that other members have joined them"""
        self._told: tuple[Counts | None, float] = None, 0.0
        """counts of the closers once all are done, and when they last changed"""
        self._gone: set[bytes] = set()
        """members that closed with this peer, were done and have left"""

    # -- commands ---------------------------------------------------------------------------------------------

    def begin(self, now: float, *, calls: bool, wait: float | None = None, by: bytes = b"") -> None:
        """The run of this peer ends.

        Args:
            calls: ask all members to finish too.
            wait: seconds to wait for members that train; None: as configured.
            by: the member that asked for it; b"" for this host.
        """
        if wait is not None:
            self._wait = wait
            self._until = now + wait if self._until < math.inf and self._phase <= Phase.WAITING else self._until
        if not self.begun:
            self.begun = True
            self._outputs.emit(FinishBegan(by, calls))
        if calls:
            self._membership.finish(self._phase, True, now)
        self._look_at = now

    # -- inputs -----------------------------------------------------------------------------------------------

    def member_changed(self, member: Member, now: float) -> None:
        """Membership has news of `member`."""
        live = member.state in (State.ALIVE, State.SUSPECT)
        if not _waits(member):
            self._waits.pop(member.id, None)
        elif live:
            self._waits.setdefault(member.id, now)
        if member.calls and live and self._follows and not self.begun and not self._strikes.shuns(member.id, now):
            self._called(member, now)
        elif self.begun:
            self._look_at = now

    def _called(self, member: Member, now: float) -> None:
        """`member` asks all to finish."""
        if self._membership.voices([member.id]):
            return self.begin(now, calls=True, by=member.id)
        text = f"{member.name} ({short(member.id)}) asks all to finish, and has not been known here for long enough"
        return self._outputs.emit(Notice("GD-406", f"{text}: this peer trains on"))

    def timer(self) -> float:
        """When `due` is to be asked at the latest."""
        return math.inf if self._ended else self._look_at

    def due(self, now: float) -> bool:
        """Whether `look` is to be called, after any input."""
        if not self.begun or self._ended:
            return False
        news = self._phase is Phase.RUNNING and self._rounds.at_rest and self._until == math.inf
        if self._handing is not None and self._phase is Phase.RUNNING:
            news = news or self._averaging.hand_in(self._handing[0], now)
        news = news or (self._phase >= Phase.CLOSING and self._averaging.closeness.over != (self._phase is Phase.DONE))
        return news or now >= self._look_at

    # -- the phases -------------------------------------------------------------------------------------------

    def look(self, facts: Facts, now: float, *, ready: bool, whole: bool, sources: bool) -> None:
        """Draw conclusions from what the members say.

        Args:
            facts: what the age of the model is judged by.
            ready: the model is here.
            whole: and no other one replaces it.
            sources: a newer one can be had.
        """
        self._look_at = now + self._period
        if self._phase is Phase.RUNNING and self._rounds.at_rest:
            if self._until == math.inf:
                self._before = dict(self._membership.members)
                self._steps = {report.id: report.steps for report in self._progress.reports()}
            self._until, self._over_at = min(self._until, now + self._wait), min(self._over_at, now)
            if not ready:
                if now >= self._until:
                    self._end(())
                return
            if self._hands_in(now):
                return
            if self._handing is not None:
                self._until = now + self._wait
            self._enter(Phase.WAITING, now)
        if self._phase is Phase.WAITING:
            self._await(facts, now, whole=whole, sources=sources)
        if self._phase >= Phase.CLOSING:
            self._close(now)

    def _hands_in(self, now: float) -> bool:
        """Whether this peer still hands its last steps in to members that train."""
        partners = self._partners(now)
        if not partners:
            return False
        if self._handing is None:
            # After ceil(log2 N) exchanges of weight 1/2 it keeps at most the Nth part of its last movement.
            passes = len(partners).bit_length()
            self._handing = passes, now + max(HAND_IN, ROUNDS * passes * self._averaging.usual_round)
            self._outputs.emit(FinishPhase(Phase.RUNNING))
        passes, until = self._handing
        if now < until and not self._averaging.hand_in(passes, now):
            return True
        self.handed_in = self._averaging.passes > 0
        return False

    def _partners(self, now: float) -> list[bytes]:
        """Members that this peer can hand its last steps in to. None if all end together."""
        if self._membership.me.calls or not self._age.trained:
            return []
        members, company = self._membership, self._averaging.company
        training = self.trainers() if self._sync else members.training()  # with sync no member tells its speed
        return [peer for peer in self._of_my_side(training, now) if peer in company and members.reaches(peer)]

    def _await(self, facts: Facts, now: float, *, whole: bool, sources: bool) -> None:
        calls, trainers = self._membership.me.calls, self._train_on(now)
        clock, every = self._contribution.clock, self._pacing.ages_every
        if self.handed_in and trainers and now > self._over_at + LATELY and outdated(self._age, clock, every):
            self.spare = True
        old = stale(self._age, clock, every, ends=self.begun, spare=self.spare)
        holders = [member.id for member in self._closers(now) if member.phase >= Phase.CLOSING]
        gone = (old or not (calls or holders)) and self._gone_with_it()
        # A model without own training, or handed in, is fetched a last time, once no member trains.
        renews = renewal(self._age, replace(facts, spare=self.spare)) is not None and sources
        current = whole and not renews and (bool(holders) or not self._awaited(now))
        lacks = gone or (old and bool(trainers or holders))
        if current and not lacks:
            return self._enter(Phase.CLOSING, now)
        if now < self._until and (trainers or holders or not gone):
            return None
        if lacks or (trainers and not calls):
            return self._leave_early(now)
        return self._enter(Phase.CLOSING, now)

    def _train_on(self, now: float) -> list[bytes]:
        """Members that train, or have made steps since this peer's training was over."""
        trains = {*self._membership.training()}
        trains |= {each.id for each in self._progress.reports() if each.steps > self._steps.get(each.id, 0)}
        return [peer for peer in self._of_my_side(self.trainers(), now) if peer in trains]

    def _gone_with_it(self) -> bool:
        """Whether members have left with a final model since this peer's training was over."""
        return any(
            member.state is State.LEFT
            and member.phase is Phase.DONE
            and self._before.get(member.id, member).state is not State.LEFT
            for member in self._membership.members.values()
        )

    def _leave_early(self, now: float) -> None:
        if self._age.trained and not self.handed_in:
            # So members that have the final model know that it lacks the last steps of this peer.
            self._handing = None
            self._membership.finish(Phase.RUNNING, False, now)
        self._end((self._membership.me.id,), early=True)

    def _close(self, now: float) -> None:
        there = self._closers(now)
        known = self._others or ()
        # A spare comes once it has the model of those that trained last. Until then no step is planned with it.
        others = [member for member in there if not self._is_spare(member)]
        if len(others) < len(there) and self._others is None and now < self._closed_at + min(SPARES, self._wait):
            return
        comes = self._others is not None and any(member.id not in known for member in others)
        if comes and self._late >= MOST_LATE:
            there = others = [member for member in others if member.id in known]
            comes = False
        ids = tuple(member.id for member in others)
        gone = [self._membership.members.get(peer) for peer in known if peer not in ids]
        self._gone |= {one.id for one in gone if one and one.state is State.LEFT and one.phase is Phase.DONE}
        if ids != self._come[0]:
            self._come = ids, now
        # All learn of each other within a moment. A schedule of some of them would be void at once.
        if ids != self._others and now >= self._come[1] + self._period:
            self._late += comes
            self._others = ids
            self._averaging.close(others, now)
        over = self._averaging.closeness.over
        if over != (self._phase is Phase.DONE):
            self._enter(Phase.DONE if over else Phase.CLOSING, now)
        taken_in = {*ids} <= {*(self._others or ())}
        all_done = over and taken_in and all(member.phase is Phase.DONE for member in there)
        told = self._count((self._membership.me.id, *ids)) if all_done else None
        if told != self._told[0]:
            self._told = told, now
        quiet = not ids or now >= self._told[1] + self._quiet
        if over and (now >= self._until or (all_done and quiet)):
            closeness = self._averaging.closeness
            holders = sorted((self._gone | {*ids}) - {*closeness.outliers}) if closeness.agrees else []
            self._end((self._membership.me.id, *holders))

    def _end(self, closers: tuple[bytes, ...], *, early: bool = False) -> None:
        self._ended = True
        self.counts = self._count(closers) if closers else None
        closeness = self._averaging.closeness
        if early and self.counts is not None:
            self.counts = self.counts._replace(clock=self._age.current(self._contribution.clock))
            closeness = closeness._replace(agrees=False, now=math.nan)
        trained = {report.id for report in self._progress.reports() if report.steps > 0}
        others = sorted(trained.intersection(self._membership.members).difference(closers, {self._membership.me.id}))
        handed_in = tuple(peer for peer in others if self._has_handed_in(peer))
        without = tuple(peer for peer in others if peer not in handed_in)
        self._outputs.emit(Finished(closers, closeness, without, handed_in, early))

    def _has_handed_in(self, peer: bytes) -> bool:
        """Whether `peer` had ended its training before this peer did, or has left since then, after it handed in."""
        member, before = self._membership.members[peer], self._before.get(peer)
        return (before is not None and _waits(before)) or (member.state is State.LEFT and _waits(member))

    def _is_spare(self, member: Member) -> bool:
        waited = self._over_at > self._waits.get(member.id, math.inf) + LATELY
        return _waits(member) and (self.spare or waited)

    def _count(self, closers: Iterable[bytes]) -> Counts:
        """Only what the closers report is final. News of a lost member may reach one of them later than another."""
        reports = [each for each in map(self._progress.of, closers) if each is not None]
        clocks, steps, samples = zip(*((each.clock, each.steps, each.samples) for each in reports), strict=True)
        return Counts(max(clocks), sum(steps), sum(samples))

    def _adopt_clock(self) -> None:
        """Report the network's clock as this peer's own, for its leader may be gone. Members that train on go ahead."""
        apart = self.trainers()
        clocks = [report.clock for report in self._progress.reports() if report.id not in apart]
        self._progress.adopt(min(max(clocks, default=0), self._progress.clock()))

    def _enter(self, phase: Phase, now: float) -> None:
        if phase is not Phase.WAITING:
            wait = max(self._wait, self._averaging.needed)
            self._until = now + wait if phase is Phase.DONE else math.inf
        if phase is Phase.WAITING:
            self._averaging.rest()
        if phase is Phase.CLOSING:
            self._closed_at = min(self._closed_at, now)
            self._adopt_clock()
        self._membership.finish(phase, self._membership.me.calls, now)
        self._outputs.emit(FinishPhase(phase))

    def _closers(self, now: float) -> list[Member]:
        apart = self._apart
        return [
            member
            for member in self._membership.alive()
            if member.phase and member.id not in apart and not self._strikes.shuns(member.id, now)
        ]

    def _of_my_side(self, peers: Iterable[bytes], now: float) -> list[bytes]:
        return [peer for peer in peers if peer not in self._apart and not self._strikes.shuns(peer, now)]

    def closing(self) -> bool:
        """Whether other members come to their mean."""
        alive = self._membership.alive()
        return any(member.phase >= Phase.CLOSING and member.id not in self._apart for member in alive)

    def trainers(self) -> list[bytes]:
        """Live members that have trained and have not ended that."""
        running = [member.id for member in self._membership.alive() if not member.phase]
        reports = ((peer, self._progress.of(peer)) for peer in running)
        return [peer for peer, report in reports if report is not None and report.steps > 0]

    def _awaited(self, now: float) -> list[bytes]:
        """Members to wait for before this peer closes."""
        if now >= self._over_at + BEGINNERS:
            return self.trainers()
        return [member.id for member in self._membership.alive() if not member.phase]

    # -- for operators ----------------------------------------------------------------------------------------

    @property
    def _phase(self) -> Phase:
        return self._membership.me.phase

    def progress(self, now: float) -> FinishProgress:
        """What is waited for."""
        others = self._closers(now)
        awaited = self._awaited(now) if self._phase <= Phase.WAITING else []
        handing = self._handing if self._phase is Phase.RUNNING else None
        left = (self._until if handing is None else handing[1]) - now
        if self._phase >= Phase.CLOSING:
            awaited = [member.id for member in others if member.phase is not Phase.DONE]
        closers = tuple(member.id for member in (self._membership.me, *others) if member.phase)
        return FinishProgress(self._phase, left, tuple(awaited), closers, handing is not None, self.handed_in)


def _waits(member: Member) -> bool:
    """Whether this member's training ended by itself, and it has handed its last steps in if others trained on."""
    return member.phase is Phase.WAITING and not member.calls
