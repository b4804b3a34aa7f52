"""What the daemon says to its training process, and in which phase of their dialogue the two are.

To connect again takes several step boundaries: connect, write x, then load the model, or keep the parameters if the
daemon made them the model. A daemon that dies leaves training alone. Nothing here waits or touches a tensor.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from gossipdp.errors import (
    DataError,
    GossipdpError,
    HardwareError,
    MismatchError,
    RefusedError,
    UnreachableError,
)
from gossipdp.protocol.causes import Unused
from gossipdp.protocol.schema import Mismatch, Schema, chunk_spans
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.runtime import link as links
from gossipdp.training.connection import DaemonConnection
from gossipdp.training.healing import Healing
from gossipdp.training.messages import log
from gossipdp.training.optimizer_state.schedule import MomentsSchedule
from gossipdp.training.orders import Drain
from gossipdp.training.tensors.layout import Layout
from gossipdp.training.tensors.schema import FROZEN_DIFFER, FROZEN_DIFFER_PARTLY

__all__ = ["SUBMIT_WITHIN", "Accounts", "Corrections", "Dialogue", "Handed", "Lost", "Mode", "Phase", "SnapshotTimes"]


WAIT_TOLD_EVERY: Final = 10.0
"""seconds between two lines on what the daemon waits for, as while a model comes"""
SUBMIT_WITHIN: Final = 600.0
"""seconds after which a snapshot is due, however few steps it holds"""


class SnapshotTimes:
    """Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.number = 0
        """number of the last snapshot that was handed over"""
        self._settled = 0
        """number of the last snapshot whose round is over"""
        self._submitted_at = 0.0
        self._deadline = 0.0
        """seconds that mode sync waits for a round"""

    def terms(self, deadline: float) -> None:
        """The daemon offers a session with this deadline for a round, in seconds."""
        self._deadline = deadline

    def begin(self, now: float) -> None:
        """A session begins."""
        self._submitted_at = now

    def submitted(self, number: int, now: float) -> None:
        """Snapshot `number` was handed over."""
        self.number, self._submitted_at = number, now

    def settled(self, number: int) -> None:
        """The round of snapshot `number` is over."""
        self._settled = max(self._settled, number)

    def settle_all(self) -> None:
        """The daemon is gone: no round of it is waited for."""
        self._settled = self.number

    def overdue(self, now: float) -> bool:
        """True if the last snapshot is older than `SUBMIT_WITHIN`."""
        return now - self._submitted_at >= SUBMIT_WITHIN

    def patience(self, now: float) -> float:
        """Seconds that mode sync still waits for the round of the last snapshot."""
        return 0.0 if self._settled >= self.number else max(0.0, self._submitted_at + self._deadline - now)


class Handed(NamedTuple):
    """A snapshot that the daemon has not yet acknowledged."""

    number: int
    steps: int
    samples: int


class Lost(NamedTuple):
    """Steps that are missing from a model that replaced this process's own."""

    steps: int
    earlier: int
    """those of them from before the last snapshot: the model is older than that"""


