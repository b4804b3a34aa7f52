"""How a run ends at one peer: its training is over, it waits for others, all come to their mean, then it may leave.

The peer's own record tells its `Phase`, signed and gossiped like all of it. A peer whose training has ended waits for
live members that still train. At the end of its wait, or when no such member is left, it closes with those whose
training is over too: exchanges bring their states together. One that closes takes the waiting ones with it. A peer
that is done stays until all are, because they may need it as a partner, and until no news of progress comes. No wait
is without end, and a member that fails or leaves at any moment is not waited for.

A member may also ask all to finish. Peers follow such a call if their operator lets them, and repeat it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from gossipdp.protocol.events import FinishBegan, Finished, FinishPhase
from gossipdp.protocol.pairwise.averaging import Averaging
from gossipdp.protocol.parts import Parts
from gossipdp.protocol.wire.messages import Member, Phase, State

__all__ = ["Counts", "FinishProgress", "Finishing"]

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


class Finishing:
    """The end of one peer's run.

    Args:
        over: whether no training process is attached and no round is under way.
        ready: whether the model is here.
        current: whether no other model replaces it or is to.
        apart: members that nothing is exchanged with.
    """

    def __init__(
        self,
        parts: Parts,
        averaging: Averaging,
        *,
        over: Callable[[], bool],
        ready: Callable[[], bool],
        current: Callable[[], bool],
        apart: Callable[[], Mapping[bytes, int]],
    ) -> None:
        self._membership, self._progress, self._outputs = parts.membership, parts.progress, parts.outputs
        self._strikes, self._averaging = parts.strikes, averaging
        self._over, self._ready, self._current, self._apart = over, ready, current, apart
        self._wait, self._follows = parts.config.finish_wait, parts.config.finish_follow
        self._period = parts.membership.config.join_interval
        self._quiet = QUIET * parts.membership.config.probe_interval
        self.begun = False
        """the run of this peer ends: it does not train any more once its training process is gone"""
        self._ended = False
        self.counts: Counts | None = None
        """of the members that hold this peer's final model; None before the end, or without a model"""
        self._until = math.inf
        """end of the present wait"""
        self._look_at = self._over_at = math.inf
        """when to look at the members next, and when training was over"""
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
        if member.calls and live and self._follows and not self.begun and not self._strikes.shuns(member.id, now):
            self.begin(now, calls=True, by=member.id)
        elif self.begun:
            self._look_at = now

    def timer(self) -> float:
        """When `step` is to be called at the latest."""
        return math.inf if self._ended else self._look_at

    def step(self, now: float) -> None:
        """Draw conclusions after any input."""
        if not self.begun or self._ended:
            return
        news = self._phase is Phase.RUNNING and self._over() and self._until == math.inf
        news = news or (self._phase >= Phase.CLOSING and self._averaging.closeness.over != (self._phase is Phase.DONE))
        if news or now >= self._look_at:
            self._look_at = now + self._period
            self._look(now)

    # -- the phases -------------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        if self._phase is Phase.RUNNING and self._over():
            self._until, self._over_at = min(self._until, now + self._wait), min(self._over_at, now)
            if not self._ready():
                if now >= self._until:
                    self._end(())
                return
            self._enter(Phase.WAITING, now)
        if self._phase is Phase.WAITING:
            closing = any(member.phase >= Phase.CLOSING for member in self._closers(now))
            # A model without own training is fetched a last time, once no member trains.
            current = self._current() and (closing or not self._awaited(now))
            if current or now >= self._until:
                self._enter(Phase.CLOSING, now)
        if self._phase >= Phase.CLOSING:
            self._close(now)

    def _close(self, now: float) -> None:
        others = self._closers(now)
        known = self._others or ()
        comes = self._others is not None and any(member.id not in known for member in others)
        if comes and self._late >= MOST_LATE:
            others, comes = [member for member in others if member.id in known], False
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
        all_done = over and taken_in and all(member.phase is Phase.DONE for member in others)
        told = self._count((self._membership.me.id, *ids)) if all_done else None
        if told != self._told[0]:
            self._told = told, now
        quiet = not ids or now >= self._told[1] + self._quiet
        if over and (now >= self._until or (all_done and quiet)):
            closeness = self._averaging.closeness
            holders = sorted((self._gone | {*ids}) - {*closeness.outliers}) if closeness.agrees else []
            self._end((self._membership.me.id, *holders))

    def _end(self, closers: tuple[bytes, ...]) -> None:
        self._ended = True
        self.counts = self._count(closers) if closers else None
        self._outputs.emit(Finished(closers, self._averaging.closeness))

    def _count(self, closers: Iterable[bytes]) -> Counts:
        """Only what the closers report is final. News of a lost member may reach one of them later than another."""
        reports = [each for each in map(self._progress.of, closers) if each is not None]
        clocks, steps, samples = zip(*((each.clock, each.steps, each.samples) for each in reports), strict=True)
        return Counts(max(clocks), sum(steps), sum(samples))

    def _adopt_clock(self) -> None:
        """Report the network's clock as this peer's own, for its leader may be gone. Members that train on go ahead."""
        apart = self.trainers()
        clocks = [report.clock for report in self._progress.reports() if report.id not in apart]
        self._progress.adopt(max(clocks, default=0))

    def _enter(self, phase: Phase, now: float) -> None:
        if phase is not Phase.WAITING:
            wait = max(self._wait, self._averaging.needed)
            self._until = now + wait if phase is Phase.DONE else math.inf
        if phase is Phase.WAITING:
            self._averaging.rest()
        if phase is Phase.CLOSING:
            self._adopt_clock()
        self._membership.finish(phase, self._membership.me.calls, now)
        self._outputs.emit(FinishPhase(phase))

    def _closers(self, now: float) -> list[Member]:
        apart = self._apart()
        return [
            member
            for member in self._membership.alive()
            if member.phase and member.id not in apart and not self._strikes.shuns(member.id, now)
        ]

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
        if self._phase >= Phase.CLOSING:
            awaited = [member.id for member in others if member.phase is not Phase.DONE]
        closers = tuple(member.id for member in (self._membership.me, *others) if member.phase)
        return FinishProgress(self._phase, self._until - now, tuple(awaited), closers)
