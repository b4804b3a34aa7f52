"""The training process as the protocol sees it: sessions, snapshots, outer steps, slots.

A session is one attachment of a training process. It submits snapshots. Each is checked, then the outer step is made
chunk by chunk. Corrections collect in the open slot. The slot is sealed at the end of a round or an exchange, and
released once the training process has applied it (algorithms section 1). There is one round at a time, and one sealed
slot. A snapshot stands in the buffer of the last slot, and contains it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Final

from gossipdp.protocol import jobs
from gossipdp.protocol.events import RoundDone, SessionOpened, SessionRefused, SlotSealed, SnapshotTaken
from gossipdp.protocol.model import Outer
from gossipdp.protocol.outputs import Outputs

__all__ = ["Done", "Rounds", "damped"]

NO_SNAPSHOT: Final = 0
"""number of what a live training process wrote when it attached; its snapshots count from 1"""


class Done(enum.Enum):
    """What the last job of a sequence completes."""

    FOUNDING = "founding"
    """the model is now that of the training process"""
    ROUND = "round"
    """the outer step of a round is made"""


class _Phase(enum.Enum):
    IDLE = "idle"
    FOUNDING = "founding"
    ATTACHING = "attaching"
    CHECKING = "checking"
    STEPPING = "stepping"


def damped(gain: float) -> float:
    """Factor of an exchange's weight, if the rounds of a peer swing by `gain`."""
    return 1.0 / (1.0 + 2.0 * gain)