class Accounts:
    """Counts in steps and samples of this process; clocks are the network's.

    A handed-over snapshot stays on the books until the daemon says whether it took it.
    """

    def __init__(self) -> None:
        self.steps = self.samples = 0
        """since the last snapshot"""
        self.handed: Handed | None = None
        """the snapshot that the daemon has not yet acknowledged"""
        self.lost_steps = 0
        """steps of this process and the network that are missing from models loaded again"""
        self._clock = self._clock_samples = 0
        """the network's, at the last snapshot"""
        self._wasted = 0
        """steps in the last refused snapshots"""
        self._written = (0, 0)
        """`steps` and `samples` when this process wrote its model for the daemon"""

    @property
    def clock(self) -> int:
        """The network's clock in steps, as known here."""
        return self._clock + self.steps + (self.handed.steps if self.handed else 0)

    @property
    def all_samples(self) -> int:
        """The network's samples, as known here."""
        return self._clock_samples + self.samples + (self.handed.samples if self.handed else 0)

    def stepped(self, steps: int, samples: int) -> None:
        """Count `steps` more optimizer steps; negative if some turn out to have been skipped."""
        self.steps = max(0, self.steps + steps)
        self.samples = max(0, self.samples + samples)

    def paced(self, clock: int, samples: int) -> None:
        """The daemon tells the network's clock and samples."""
        self._clock, self._clock_samples = max(self._clock, clock), max(self._clock_samples, samples)

    # -- snapshots --------------------------------------------------------------------------------------------

    def hand(self, number: int) -> Handed:
        """Snapshot `number` is handed over."""
        self.handed = handed = Handed(number, self.steps, self.samples)
        self.steps = self.samples = 0
        return handed

    def taken(self, *, used: bool = True) -> None:
        """The daemon has read the snapshot; `used`: it uses it."""
        if self.handed is not None:
            self._wasted = 0 if used else self._wasted + self.handed.steps
            self._clock += self.handed.steps
            self._clock_samples += self.handed.samples
            self.handed = None

    def returned(self) -> None:
        """The daemon is gone, or did not read the snapshot. If it did use it, its steps count twice."""
        if self.handed is not None:
            self.steps += self.handed.steps
            self.samples += self.handed.samples
            self.handed = None

    # -- sessions ---------------------------------------------------------------------------------------------

    def wrote(self) -> tuple[int, int, int]:
        """This process has written its model for the daemon. Returns its clock, steps and samples."""
        self._written = self.steps, self.samples
        return self.clock, *self._written

    def kept(self, clock: int) -> None:
        """The daemon made the written parameters its model, at `clock`."""
        steps, samples = self._written
        self.steps, self.samples = max(0, self.steps - steps), max(0, self.samples - samples)
        self._clock = clock

    def loaded(self, clock: int, *, first: bool) -> Lost:
        """A model of `clock` replaced this process's own; `first`: that one was not trained yet."""
        earlier = 0 if first else max(0, self._clock - self._wasted - clock)
        lost = Lost(0 if first else self.steps + self._wasted + earlier, earlier)
        self.lost_steps += lost.steps
        self.steps = self.samples = self._wasted = 0
        self._clock = clock
        return lost


