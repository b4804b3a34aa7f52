"""The training process as the protocol sees it: sessions, snapshots, outer steps, slots.

A session is one attachment of a training process. It submits snapshots. Each is checked, then the outer step is made
chunk by chunk. Corrections collect in the open slot. The slot is sealed at the end of a round or an exchange, and
released once the training process has applied it (algorithms section 1). There is one round at a time, and one sealed
slot. A snapshot stands in the buffer of the last slot, and contains it. `states` has the tables.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from gossipdp.protocol import jobs
from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.causes import Unused
from gossipdp.protocol.events import RoundDone, SessionOpened, SessionRefused, SlotSealed, SnapshotTaken
from gossipdp.protocol.model import Outer
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.rounds.states import PASSES, ROUNDS, SLOTS, Action, Event, Phase, Slot
from gossipdp.protocol.state_machine import follow
from gossipdp.protocol.transfer.claims import Live
from gossipdp.protocol.wire.encoding import Buffer

__all__ = ["Arrival", "Done", "Rounds", "Snapshot", "damped"]


class Arrival(NamedTuple):
    """A training process that has written its x. Without `founds` and `keeps` it gets the anchor."""

    founds: bool = False
    """its x becomes the model"""
    keeps: Live | None = None
    """its progress, if it keeps its x; without `founds` the anchor moves to x by an outer step, if x is finite"""
    carried: Carried = NOTHING
    """what goes with its x"""


class Snapshot(NamedTuple):
    """What a training process submits."""

    number: int
    """from 1 in each session"""
    applied: int
    """the latest slot in it"""
    outer: Outer
    clock: int
    """of the network, in steps"""
    steps: int = 0
    """since the snapshot before"""
    samples: int = 0
    """of these steps"""
    state: Buffer | None = None
    """what is not exchanged (`carried_state`); None if it is unchanged"""


class Done(enum.Enum):
    """What the last job of a sequence completes."""

    FOUNDING = "founding"
    """the model is now that of the training process"""
    KEPT = "kept"
    """`Rounds.process` keeps its x, which is finite; the outer step follows"""
    ACCEPTED = "accepted"
    """`Rounds.snapshot` is finite; the outer step follows"""
    ROUND = "round"
    """the outer step of a round is made"""


COMPLETES: Final = {
    Action.FOUND: Done.FOUNDING,
    Action.KEEP: Done.KEPT,
    Action.ACCEPT: Done.ACCEPTED,
    Action.STEP: Done.ROUND,
    Action.TAKE: Done.ROUND,
}


@dataclass(slots=True)
class _Pass:
    """Jobs on every chunk, a few at a time, so that exchanges interleave with them."""

    end: int = 0
    """jobs of which it consists"""
    asked: int = 0
    sound: bool = True
    """no job has refused a value"""
    sums: Sequence[float] = (0.0, 0.0, 0.0)
    """over the chunks of parameters: two squared norms, and the mean of `Stepped.gain`"""


def damped(gain: float) -> float:
    """Factor of an exchange's weight, if the rounds of a peer swing by `gain`."""
    return 1.0 / (1.0 + 2.0 * gain)