class Rounds:
    """Sequences whole-vector work as passes of chunk jobs, a few at a time, so that exchanges interleave with it.

    Args:
        ahead: most jobs of a pass that are asked for and not done.
    """

    def __init__(self, outputs: Outputs, ahead: int = 1) -> None:
        self._outputs, self._ahead = outputs, ahead
        self._job: Callable[[int], jobs.Job[object]] = jobs.Check
        """of the pass under way, by chunk"""
        self._asked = self._end = 0
        """chunks of the pass that are asked for, and of which it consists"""
        self._sound = True
        """no job of the pass has refused a value"""
        self._phase = _Phase.IDLE
        self._chunks = self._counted = 0
        self._size = 1
        self._attached = False
        self._bound = False
        self._founds = False
        self._waiting = False
        self._keep: int | None = None
        self._kept: Callable[[], None] = lambda: None
        self._keeps = False
        """the training process of this session keeps its parameters"""
        self.session = 0
        self.open = False
        self.rounds = 0
        """rounds of this peer's model, those before a restart included"""
        self.made = 0
        """rounds made in this session"""
        self.length = math.nan
        """|D| of the last round, RMS per parameter"""
        self.movement = math.nan
        """RMS of the last outer step, per parameter"""
        self.gain = 0.0
        """how far rounds swing at the last outer step, mean over the chunks of parameters"""
        self._gain = 0.0
        self._snapshot = 0
        self._applied = 0
        self._outer = Outer(1.0, 0.0)
        self._clock = 0
        self._sums = [0.0, 0.0]
        self._out = 0
        self._releasable = 0
        self._dirty = False
        self._sealing = False
        self._held = False
        self._accepted: Callable[[], None] = lambda: None

    @property
    def founding(self) -> bool:
        """The network's first model is being taken from the training process."""
        return self._phase is _Phase.FOUNDING

    @property
    def trains(self) -> bool:
        """There is a training process, and it has made a round."""
        return self.open and self.made > 0

    @property
    def at_rest(self) -> bool:
        """No training process is attached, and no round is under way."""
        return not self._attached and self._phase is _Phase.IDLE

    @property
    def handed_out(self) -> bool:
        """Every correction so far is in a slot that the training process knows of."""
        return self._phase is _Phase.IDLE and not self._dirty and not self._sealing

    def resume(self, rounds: int) -> None:
        """The model is `rounds` old."""
        self.rounds = rounds

    def hold(self, held: bool) -> None:
        """While `held`, hand out no corrections, because the model is being replaced."""
        self._held = held

    @property
    def held(self) -> bool:
        return self._held

    def allocate(self, chunks: int, trainable: int, averaged: int = 0) -> None:
        """The model is known.

        Args:
            chunks: of the model.
            trainable: parameters.
            averaged: chunks at the end that hold buffers.
        """
        self._chunks, self._size, self._counted = chunks, trainable, chunks - averaged

    def attach(self, *, found: bool, keep: int | None = None, kept: Callable[[], None] = lambda: None) -> None:
        """A training process has written its x. Give it the anchor.

        Args:
            found: take the model from the process instead.
            keep: clock of x, in steps, if the process keeps its x. Without `found` the anchor moves to x by an outer
                step, if x is finite.
            kept: called before that step.
        """
        self._attached, self._waiting, self._founds, self._keep, self._kept = True, True, found, keep, kept
        self.open = False
        self._begin_attach()

    def _begin_attach(self) -> None:
        if self._waiting and self._phase is _Phase.IDLE and not self._sealing:
            self._waiting = False
            self._out = self._releasable = 0
            self._dirty = False
            self._bound = True
            self._outputs.ask(jobs.Bind())
            self._keeps = self._keep is not None
            if self._keep is not None and not self._founds:
                self._accepted, self._clock = self._kept, self._keep
                self._snapshot, self._applied, self._outer = NO_SNAPSHOT, 0, Outer(1.0, 0.0)
                self._phase = _Phase.CHECKING
                self._begin(jobs.Check)
            else:
                self._phase = _Phase.FOUNDING if self._founds else _Phase.ATTACHING
                self._begin(jobs.Found if self._founds else jobs.Attach)

    def detach(self) -> None:
        """The training process is gone. A round under way goes on, because its snapshot is complete."""
        self._attached = self._waiting = self.open = False
        if self._phase is _Phase.IDLE:
            self._unbind()

    def _unbind(self) -> None:
        if self._bound:
            self._bound = False
            self._outputs.ask(jobs.Unbind())

    def submit(
        self,
        session: int,
        snapshot: int,
        applied: int,
        outer: Outer,
        clock: int,
        accepted: Callable[[], None] = lambda: None,
    ) -> bool:
        """A snapshot stands in the free buffer. False if it is dropped.

        That is so if its session is not open, a round is under way, or it lacks the slot that is out.

        Args:
            session: number of the session that submits it.
            snapshot: its number, from 1.
            applied: the latest slot in it.
            clock: of the snapshot, in steps.
            accepted: called when the snapshot was found finite, before the outer step.
        """
        if not self.open or session != self.session or self._phase is not _Phase.IDLE:
            return False
        if self._out not in (0, applied):
            return False
        self._snapshot, self._applied, self._outer, self._clock = snapshot, applied, outer, clock
        self._accepted = accepted
        self._phase = _Phase.CHECKING
        self.slot_applied(session, applied)
        self._begin(jobs.Check)
        return True

    def slot_applied(self, session: int, slot: int) -> None:
        """The training process has added `slot` to x."""
        if self.open and session == self.session and slot == self._out:
            self._releasable = slot
            self._release()

    def mixed(self) -> None:
        """An exchange has put corrections into the open slot. Hand them out."""
        self._dirty = True
        self._seal()

    def _release(self) -> None:
        if self._releasable and self._phase is _Phase.IDLE:
            self._outputs.ask(jobs.Release(self._releasable))
            self._out = self._releasable = 0
            self._seal()

    def _seal(self) -> None:
        ready = self._dirty and not self._held and not self._out and not self._sealing
        if ready and self.open and self._phase is _Phase.IDLE:
            self._outputs.ask(jobs.Seal())
            self._dirty, self._sealing = False, True

    def _begin(self, job: Callable[[int], jobs.Job[object]]) -> None:
        """Begin a pass over all chunks. It ends when `_over` says so."""
        self._job, self._asked, self._end, self._sound, self._sums = job, 0, self._chunks, True, [0.0, 0.0]
        for _ in range(self._ahead):
            self._ask()

    def _ask(self) -> None:
        if self._asked < self._end:
            self._asked += 1
            self._outputs.ask(self._job(self._asked - 1))

    def _over(self, chunk: int, *, sound: bool = True) -> bool:
        """The pass's job on `chunk` is done. Whether the pass is over; one that is not sound ends early."""
        if not sound:
            self._sound, self._end = False, self._asked
        self._ask()
        return chunk + 1 == self._end

    def job_done(self, job: jobs.Job[object], result: object) -> Done | None:
        """The result of a job of this peer's rounds. Returns what it completes, or None."""
        match job:
            case jobs.Seal():
                self._sealing = False
                sealed = job.typed(result)
                if self.open and sealed.chunks:
                    self._out = sealed.slot
                    self._outputs.emit(SlotSealed(sealed.slot, sealed.chunks))
                self._begin_attach()
            case jobs.Found(chunk):
                if not self._over(chunk, sound=job.typed(result).finite):
                    return None
                if not self._sound:
                    self._phase = _Phase.IDLE
                    if self._attached and not self._keeps:  # Not if another process has attached since.
                        text = "the model to found the network with has NaN or Inf"
                        self._outputs.emit(SessionRefused("GD-402", text))
                else:
                    self._founds = False
                    self._open_session()
                    return Done.FOUNDING
            case jobs.Attach(chunk):
                if chunk < self._counted:
                    replaced = job.typed(result)
                    self._sums[0] += replaced.difference2
                    self._sums[1] += replaced.anchor2
                if self._over(chunk):
                    difference2, anchor2 = self._sums
                    self._open_session(math.sqrt(difference2 / anchor2) if anchor2 else math.inf)
            case jobs.Check(chunk):
                if self._over(chunk, sound=job.typed(result).finite):
                    self._checked()
            case jobs.OuterStep(chunk):
                return self._stepped(chunk, job.typed(result))
        return None

    def _open_session(self, apart: float = 0.0) -> None:
        self._phase = _Phase.IDLE
        if self._attached and not self._waiting:
            self.session += 1
            self.open, self.made = True, 0
            self._outputs.emit(SessionOpened(self.session, self._keeps, apart))
        self._idle()

    def _taken(self, refused: str = "") -> None:
        """The snapshot is used, or refused. If it is a live process's model, the process gets its session."""
        if self._snapshot != NO_SNAPSHOT:
            self._outputs.emit(SnapshotTaken(self._snapshot, refused))
        elif not refused:
            self._open_session()
        elif self._attached and not self._waiting:
            self._keeps, self._phase = False, _Phase.ATTACHING
            self._begin(jobs.Attach)

    def _checked(self) -> None:
        if not self._sound:
            self._phase = _Phase.IDLE
            self._taken("nan")
            self._idle()
        else:
            self._phase = _Phase.STEPPING
            self._accepted()
            self._begin(self._step)

    def _step(self, chunk: int) -> jobs.Job[object]:
        outer = self._outer
        return jobs.OuterStep(chunk, outer.lr, outer.momentum, self._applied, outer.part, outer.made)

    def _stepped(self, chunk: int, step: jobs.Stepped) -> Done | None:
        if chunk < self._counted:
            self._gain += step.gain / self._counted
            self._sums[0] += step.pseudo_gradient2
            self._sums[1] += step.movement2
        if not self._over(chunk):
            return None
        self._phase = _Phase.IDLE
        self.gain, self._gain = self._gain, 0.0
        self.rounds += 1
        self.made += 1
        self._taken()
        pseudo_gradient, movement = (math.sqrt(total / self._size) for total in self._sums)
        self.length, self.movement, outer = pseudo_gradient, movement, self._outer
        self._outputs.emit(RoundDone(self.rounds, self._clock, pseudo_gradient, movement, outer.lr, outer.momentum))
        self._dirty = True
        self._idle()
        return Done.ROUND

    def _idle(self) -> None:
        """A round has ended. Do what had to wait for that."""
        if not self._attached:
            self._unbind()
        self._release()
        self._seal()
        self._begin_attach()
