"""What must hold, around every job, every touch of x, and at rest (I1, I2, I4, I7, I8, I11, I15, I16).

An event changes the vectors of at most one peer, and only the chunk that its job names. So a check of that chunk after
each event finds everything that the event broke. A violation is an AssertionError. Nothing here repairs or hides one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gossipdp.protocol import jobs
from gossipdp.protocol.course.rules import MOST_ROUNDS
from gossipdp.protocol.events import (
    ChunksInDoubt,
    Event,
    ExchangeEnded,
    MemberChanged,
    MessageDropped,
    Notice,
    ResyncEnded,
    RoundDone,
    Struck,
    UpdateRefused,
)
from simulations.simulator.beliefs import Beliefs
from simulations.simulator.equations import RELATIVE, Grid, check_close, grid_of, outer_step, pseudo_gradient, rms, same
from simulations.simulator.host import Host, perform
from simulations.simulator.lives import Life, life_of
from simulations.simulator.mixes import Mixes
from simulations.simulator.trainer import Trainer

__all__ = ["Books"]

NEAR = 12.0
"""I16's factor. In early rounds, a state of some rounds ago is further away than its age suggests; rounds of the warm
start are shorter than those after it"""


class _Before(NamedTuple):
    """What a job's result is compared with."""

    anchor: NDArray[np.float32]
    momentum: NDArray[np.float32] | None = None
    pseudo_gradient: NDArray[np.float64] | None = None
    """of an outer step"""
    at_rest: NDArray[np.float64] | None = None
    """anchor without its lookahead"""
    grid: Grid | None = None
    bound: float = np.inf
    """largest movement by one mix"""