class Rounds:
    """Follows the training process, and sequences whole-vector work as passes of chunk jobs.

    Args:
        ahead: most jobs of a pass that are asked for and not done.
    """

    def __init__(self, outputs: Outputs, ahead: int = 1) -> None:
        self._outputs, self._ahead = outputs, ahead
        self._phase, self._slot = Phase.ABSENT, Slot.FREE
        self._next: Arrival | Literal[Event.GONE] | None = None
        """what follows the pass or the seal under way: the process is gone, or this one has replaced it"""
        self._dirty = False
        """corrections wait in the open slot"""
        self._waits = False
        """those of the last outer step wait for the round's first exchange"""
        self._held = False
        """they stay there, because the model is being replaced"""
        self.process = Arrival()
        """the latest whose buffers were bound"""
        self.snapshot = Snapshot(0, 0, Outer(1.0, 0.0), 0)
        """the latest of which an outer step was to be made"""
        self._pass = _Pass()
        self._chunks = self._counted = 0
        self._size = 1
        self._out = 0
        """number of the last sealed slot"""
        self._apart = 0.0
        """distance of the process's x from the anchor that replaced it, in lengths of the anchor"""
        self.session = 0
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

    @property
    def open(self) -> bool:
        """The training process has a session."""
        return self._next is None and self._phase in (Phase.OPEN, Phase.CHECKING, Phase.STEPPING)

    @property
    def founding(self) -> bool:
        """The network's first model is being taken from the training process."""
        return self._phase is Phase.FOUNDING

    @property
    def trains(self) -> bool:
        """There is a training process, and it has made a round."""
        return self.open and self.made > 0

    @property
    def at_rest(self) -> bool:
        """No training process is attached, and no round is under way."""
        return self._phase is Phase.ABSENT and self._next is None

    @property
    def handed_out(self) -> bool:
        """Every correction so far is in a slot that the training process knows of."""
        return self._phase not in PASSES and not self._dirty and self._slot is not Slot.SEALING

    @property
    def waits(self) -> bool:
        """The correction of the last outer step waits for the round's first exchange."""
        return self._waits

    @property
    def held(self) -> bool:
        return self._held

    def resume(self, rounds: int) -> None:
        """The model is `rounds` old."""
        self.rounds = rounds

    def hold(self, held: bool) -> None:
        """While `held`, hand out no corrections, because the model is being replaced."""
        self._held = held

    def allocate(self, chunks: int, trainable: int, averaged: int = 0) -> None:
        """The model is known.

        Args:
            chunks: of the model.
            trainable: parameters.
            averaged: chunks at the end that hold buffers.
        """
        self._chunks, self._size, self._counted = chunks, trainable, chunks - averaged

    # -- the training process ---------------------------------------------------------------------------------

    def attach(self, process: Arrival) -> None:
        """A training process has written its x."""
        self._next = process
        self._go_on()

    def detach(self) -> None:
        """The training process is gone. A round under way goes on, because its snapshot is complete."""
        self._next = Event.GONE
        self._go_on()

    def submit(self, session: int, snapshot: Snapshot) -> bool:
        """A snapshot stands in the free buffer. False if it is dropped.

        That is so if its session is not open, a round is under way, or it lacks the slot that is out.
        """
        if not self.open or session != self.session or self._phase in PASSES:
            return False
        if self._slot is Slot.OUT and snapshot.applied != self._out:
            return False
        self.snapshot = snapshot
        self._fire(Event.SUBMITS)
        self.slot_applied(session, snapshot.applied)
        return True

    def slot_applied(self, session: int, slot: int) -> None:
        """The training process has added `slot` to x."""
        if self.open and session == self.session and slot == self._out:
            self._fire_slot(Event.APPLIES)
            self._go_on()

    def mixed(self) -> None:
        """An exchange has put corrections into the open slot. Hand them out."""
        self._dirty, self._waits = True, False
        self._go_on()

    def waits_no_more(self) -> None:
        """The round has no exchange to wait for. Hand its correction out."""
        self._waits = False
        self._go_on()

    # -- results ----------------------------------------------------------------------------------------------

    def job_done(self, job: jobs.Job[object], result: object) -> Done | None:
        """The result of a job of this peer's rounds. Returns what it completes, or None."""
        match job:
            case jobs.Seal():
                sealed = job.typed(result)
                goes_out = self.open and bool(sealed.chunks)
                if goes_out:
                    self._out = sealed.slot
                    self._outputs.emit(SlotSealed(sealed.slot, sealed.chunks))
                self._fire_slot(Event.SEALED if goes_out else Event.EMPTY)
                self._go_on()
            case jobs.Found(chunk) | jobs.Check(chunk):
                return self._chunk_done(chunk, (0.0, 0.0, 0.0), sound=job.typed(result).finite)
            case jobs.Attach(chunk):
                replaced = job.typed(result)
                return self._chunk_done(chunk, (replaced.difference2, replaced.anchor2, 0.0))
            case jobs.OuterStep(chunk):
                step = job.typed(result)
                gain = step.gain / max(1, self._counted)
                return self._chunk_done(chunk, (step.pseudo_gradient2, step.movement2, gain))
        return None

    def _chunk_done(self, chunk: int, terms: Sequence[float], *, sound: bool = True) -> Done | None:
        """The job of the pass on `chunk` is done. A pass that is not sound ends early."""
        under_way = self._pass
        if chunk < self._counted:
            under_way.sums = [total + term for total, term in zip(under_way.sums, terms, strict=True)]
        if not sound:
            under_way.sound, under_way.end = False, under_way.asked
        self._ask()
        if chunk + 1 < under_way.end:
            return None
        done = self._fire(Event.DONE if under_way.sound else Event.NOT_FINITE)
        if self._next is None:
            self._fire(Event.STAYS)
        if done is Done.ROUND:
            self._count()
        self._go_on()
        return done

    def _ask(self) -> None:
        if self._pass.asked < self._pass.end:
            self._pass.asked += 1
            self._outputs.ask(self._job(self._pass.asked - 1))

    def _job(self, chunk: int) -> jobs.Job[object]:
        """The job of the pass under way on `chunk`."""
        match self._phase:
            case Phase.FOUNDING:
                return jobs.Found(chunk)
            case Phase.ATTACHING:
                return jobs.Attach(chunk)
            case Phase.KEEPING | Phase.CHECKING:
                return jobs.Check(chunk)
        outer = self.snapshot.outer
        return jobs.OuterStep(chunk, outer.lr, outer.momentum, self.snapshot.applied, outer.part, outer.made)

    def _count(self) -> None:
        """The outer step of a round is made."""
        *totals, self.gain = self._pass.sums
        self.length, self.movement = (math.sqrt(total / self._size) for total in totals)
        self.rounds += 1
        outer, clock = self.snapshot.outer, self.snapshot.clock
        self._outputs.emit(RoundDone(self.rounds, clock, self.length, self.movement, outer.lr, outer.momentum))
        # Nothing waits longer than a round: neither a correction before it nor those of an exchange during the pass.
        self._dirty, self._waits = True, outer.waits and not self._dirty

    # -- transitions ------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Unless a pass is under way, do what had to wait for its end."""
        if self._phase in PASSES:
            return
        if self._next is Event.GONE:
            self._next = None
            self._fire(Event.GONE)
        self._fire_slot(Event.RESTS)
        if self._dirty and not self._held and not self._waits and self.open:
            self._fire_slot(Event.MIXED)
        if isinstance(self._next, Arrival) and self._slot is not Slot.SEALING:
            self.process, self._next = self._next, None
            self._dirty = self._waits = False
            self._fire_slot(Event.COMES)
            self._fire(Event.COMES)
            self._fire(self._claim())

    def _claim(self) -> Event:
        """What the process that has come is to have."""
        if self.process.founds:
            return Event.FOUNDS
        return Event.STAYS if self.process.keeps is None else Event.KEEPS

    def _fire(self, event: Event) -> Done | None:
        before = self._phase
        self._phase, action = follow(ROUNDS, before, event)
        if action is not None:
            self._act(action)
        if self._phase is not before and self._phase in PASSES:
            self._pass = _Pass(self._chunks)
            for _ in range(self._ahead):
                self._ask()
        return None if action is None else COMPLETES.get(action)

    def _fire_slot(self, event: Event) -> None:
        self._slot, action = follow(SLOTS, self._slot, event)
        if action is not None:
            self._act(action)

    def _act(self, action: Action) -> None:
        process, outputs = self.process, self._outputs
        match action:
            case Action.BIND:
                self._apart = 0.0
                if process.keeps is not None:
                    self.snapshot = Snapshot(0, 0, Outer(1.0, 0.0), process.keeps.clock)
                outputs.ask(jobs.Bind())
            case Action.UNBIND:
                outputs.ask(jobs.Unbind())
            case Action.DISMISS:
                self.process = process._replace(keeps=None)
            case Action.MEASURE:
                difference2, anchor2, _ = self._pass.sums
                self._apart = math.sqrt(difference2 / anchor2) if anchor2 else math.inf
            case Action.OPEN:
                self.session, self.made = self.session + 1, 0
                outputs.emit(SessionOpened(self.session, process.keeps is not None, self._apart))
            case Action.REFUSE if process.keeps is None:
                outputs.emit(SessionRefused("GD-402", "the model to found the network with has NaN or Inf"))
            case Action.DROP:
                outputs.emit(SnapshotTaken(self.snapshot.number, Unused.NAN))
            case Action.TAKE:
                self.made += 1
                outputs.emit(SnapshotTaken(self.snapshot.number))
            case Action.SEAL:
                self._dirty = False
                outputs.ask(jobs.Seal())
            case Action.RELEASE:
                outputs.ask(jobs.Release(self._out))