class Corrections:
    """The slot that is out, if there is one: the daemon seals no other before it is drained."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._slot: links.Slot | None = None
        self._chunks: list[slice] = []
        """elements of each chunk of the flat vector"""
        self.applied = 0
        """number of the last slot that the live parameters hold"""
        self.taken = 0
        """number of the last slot that was taken to be drained"""

    def __bool__(self) -> bool:
        """True if a slot is to be taken."""
        return self._slot is not None and self._slot.slot > self.taken

    def terms(self, chunk_parameters: int) -> None:
        """The daemon offers a session whose chunks have this many parameters."""
        self._chunks = chunk_spans(self._schema.size, self._schema.trainable, chunk_parameters)

    def begin(self) -> None:
        """A session begins: its slots are numbered from 1."""
        self.applied = self.taken = 0

    def came(self, slot: links.Slot) -> None:
        self._slot = slot

    def drained(self, number: int) -> None:
        """The live parameters hold slot `number`."""
        self.applied = number

    def clear(self) -> None:
        """The daemon is gone, and its shared memory with it."""
        self._slot = None

    def take(self, region: links.Region) -> Drain | None:
        """Take the slot to drain it. None if there is none, or it was taken."""
        drain = self.undrained(region) if self else None
        if drain is not None:
            self.taken = drain.slot
        return drain

    def undrained(self, region: links.Region) -> Drain | None:
        """The slot that the live parameters do not hold yet, whether it was taken or not."""
        slot, chunks = self._slot, self._chunks
        if slot is None or slot.slot <= self.applied:
            return None
        spans = [(chunks[first].start, chunks[last].stop) for first, last in slot.spans if last < len(chunks)]
        return Drain(slot.session, slot.slot, tuple(spans), region.buffers[slot.slot % 2])


FROZEN_ADVICE: Final[dict[str, str]] = {Mismatch.FROZEN: FROZEN_DIFFER, Mismatch.SOME_FROZEN: FROZEN_DIFFER_PARTLY}
_FAMILIES: Final[dict[str, type[GossipdpError]]] = {
    "GD-1": UnreachableError,
    "GD-2": RefusedError,
    "GD-3": MismatchError,
    "GD-4": DataError,
    "GD-5": HardwareError,
    "GD-6": DataError,
}
_NO_TERMS: Final = links.Session(session=0, every=1, clock=0, chunk_parameters=1)

Mode: TypeAlias = Literal["async", "overlap", "sync"]


class Phase(enum.Enum):
    """Where the dialogue stands. The values appear in messages to the user.

    The phases follow each other in this order up to OPEN. A lost daemon leads from each of them back to ALONE, `close`
    to OVER. Events: connected, memory shared, x written (`done`), session offered, model loaded or kept (`done`).
    """

    ALONE = "no daemon"
    GREETING = "connected, no shared memory yet"
    WRITING = "the shared memory waits for this model"
    WAITING = "no model yet"
    ARRIVED = "the model to start from is there"
    OPEN = "attached"
    OVER = "detached"


class Dialogue:
    """The base of `Session`: one training process and its daemon, over any number of connections.

    Args:
        home: the peer's home.
        layout: the model's exchanged tensors.
        world: training processes of this replica group.
        every: steps between snapshots. None: as the daemon says. A number overrides the daemon's shorter rounds in the
            warm start and its adaptation to this host's speed.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        home: Path,
        layout: Layout,
        *,
        world: int = 1,
        every: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.home, self.layout, self.now = home, layout, clock
        self._world, self._own_every = world, every
        self._phase = Phase.ALONE
        self._connection = DaemonConnection(home, layout, world)
        self._error: GossipdpError | None = None
        """what the last attempt to connect ended with, or the daemon's refusal"""
        self._refusal: GossipdpError | None = None
        """the daemon's last refusal, until a session begins"""
        self._lost_because = ""
        """why the daemon was lost, as last logged"""
        self._waiting_for = ""
        """what the daemon waits for, in its words"""
        self._wait_told_at = -math.inf
        self._terms = _NO_TERMS
        """the session as the daemon offered it"""
        self._daemon_every = 1
        self._loads = 0
        """models loaded so far"""
        self._weights_loaded = False
        """the script has loaded other weights since the session was open"""
        self._accounts, self._healing, self._times = Accounts(), Healing(), SnapshotTimes()
        self._corrections = Corrections(layout.schema)
        self._moments = MomentsSchedule()
        self._moments_given = False
        """the moments that were asked for are in shared memory"""
        self._sealed: int | None = None
        """while this process holds the region's token: number of the last slot that was sealed"""
        self._inherits = False
        """moments that the daemon keeps may still come to the buffer of the model"""
        self._state_is_new = False
        """the daemon has a newer carried state than this model"""
        self._has_moments = self._wants_moments = False
        """the optimizer has moments that can be shared; it has made no step, and can start from some"""
        self._loss = self._eval_loss = math.nan
        """the script's last losses; NaN: not known"""
        self._stall_seconds = 0.0
        """seconds that training has lost to gossip"""
        self._reported_at = -math.inf
        """time of the last report"""

    # -- what is known --------------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def alone(self) -> bool:
        """True while no daemon takes part."""
        return self._phase is not Phase.OPEN

    @property
    def connected(self) -> bool:
        """True while there is a link to the daemon, whatever the phase."""
        return self._connection.link is not None

    @property
    def error(self) -> GossipdpError | None:
        """What the last attempt to connect ended with, or the daemon's refusal."""
        return self._error

    @property
    def left_alone(self) -> GossipdpError | None:
        """Why a process that was attached trains alone now.

        None if it does not, or because the run of its peer ends. An UnreachableError if its daemon was gone.
        """
        if self._phase in (Phase.OPEN, Phase.OVER) or not self._loads:
            return None
        if self._refusal is not None:
            return None if self._refusal.code == "GD-322" else self._refusal
        return UnreachableError("GD-105", "training was not attached again", seen=self._lost_because)

    @property
    def waiting_for(self) -> str:
        """What this process waits for before its first step."""
        return self._waiting_for or self._phase.value

    @property
    def number(self) -> int:
        """Number of the session, counted by the daemon; 0 before the first."""
        return self._terms.session

    @property
    def clock(self) -> int:
        """The network's clock in steps, as known here."""
        return self._accounts.clock

    # -- messages ---------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Take in what the daemon has said, or try to reach it again. Never waits."""
        if self._phase is Phase.OVER:
            return
        now = self.now()
        if self._connection.due(now):
            self._connect(now)
        if self._connection.link is None:
            return
        self._flush()
        messages = [] if self._connection.link is None else self._connection.link.receive()
        for message in messages:
            if self.connected:
                self._take(message, now)
        self._pin()
        if self._connection.link is not None and self._connection.link.lost:
            self._lose(self._connection.link.lost, now)
        self._flush()

    def _connect(self, now: float) -> None:
        self._error = None
        try:
            self._connection.connect(now)
        except UnreachableError as error:
            self._error = error
            return
        self._phase = Phase.GREETING

    def _flush(self) -> None:
        if reason := self._connection.flush():
            self._lose(reason, self.now())

    def _take(self, message: links.FromDaemon, now: float) -> None:
        match message:
            case links.RegionReady() if self._phase is Phase.GREETING:
                self._share(now)
            case links.Waiting():
                self._note_wait(message, now)
            case links.Session() if self._phase is Phase.WAITING:
                self._take_terms(message)
            case links.Pace(every, clock, samples):
                self._daemon_every = every
                # Until the session's model is loaded or kept, the clock here is the previous model's.
                self._accounts.paced(clock if self._phase is Phase.OPEN else 0, samples)
            case links.Slot(session) if session == self.number:
                self._corrections.came(message)
            case links.Settled(snapshot):
                self._times.settled(snapshot)
            case links.MomentsTaken(number):
                self._moments.taken(number)
            case links.MomentsGiven():
                self._moments_given = True
            case links.Taken(snapshot, refused):
                self._snapshot_taken(snapshot, refused)
            case links.Refused():
                self._refused(message, now)
            case links.Renewed(session):
                self._state_is_new = session == self.number
            case links.Closing():
                self._lose("the daemon is closing", now)

    def _share(self, now: float) -> None:
        link = self._connection.link
        assert link is not None and link.region is not None
        if link.region.size != self.layout.schema.size:
            return self._lose("the daemon shares memory of another size", now)
        self.layout.pin(link.region, 0, self._world)

    def _pin(self) -> None:
        """Once the memory is pinned, the model can be written. A process that trains pins a part at each boundary."""
        link = self._connection.link
        if self._phase is not Phase.GREETING or link is None or link.region is None:
            return
        if self.layout.pin_more(everything=not self._loads):
            self._phase = Phase.WRITING

    def _note_wait(self, message: links.Waiting, now: float) -> None:
        text = f"{message.text} ({message.share:.0%})" if message.share else message.text
        if text != self._waiting_for and now >= self._wait_told_at + WAIT_TOLD_EVERY:
            log.info("waiting for the model: %s", text)
            self._wait_told_at = now
        self._waiting_for = text

    def _take_terms(self, terms: links.Session) -> None:
        """The daemon offers a session."""
        self._terms, self._daemon_every, self._state_is_new = terms, terms.every, False
        self._times.terms(terms.deadline)
        self._corrections.terms(terms.chunk_parameters)
        self._healing.terms(terms.heal_after)
        self._moments.begin(terms.moments_every if self._has_moments else 0)
        if terms.moments_every and not self._has_moments and not self._loads:
            log.info("this optimizer's moments are not shared with the network: only those of Adam's family are")
        self._phase = Phase.ARRIVED

    def _refused(self, message: links.Refused, now: float) -> None:
        do = FROZEN_ADVICE.get(message.mismatch, message.do)
        family = _FAMILIES.get(message.code[:4], RefusedError)
        self._error = self._refusal = family(message.code, message.cause, seen=message.seen, do=do)
        self._lose(str(self._error), now)
        self._connection.retry_later(now, refused=True)

    def _snapshot_taken(self, number: int, refused: str) -> None:
        """The daemon has read snapshot `number`; `refused` says why it does not use it, or ""."""
        handed = self._accounts.handed
        if handed is None or handed.number != number:
            return
        self._moments.round_done()
        if refused:
            self.layout.carried.resend()
        if refused == Unused.SESSION:
            return self._accounts.returned()
        self._accounts.taken(used=not refused)
        self._healing.judged(finite=not refused)
        if refused:
            log.warning("GD-402 a snapshot was not used: %s; has the loss diverged?", refused)
        if self._healing.due:
            log.warning(
                "GD-402 %d snapshots in a row were not used: training loads the network's model again; do: look for "
                "the batch or the learning rate that makes it diverge",
                self._healing.refused,
            )
            self._attach_again()

    def _attach_again(self) -> None:
        """Begin anew with this daemon: write x, and load or keep."""
        self.farewell()
        self._drop()
        self._phase = Phase.ALONE
        self._connection.retry_at_once()

    # -- sessions ---------------------------------------------------------------------------------------------------

    def _state_loaded(self, state: Buffer) -> None:
        """The model holds this carried state. A newer one may have come after the order was made."""
        link = self._connection.link
        self._state_is_new = self._state_is_new and link is not None and link.carried.state is not state

    def _model_loaded(self) -> None:
        """The live parameters are the network's model: the session begins."""
        lost, earlier = self._accounts.loaded(self._terms.clock, first=not self._loads)
        if self._weights_loaded:
            log.warning(
                "GD-325 the script loaded weights while other hosts train: the network's model was put back, and %d "
                "steps since the last snapshot are lost; do: load weights before `attach`, and see `gossipdp explain "
                "GD-325` for how to replace the network's model",
                lost,
            )
        elif self._loads:
            # A daemon restored from an old checkpoint has lost what later snapshots brought it.
            told = f"{lost} steps since the last snapshot are lost"
            if earlier:
                before = f"{earlier} of them from before the last snapshot"
                told = f"{lost} steps are lost, {before}: the model is of step {self._terms.clock}"
            log.warning("attached to the daemon again; %s", told)
        elif self._terms.clock:
            log.info("%s", self.replaced)
        self._loads += 1
        self._inherits = self._wants_moments and self._terms.moments > 0
        self._wants_moments = False
        self._healing.loaded()
        self._begin()

    @property
    def replaced(self) -> str:
        """What the last session did to the script's model: the clock, and the distance between the two."""
        clock, apart = self._terms.clock, self._terms.apart
        away = f"{apart:.1%} of the network model's norm away"
        return f"the network's model of step {clock} replaced the script's, which was {away}"

    def _model_kept(self) -> None:
        """The daemon's model is what this process wrote: the session begins and no step is lost."""
        self._accounts.kept(self._terms.clock)
        if self._weights_loaded:
            log.warning("GD-325 the weights that the script loaded are the model now: no other host trains")
        else:
            log.warning(
                "attached to the daemon again; it took this process's model over, with all %d steps", self.clock
            )
        self._begin()

    def _begin(self) -> None:
        self._phase, self._refusal = Phase.OPEN, None
        self._weights_loaded = False
        self._lost_because = ""
        self._corrections.begin()
        self._times.begin(self.now())

    def lose(self, reason: str) -> None:
        """Drop the link, train alone, and connect again later."""
        self._lose(reason, self.now())

    def fail(self, reason: str) -> None:
        """Another rank could not follow: the group trains alone, and tries again later."""
        self._waiting_for = reason
        self.lose(reason)

    def _lose(self, reason: str, now: float) -> None:
        if reason != self._lost_because and self._loads:
            log.warning("training goes on alone: %s", reason)
        self._lost_because = reason
        self._drop()
        self._phase = Phase.ALONE
        self._connection.retry_later(now)

    def _drop(self) -> None:
        self._connection.drop()
        self._sealed = None
        self._corrections.clear()
        self._times.settle_all()
        self._accounts.returned()

    def farewell(self) -> None:
        """Tell the daemon that this process leaves on purpose."""
        if self._connection.link is not None:
            self._connection.link.send(links.Farewell())
