"""What must hold, around every job, every touch of x, and at rest (safety.md: I1, I2, I4, I7, I8, I11, I15, I16).

An event changes the vectors of one peer at most, and of these only the chunk its job names, so checking that chunk
after each event checks everything the event could have broken. Exchanges half applied, between the responder's
mixing and the initiator's, stand in a book of their own: the initiator must take exactly what the responder gave.
All sums are fp64. A violation is an AssertionError; nothing here may repair or hide one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gossipdp.algorithms.epidemic.fixed_point import FixedLedger
from gossipdp.codecs.base import BLOCK
from gossipdp.protocol import jobs
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
from gossipdp.protocol.pairwise.config import PairwiseConfig
from gossipdp.protocol.rounds.standby import MOST_ROUNDS
from gossipdp.protocol.wire.messages import Member, State
from simulations.simulator.host import Host, perform
from simulations.simulator.tracing import number
from simulations.simulator.trainer import Trainer

__all__ = ["Books"]

FLIGHT = 1.0
"""seconds a chunk may be half applied in a calm network; peers at rest still average"""
NEAR = 8.0
"""times: in early rounds, a state that is some rounds old is further away than its age says"""
RELATIVE = 1e-5
"""of fp32 vectors"""

Life = tuple[int, int]
"""(host, incarnation)"""


class Half(NamedTuple):
    """What a responder's anchor moved by, while the initiator's has not yet."""

    initiator: Life
    responder: Life
    moved: NDArray[np.float64]
    at: float


class Books:
    """One ledger of ledgers for a whole network."""

    def __init__(self, hosts: list[Host], clock: Callable[[], float]) -> None:
        self._hosts, self._clock = hosts, clock
        self.hostile: Collection[bytes] = ()
        """who may do as they like: nothing is checked of them, and others may find fault with them"""
        self.half: dict[jobs.ChunkKey, Half] = {}
        self.doubts: Counter[Life] = Counter()
        """chunks a life has reported as in doubt"""
        self.checked = self.mixed = self.exchanges = self.rounds = 0
        self.rested = False
        """has all been looked at, at rest?"""
        self.resyncs: Counter[str] = Counter()
        """by reason"""
        self.begun = 0
        """training processes that began while others trained"""
        self.heirs = 0
        """training processes that began with another's moments, or with those of one before"""
        self._moments: set[tuple[int, bytes]] = set()
        """all that were ever told: chunk and hash"""
        self.escalated = self.false_accepts = 0
        """blocks whose differences did not fit, told by their checks; and not told by them"""
        self.mixed_at: dict[Life, list[float]] = {}
        """when exchanges moved a life's anchor"""
        self._applied: set[tuple[Life, jobs.ChunkKey]] = set()
        self._captured: dict[jobs.ChunkKey, dict[Life, NDArray[np.float32]]] = {}
        """each side's anchor as it was when the codec took its copy of the chunk"""
        self._anchors: dict[Life, NDArray[np.float32]] = {}
        self._rounds: dict[Life, int] = {}
        self._clocks: dict[Life, int] = {}
        self._incarnations: dict[int, int] = {}
        self._told: dict[tuple[Life, bytes], Member] = {}
        """what a life believes of a member, as it last said"""
        self._said: dict[int, tuple[int, int]] = {}
        """of hosts that are down: the latest incarnation and refutation of theirs that anybody can know"""
        self._trainers: dict[int, Trainer] = {}
        self._steps: dict[Trainer, int] = {}

    # -- events -----------------------------------------------------------------------------------------------

    def started(self, host: Host) -> None:
        assert host.incarnation > self._incarnations.get(host.index, 0), f"I7 {host.name}: incarnation went back"
        self._incarnations[host.index] = host.incarnation

    def stopped(self, host: Host) -> None:
        """The host's daemon is gone, and its anchor with it."""
        if host.peer is not None:
            self._said[host.index] = _pair(host)
        self._anchors.pop(_life(host), None)

    def trains(self, trainer: Trainer) -> None:
        self._trainers[trainer.host.index] = trainer

    def heard(self, host: Host, event: Event) -> None:
        """Honest peers find no fault in each other, whatever the network does to them."""
        life = _life(host)
        match event:
            case MessageDropped(peer) | UpdateRefused(peer) | Struck(peer) if not {peer, host.id} & set(self.hostile):
                raise AssertionError(f"{host.name}: an honest peer was found at fault: {event}")
            case Notice("GD-205", text):
                raise AssertionError(f"{host.name}: {text}")
            case ChunksInDoubt(_, count):
                self.doubts[life] += count
            case ExchangeEnded():
                self.exchanges += event.chunks > 0
                self.escalated += event.escalated
            case MemberChanged(member, known) if not self.hostile:
                if known is None:  # for the first time, or forgotten since
                    self._told.pop((life, member.id), None)
                self._news(host, member)
            case ResyncEnded():
                # Rounds are counted on from those of whoever it follows.
                self._rounds.pop(life, None)
                self.resyncs[event.reason] += 1
            case RoundDone(number, clock):
                before, clock_before = self._rounds.get(life, 0), self._clocks.get(life, 0)
                assert number == before + 1 or not before, f"I7 {host.name}: round {number} after {before}"
                assert clock > clock_before, f"I7 {host.name}: clock {clock} after {clock_before}"
                self._rounds[life], self._clocks[life] = number, clock
                self.rounds += 1

    def handed(self, host: Host) -> None:
        """I16: a training process begins no further from the mean of those that train than `NEAR` times what they are
        from it, or than one of them moves in a round. But a model that was long on its way is as old as that, and of
        those that are paused nothing can be fetched."""
        if self.hostile or host.running.fetched_in > MOST_ROUNDS * host.config.every:
            return
        view, now = host.running.membership, self._clock()
        reached = {member.id for member in view.alive() if view.reaches(member.id)}
        there = [each for each in self._hosts if each.peer is not None and each.paused_until <= now]
        bound = [each for each in there if each.id in reached and self._bound_trainer(each) is not None]
        others = [each for each in bound if each.running.rounds.trains]
        if not others:
            return
        anchors = np.array([other.algorithm.ledger.a for other in others], np.float64)
        mean = anchors.mean(axis=0)
        apart, distance = (_rms(vectors - mean) for vectors in (anchors, host.algorithm.ledger.a))
        usual = max(apart, *(other.running.rounds.movement for other in others))
        self.begun += 1
        assert distance <= NEAR * usual, f"I16 {host.name}: training begins {distance / usual:.1f} times as far away"

    def _news(self, host: Host, member: Member) -> None:
        """I8: what is believed of a member never goes back, and only its own later word raises it from the dead."""
        other = next(other for other in self._hosts if other.id == member.id)
        pair = (member.incarnation, member.refutation)
        said = self._said[other.index] if other.peer is None else _pair(other)
        assert pair <= said, f"I8 {host.name} believes what {other.name} has never said: {member}"
        before = self._told.get((_life(host), member.id), member)
        held = (before.incarnation, before.refutation)
        assert pair >= held, f"I8 {host.name} goes back to an earlier word of {other.name}: {member} after {before}"
        risen = before.state in (State.FAILED, State.LEFT) and member.state in (State.ALIVE, State.SUSPECT)
        assert not risen or pair > held, f"I8 {host.name}: old gossip has raised {other.name} from the dead: {member}"
        self._told[_life(host), member.id] = member

    # -- jobs -------------------------------------------------------------------------------------------------

    def run(self, host: Host, job: jobs.Job[object]) -> object:
        """Carry out `job` and check all it could have broken."""
        chunk = _chunk(job)
        if chunk is None or host.id in self.hostile:
            result = perform(host, job)
            if isinstance(job, (jobs.Allocate, jobs.Restore)) and hasattr(host.algorithm, "ledger"):
                self._anchors[_life(host)] = host.algorithm.ledger.a.copy()
            return result
        ledger, life = host.algorithm.ledger, _life(host)
        span = ledger.span(chunk)
        before = self._anchors[life][span]
        assert _same(ledger.a[span], before), f"I1 {host.name}: chunk {chunk} moved between two jobs"
        match job:
            case jobs.OuterStep():
                v_before = ledger.v[span].copy()
                wanted = _outer_step(host, job, before, v_before)
            case jobs.DecodeAndMix(key) | jobs.Mix(key):
                v_before = ledger.v[span].copy()
                grid, bound = _grid(host, key), host.algorithm._bound(chunk)
        result = perform(host, job)
        after, still = ledger.a[span], False
        match job:
            case jobs.OuterStep():
                _close(after, wanted, f"I1 {host.name}: outer step on chunk {chunk}")
                self._stepped(host, job)
            case jobs.DecodeAndMix(key) | jobs.Mix(key) if (turn := job.typed(result)).mixed:
                moved = after.astype(np.float64)
                moved -= before
                self._meant(host, key, moved, job.weight * turn.share, grid)
                pulled = ledger.v[span].astype(np.float64)
                pulled -= v_before
                pull = job.pull if turn.share >= 1.0 else 0.0
                _close(pulled, -pull * moved, f"I1 {host.name}: momentum and mixing on chunk {chunk}")
                self._mixed(host, key, moved, before)
                largest = job.weight * min(job.bound, bound) if isinstance(job, jobs.DecodeAndMix) else np.inf
                norm = float(np.linalg.norm(moved))
                slack = RELATIVE * float(np.linalg.norm(before)) + 1e-6
                assert norm <= largest * (1 + 1e-3) + slack, f"I11 {host.name}: moved {norm}, bound {largest}"
            case jobs.Publish() if job.typed(result).payload:
                self._stepped(host, job)
            case jobs.Found() | jobs.Adopt() | jobs.Resync() | jobs.Conclude() | jobs.Apply() | jobs.ApplyEpoch():
                pass
            case jobs.Freeze() if isinstance(ledger, FixedLedger):
                pass  # what is shared is settled first
            case _:
                still = True
                assert _same(after, before), f"I1 {host.name}: {type(job).__name__} moved the anchor"
        if isinstance(job, (jobs.Begin, jobs.Answer)):
            self._captured.setdefault(job.key, {})[life] = before.copy()
        assert np.isfinite(ledger.v[span]).all(), f"I11 {host.name}: chunk {chunk}"
        if not still:  # else it is what it was, to the bit
            assert np.isfinite(after).all(), f"I11 {host.name}: chunk {chunk}"
            before[:] = after
        self.check(host, (chunk,))
        self.checked += 1
        return result

    def _mixed(self, host: Host, key: jobs.ChunkKey, moved: NDArray[np.float64], before: NDArray[np.float32]) -> None:
        life = _life(host)
        assert (life, key) not in self._applied, f"I2 {host.name}: {_named(key)} applied twice"
        self._applied.add((life, key))
        self.mixed += 1
        self.mixed_at.setdefault(life, []).append(self._clock())
        if key.initiator in self.hostile:
            return
        if key.initiator != host.id:
            assert key not in self.half, f"I2 {host.name}: another has answered for {_named(key)}"
            initiator = next(other.index for other in self._hosts if other.id == key.initiator)
            self.half[key] = Half((initiator, key.exchange >> 32), life, moved, self._clock())
            alone = sum(each[:2] == key[:2] for each in self.half)
            assert isinstance(host.config.strategy, PairwiseConfig)
            assert alone <= host.config.strategy.window, (
                f"I2 {host.name}: {alone} chunks of one exchange mixed on one side alone, the last {_named(key)}"
            )
            return
        half = self.half.pop(key, None)
        if half is None and self.hostile:
            return  # one of these has answered
        assert half is not None, f"I2 {host.name}: mixed {_named(key)}, which nobody has answered"
        scale = float(np.abs(before).max()) + float(np.abs(moved).max())
        worst = float(np.abs(moved + half.moved).max())
        assert worst <= RELATIVE * scale, f"I1 {host.name}: the sum of two anchors moved by {worst}"

    def _meant(
        self,
        host: Host,
        key: jobs.ChunkKey,
        moved: NDArray[np.float64],
        weight: float,
        grid: tuple[NDArray[np.float64], int] | None,
    ) -> None:
        """I4: a chunk moves towards the partner's as it was when both were read, to a step of the grid."""
        if key.initiator in self.hostile:
            return  # it may call exchanges with two peers by one number
        sides = self._captured.get(key, {})
        mine = sides.pop(_life(host), None)
        if mine is None or len(sides) != 1:
            return  # the other side has mixed before, and this was compared then; or it is gone
        (theirs,) = sides.values()
        wanted = weight * (theirs.astype(np.float64) - mine)
        step = 0.0 if grid is None else weight * np.repeat(grid[0], BLOCK)[: len(mine)]
        slack = step + RELATIVE * (1.0 + np.abs(mine))
        off = np.abs(moved - wanted)
        if float((off - slack).max()) <= 0.0:
            return
        what = f"I4 {host.name}: {_named(key)} moved elsewhere than to its partner"
        assert grid is not None, what
        # The differences of a block may have left the code's range, and the check may have missed it: of 2^15 to 2^16
        # such blocks one. Then some of them are wrong by whole turns of the code, on both sides alike.
        turn = step * 2.0 ** grid[1]
        assert float((np.abs(off - np.rint(off / turn) * turn) - slack).max()) <= 0.0, f"{what}, nor by whole turns"
        blocks = len(set(np.flatnonzero(off > slack) // BLOCK))
        self.false_accepts += blocks
        assert self.false_accepts == 1, f"{what} in {self.false_accepts} blocks: too many for the checks"

    def _stepped(self, host: Host, job: jobs.OuterStep | jobs.Publish) -> None:
        trainer = self._bound_trainer(host)
        if trainer is not None:
            span = host.algorithm.ledger.span(job.chunk)
            trainer.since[span] -= trainer.submitted[span]

    # -- the ledger's invariant (algorithms section 1) ----------------------------------------------------------

    def _bound_trainer(self, host: Host) -> Trainer | None:
        trainer = self._trainers.get(host.index)
        live = trainer is not None and trainer.alive and trainer.session and host.bound is trainer.region
        return trainer if live else None

    def touched(self, trainer: Trainer, what: str, chunks: tuple[int, ...]) -> None:
        """x was loaded, stepped or drained, or moments were told or taken."""
        if what in ("tell", "inherit"):
            return self._passed_on(trainer, told=what == "tell")
        before = self._steps.get(trainer, 0)
        assert trainer.steps in (before, before + 1), f"I7 {trainer.host.name}: steps jumped"
        self._steps[trainer] = trainer.steps
        if trainer.host.peer is not None and trainer.host.id not in self.hostile:
            self.check(trainer.host, chunks)

    def _passed_on(self, trainer: Trainer, *, told: bool) -> None:
        """An optimizer begins with what one in this network has told, chunk by chunk, or with nothing."""
        assert trainer.moments is not None
        hashes = {(chunk, frozen.hash) for chunk, frozen in enumerate(trainer.moments.chunks)}
        if told:
            self._moments |= hashes
        else:
            self.heirs += 1
            foreign = sorted(chunk for chunk, _ in hashes - self._moments)
            assert not foreign, f"{trainer.host.name}: nobody has told the moments it begins with on chunks {foreign}"

    def check(self, host: Host, chunks: Iterable[int]) -> None:
        """I1: x + pending - a = progress since the last snapshot."""
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
            if not worst <= RELATIVE:  # else it is whatever x is
                scale = 1.0 + float(np.abs(trainer.x[span]).max())
                assert worst <= RELATIVE * scale, f"I1 {host.name}: x + pending - a is off by {worst} on chunk {chunk}"

    # -- at rest ----------------------------------------------------------------------------------------------

    def at_rest(self) -> None:
        """Long after the last fault: everything settled, everybody training."""
        hosts = self._hosts
        up = [host for host in hosts if host.peer is not None]
        lives = {_life(host) for host in up}
        owed: Counter[Life] = Counter()
        for key, half in self.half.items():
            ends = (half.initiator, half.responder)
            live = [end for end in ends if end in lives]
            if len(live) == 2 and half.at > self._clock() - FLIGHT:
                continue
            between = " and ".join(f"p{index}, life {incarnation}" for index, incarnation in ends)
            assert len(live) < 2, f"I2: {_named(key)} was never settled between {between}"
            # A partner that never came back is only thought dead, and may yet settle.
            if live and all(hosts[end[0]].peer is not None for end in ends):
                owed[live[0]] += 1
        for life, count in owed.items():
            told = self.doubts[life]
            assert told >= count, f"I2 p{life[0]}, life {life[1]}: {count} chunks in doubt, {told} counted"
        for host in up:
            assert host.peer is not None
            assert not host.peer.resyncing and not host.peer.apart, f"I15 {host.name}: two sides are still apart"
            assert host.peer.strategy.in_doubt == 0 or len(up) < len(hosts), f"I2 {host.name}: still in doubt"
            if host.peer.ready:
                self.check(host, range(host.algorithm.ledger.chunks))
        self.rested = True

    def all_seen(self) -> None:
        """I8: the live are alive to everybody, and the dead are not."""
        for host in self._hosts:
            for other in self._hosts:
                if host.peer is not None and other is not host:
                    _seen(host, other)


def _pair(host: Host) -> tuple[int, int]:
    return host.incarnation, host.running.membership.me.refutation


def _seen(host: Host, other: Host) -> None:
    record = host.running.membership.members.get(other.id)
    if other.peer is not None:
        assert record is not None and record.state == State.ALIVE, f"I8 {host.name} does not see {other.name}: {record}"
        assert record.incarnation == other.incarnation, f"I8 {host.name} knows an earlier life of {other.name}"
    else:
        dead = record is None or record.state in (State.FAILED, State.LEFT)
        assert dead, f"I8 {host.name} thinks {other.name} lives: {record}"


def _outer_step(host: Host, job: jobs.OuterStep, a: NDArray[np.float32], v: NDArray[np.float32]) -> NDArray[np.float64]:
    """The anchor after the step, by the equations of algorithms section 1, in fp64."""
    ledger = host.algorithm.ledger
    assert ledger.x is not None
    span = ledger.span(job.chunk)
    x = ledger.x[span].astype(np.float64) + ledger.outstanding(job.chunk, job.applied)
    pseudo_gradient = a - x
    velocity = job.momentum * v + pseudo_gradient
    movement = -job.lr * (pseudo_gradient + job.momentum * velocity)
    buffers = slice(max(0, ledger.trainable - span.start), None)
    movement[buffers] = -pseudo_gradient[buffers]
    wanted: NDArray[np.float64] = a + movement
    return wanted


def _grid(host: Host, key: jobs.ChunkKey) -> tuple[NDArray[np.float64], int] | None:
    """The step of a modulo codec's grid in each block of the chunk, and the codec's bits; None for codecs without."""
    opened = host.algorithm._open.get(key)
    step = None if opened is None else getattr(opened.side, "_step", None)
    return None if step is None else (step, opened.side._codec.bits)


def _same(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    return bool((one == other).all())


def _rms(values: NDArray[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def _close(found: NDArray[Any], wanted: NDArray[np.float64], what: str) -> None:
    worst = float(np.abs(found - wanted).max())
    assert worst <= RELATIVE * (1.0 + float(np.abs(wanted).max())), f"{what} is off by {worst}"


def _named(key: jobs.ChunkKey) -> str:
    """A chunk as `tracing` tells it."""
    return f"chunk {key.chunk} of exchange {number(key.exchange)}"


def _chunk(job: jobs.Job[object]) -> int | None:
    """The one chunk that `job` works on, if it is one."""
    key = getattr(job, "key", None)
    return getattr(job, "chunk", None) if key is None else key.chunk


def _life(host: Host) -> Life:
    return (host.index, host.incarnation)