class Books:
    """The books of a network: what its peers did, and the checks of it.

    Args:
        hosts: all hosts; the list may grow.
        clock: returns the virtual time.
    """

    def __init__(self, hosts: list[Host], clock: Callable[[], float]) -> None:
        self._hosts, self._clock = hosts, clock
        self.beliefs, self.mixes = Beliefs(hosts), Mixes(hosts, clock)
        self.hostile: frozenset[bytes] = frozenset()
        """ids of members that may do anything: they are not checked, and others may find fault with them"""
        self.doubts: Counter[Life] = Counter()
        """chunks that a life has reported as in doubt"""
        self.checked = self.mixed = self.exchanges = self.rounds = 0
        self.rested = False
        """all was checked at rest"""
        self.resyncs: Counter[str] = Counter()
        """resyncs by reason"""
        self.late_starts = 0
        """training processes that began while others trained"""
        self.inherited = 0
        """training processes that began with moments of another process"""
        self.escalated = 0
        """blocks whose differences did not fit the codes, as their checks noticed"""
        self._moments: set[tuple[int, bytes]] = set()
        """(chunk, hash) of all moments ever reported"""
        self._anchors: dict[Life, NDArray[np.float32]] = {}
        self._rounds: dict[Life, int] = {}
        self._clocks: dict[Life, int] = {}
        self._trainers: dict[int, Trainer] = {}
        self._steps: dict[Trainer, int] = {}

    @property
    def false_accepts(self) -> int:
        return self.mixes.false_accepts

    def expect_faults_of(self, peer: bytes) -> None:
        """From now on a member may do anything."""
        self.hostile |= {peer}

    # -- events -----------------------------------------------------------------------------------------------

    def started(self, host: Host) -> None:
        """A daemon has started."""
        self.beliefs.started(host)

    def stopped(self, host: Host) -> None:
        """A daemon is about to stop. Its anchor is gone."""
        self.beliefs.stopped(host)
        self._anchors.pop(life_of(host), None)

    def trains(self, trainer: Trainer) -> None:
        """A training process has started."""
        self._trainers[trainer.host.index] = trainer

    def heard(self, host: Host, event: Event) -> None:
        """A peer emits an event. Honest peers find no fault in each other, whatever the network does to them."""
        life = life_of(host)
        match event:
            case MessageDropped(peer) | UpdateRefused(peer) | Struck(peer) if not {peer, host.id} & self.hostile:
                raise AssertionError(f"{host.name}: an honest peer was found at fault: {event}")
            case Notice("GD-205", text) if host.id not in self.hostile:
                raise AssertionError(f"{host.name}: {text}")
            case ChunksInDoubt(_, count):
                self.doubts[life] += count
            case ExchangeEnded():
                self.exchanges += event.chunks > 0
                self.escalated += event.escalated
            case MemberChanged(member, known) if not self.hostile:
                self.beliefs.changed(host, member, new=known is None)
            case ResyncEnded():
                # The peer counts on from the rounds of its source.
                self._rounds.pop(life, None)
                self.resyncs[event.reason] += 1
            case RoundDone(number, clock):
                before, clock_before = self._rounds.get(life, 0), self._clocks.get(life, 0)
                assert number == before + 1 or not before, f"I7 {host.name}: round {number} after {before}"
                assert clock > clock_before, f"I7 {host.name}: clock {clock} after {clock_before}"
                self._rounds[life], self._clocks[life] = number, clock
                self.rounds += 1

    def check_start(self, host: Host) -> None:
        """A training process is about to begin from its peer's anchor (I16).

        The anchor is at most `NEAR` times as far from the mean of the training peers as these are, or as one of them
        moves in a round. A model that was long on its way is not checked, and paused peers do not count.
        """
        if self.hostile or host.running._replica.fetched_in > MOST_ROUNDS * host.config.every:
            return
        membership, now = host.running._membership, self._clock()
        reached = {member.id for member in membership.alive() if membership.reaches(member.id)}
        there = [each for each in self._hosts if each.peer is not None and each.paused_until <= now]
        bound = [each for each in there if each.id in reached and self._bound_trainer(each) is not None]
        others = [each for each in bound if each.running._replica.rounds.trains]
        if not others:
            return
        anchors = np.array([other.algorithm.ledger.a for other in others], np.float64)
        mean = anchors.mean(axis=0)
        apart, distance = (rms(vectors - mean) for vectors in (anchors, host.algorithm.ledger.a))
        usual = max(apart, *(other.running._replica.rounds.movement for other in others))
        self.late_starts += 1
        assert distance <= NEAR * usual, f"I16 {host.name}: training begins {distance / usual:.1f} times as far away"

    # -- jobs -------------------------------------------------------------------------------------------------

    def run(self, host: Host, job: jobs.Job[object]) -> object:
        """Carry out `job` and check all that it could break."""
        chunk = _chunk(job)
        if chunk is None or host.id in self.hostile:
            result = perform(host, job)
            if isinstance(job, (jobs.Allocate, jobs.Restore)) and hasattr(host.algorithm, "ledger"):
                self._anchors[life_of(host)] = host.algorithm.ledger.a.copy()
            return result
        ledger = host.algorithm.ledger
        span = ledger.span(chunk)
        anchor = self._anchors[life_of(host)][span]
        assert same(ledger.a[span], anchor), f"I1 {host.name}: chunk {chunk} moved between two jobs"
        before = _before(host, job, chunk, anchor)
        result = perform(host, job)
        moved = self._compare(host, job, result, chunk, before)
        if isinstance(job, (jobs.Begin, jobs.Answer)):
            self.mixes.capture(host, job.key, anchor)
        assert np.isfinite(ledger.v[span]).all(), f"I11 {host.name}: chunk {chunk}"
        if moved:
            assert np.isfinite(ledger.a[span]).all(), f"I11 {host.name}: chunk {chunk}"
            anchor[:] = ledger.a[span]
        self.check(host, (chunk,))
        self.checked += 1
        return result

    def _compare(self, host: Host, job: jobs.Job[object], result: object, chunk: int, before: _Before) -> bool:
        """Check what the job did to its chunk. Return whether the job may move the anchor."""
        ledger = host.algorithm.ledger
        after = ledger.a[ledger.span(chunk)]
        match job:
            case jobs.OuterStep():
                assert before.momentum is not None and before.pseudo_gradient is not None
                gain = job.typed(result).gain
                wanted = outer_step(host, job, gain, before.anchor, before.momentum, before.pseudo_gradient)
                check_close(after, wanted, f"I1 {host.name}: outer step on chunk {chunk}")
                self._stepped(host, chunk)
            case jobs.Rest():
                assert before.at_rest is not None
                check_close(after, before.at_rest, f"I1 {host.name}: lookahead of chunk {chunk}")
            case jobs.DecodeAndMix() | jobs.Mix() if (turn := job.typed(result)).mixed:
                self._compare_mix(host, job, turn.share, before)
            case jobs.Found() | jobs.Adopt() | jobs.Resync() | jobs.Conclude():
                pass
            case _:
                assert same(after, before.anchor), f"I1 {host.name}: {type(job).__name__} moved the anchor"
                return False
        return True

    def _compare_mix(self, host: Host, job: jobs.DecodeAndMix | jobs.Mix, share: float, before: _Before) -> None:
        assert before.momentum is not None
        ledger, key = host.algorithm.ledger, job.key
        span = ledger.span(key.chunk)
        moved = ledger.a[span].astype(np.float64)
        moved -= before.anchor
        if key.initiator not in self.hostile:  # which may give two exchanges one number
            self.mixes.check_direction(host, key, moved, job.mixing.weight * share, before.grid)
        pulled = ledger.v[span].astype(np.float64)
        pulled -= before.momentum
        pull = job.mixing.pull if share >= 1.0 else 0.0
        check_close(pulled, -pull * moved, f"I1 {host.name}: momentum and mixing on chunk {key.chunk}")
        self.mixes.take(host, key, moved, before.anchor, self.hostile)
        self.mixed += 1
        largest = job.mixing.weight * min(job.bound, before.bound) if isinstance(job, jobs.DecodeAndMix) else np.inf
        norm = float(np.linalg.norm(moved))
        slack = RELATIVE * float(np.linalg.norm(before.anchor)) + 1e-6
        assert norm <= largest * (1 + 1e-3) + slack, f"I11 {host.name}: moved {norm}, bound {largest}"

    def _stepped(self, host: Host, chunk: int) -> None:
        trainer = self._bound_trainer(host)
        if trainer is not None:
            trainer.snapshot_used(host.algorithm.ledger.span(chunk))

    # -- the ledger's invariant (algorithms section 1) ----------------------------------------------------------

    def _bound_trainer(self, host: Host) -> Trainer | None:
        """The host's training process, if the ledger works on its memory."""
        trainer = self._trainers.get(host.index)
        live = trainer is not None and trainer.alive and trainer.session and host.bound is trainer.region
        return trainer if live else None

    def touched(self, trainer: Trainer, what: str, chunks: tuple[int, ...]) -> None:
        """A training process loaded, stepped or drained x, or reported or took moments."""
        if what in ("tell", "inherit"):
            self._moments_passed_on(trainer, reported=what == "tell")
            return
        before = self._steps.get(trainer, 0)
        assert trainer.steps in (before, before + 1), f"I7 {trainer.host.name}: steps jumped"
        self._steps[trainer] = trainer.steps
        if trainer.host.peer is not None and trainer.host.id not in self.hostile:
            self.check(trainer.host, chunks)

    def _moments_passed_on(self, trainer: Trainer, *, reported: bool) -> None:
        """Check that an optimizer begins with moments that another has reported, chunk by chunk."""
        assert trainer.moments is not None
        hashes = {(chunk, frozen.hash) for chunk, frozen in enumerate(trainer.moments.chunks)}
        if reported:
            self._moments |= hashes
        else:
            self.inherited += 1
            foreign = sorted(chunk for chunk, _ in hashes - self._moments)
            assert not foreign, f"{trainer.host.name} begins with moments on chunks {foreign} that no process reported"

    def check(self, host: Host, chunks: Iterable[int]) -> None:
        """Check I1: x + pending - a is the progress since the last snapshot."""
        trainer = self._bound_trainer(host)
        if trainer is None:
            return
        ledger = host.algorithm.ledger
        for chunk in chunks:
            span = ledger.span(chunk)
            found = np.subtract(trainer.x[span], ledger.a[span], dtype=np.float64)
            found += ledger.outstanding(chunk, trainer.applied)
            found -= trainer.since[span]
            worst = float(np.abs(found, out=found).max())
            if not worst <= RELATIVE:  # the scale of x only matters then
                scale = 1.0 + float(np.abs(trainer.x[span]).max())
                assert worst <= RELATIVE * scale, f"I1 {host.name}: x + pending - a is off by {worst} on chunk {chunk}"

    # -- at rest ----------------------------------------------------------------------------------------------

    def check_rest(self) -> None:
        """Check, long after the last fault, that all exchanges are settled and no two sides are apart."""
        self.mixes.check_settled(self.doubts)
        up = [host for host in self._hosts if host.peer is not None]
        for host in up:
            peer = host.running
            assert not peer.view.resyncing and not peer.view.apart, f"I15 {host.name}: two sides are still apart"
            assert peer._replica.averaging.in_doubt == 0 or len(up) < len(self._hosts), (
                f"I2 {host.name}: still in doubt"
            )
            if peer.view.ready:
                self.check(host, range(host.algorithm.ledger.chunks))
        self.rested = True


def _before(host: Host, job: jobs.Job[object], chunk: int, anchor: NDArray[np.float32]) -> _Before:
    """What the job's result will be compared with. `anchor`: of its chunk."""
    ledger = host.algorithm.ledger
    match job:
        case jobs.OuterStep():
            momentum = ledger.v[ledger.span(chunk)].copy()
            return _Before(anchor, momentum, pseudo_gradient(host, job, anchor))
        case jobs.Rest():
            ahead = float(ledger.lookahead[chunk]) * ledger.v[ledger.span(chunk)].astype(np.float64)
            return _Before(anchor, at_rest=anchor + ahead)
        case jobs.DecodeAndMix(key=key) | jobs.Mix(key=key):
            momentum = ledger.v[ledger.span(chunk)].copy()
            return _Before(anchor, momentum, grid=grid_of(host, key), bound=host.algorithm._bound(chunk))
    return _Before(anchor)


def _chunk(job: jobs.Job[object]) -> int | None:
    """The chunk that the job works on, if it is one."""
    key = getattr(job, "key", None)
    return getattr(job, "chunk", None) if key is None else key.chunk
