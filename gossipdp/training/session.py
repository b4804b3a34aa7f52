"""The training process's side of the dialogue with its daemon: sessions, snapshots, slots, and coming back.

`poll` takes in what the daemon has said, `next_order` tells what is to be done between the live parameters and the
shared memory, `done` that it was. Only `start` waits. A daemon that dies leaves training alone. Connecting again is
tried at step boundaries and takes several of them: connect, write x, then load the model, or keep the parameters if the
daemon has made them the model. Nothing here may touch a tensor.
"""

from __future__ import annotations

import enum
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from gossipdp.errors import (
    DataError,
    GossipdpError,
    HardwareError,
    MismatchError,
    RefusedError,
    UnreachableError,
)
from gossipdp.protocol.schema import chunk_spans
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import MOST_STEPS
from gossipdp.runtime import link as links
from gossipdp.training.accounts import Accounts
from gossipdp.training.healing import Healing
from gossipdp.training.optimizer_state.schedule import Handover
from gossipdp.training.orders import Drain, Keep, Load, Order, Recall, Renew, Snapshot, Tell, Write, moment_of
from gossipdp.training.tensors.carried import Told
from gossipdp.training.tensors.layout import Fence, Layout, passed
from gossipdp.training.tensors.schema import FROZEN_DIFFER

__all__ = ["Drain", "Keep", "Load", "Order", "Recall", "Renew", "Session", "Snapshot", "Tell", "Write"]

log = logging.getLogger("gossipdp.training")

RETRY: Final = 1.0
"""seconds between attempts to reach a daemon that died"""
RETRY_REFUSED: Final = 30.0
"""the same after it said no"""
SUBMIT_WITHIN: Final = 600.0
"""seconds after which a snapshot is due, however few the steps"""
GRACE: Final = 10.0
"""seconds `start` waits for a daemon that is being started: its home is one, or the socket of a killed one is there"""
SAY_EVERY: Final = 10.0
"""seconds between words of `start` on what it waits for"""
GIVE_WITHIN: Final = 60.0
GIVE_EACH: Final = 100e-9
"""seconds for the daemon to bring one of the moments it has, and more for each parameter"""
REPORT_EVERY: Final = 0.5
"""seconds between reports"""

_FAMILIES: Final[dict[str, type[GossipdpError]]] = {
    "GD-1": UnreachableError,
    "GD-2": RefusedError,
    "GD-3": MismatchError,
    "GD-4": DataError,
    "GD-5": HardwareError,
    "GD-6": DataError,
}


Mode: TypeAlias = Literal["async", "overlap", "sync"]


class _Phase(enum.Enum):
    ALONE = "no daemon"
    GREETING = "connected, no shared memory yet"
    WRITING = "the shared memory waits for this model"
    WAITING = "no model yet"
    ARRIVED = "the model to start from is there"
    OPEN = "attached"
    OVER = "detached"


class Session:
    """Args:

    home: the peer's home.
    world: training processes of this replica group.
    every: steps between snapshots, whatever the daemon says: its short rounds in the warm start and those by this
        host's speed then come to nothing. None: as the daemon says.
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
        self._home, self._layout, self._world, self._time, self._own_every = home, layout, world, clock, every
        self._mode: Mode = "async"
        self._began: float | None = None
        """when `start` was called first"""
        self._deadline = 0.0
        self._settled = 0
        """the last snapshot whose round is settled"""
        self._phase = _Phase.ALONE
        self._link: links.Link | None = None
        self._retry_at = 0.0
        self._told = ""
        self._error: GossipdpError | None = None
        self._waiting = ""
        self._outbox: deque[tuple[Fence, links.FromTraining, Told | None]] = deque()
        self._session = 0
        self._spans: list[slice] = []
        """of the chunks"""
        self._daemon_every = 1
        self._slots: deque[links.Slot] = deque()
        self._applied = 0
        self._number = 0
        self._accounts, self._healing = Accounts(), Healing()
        self._submitted_at = 0.0
        self._reported_at = -math.inf
        self._start_clock = 0
        self._run = b""
        """run id of the network, as the last session told it"""
        self._kept = False
        """the last session kept this process's parameters as the daemon's model"""
        self._loads = 0
        self._handover = Handover()
        self._renewed = False
        """what is not exchanged is another's now, and has not been taken over"""
        self._given: set[links.Moment] = set()
        self.tells = self.empty = False
        """the optimizer has moments that can be told; it has made no step, and would take some"""
        self.optimizer_steps = 0
        """that the optimizer has made in all"""
        self.kept_steps = 0
        """that the one had made whose moments the daemon has for this process; 0: it has none"""
        self.loss = math.nan
        self.stall_seconds = 0.0

    @property
    def since_snapshot(self) -> int:
        """Steps since the last snapshot."""
        return self._accounts.steps

    @property
    def hopeless(self) -> bool:
        """Training gives nothing but NaN, and a new model has not helped."""
        return self._healing.hopeless

    @property
    def alone(self) -> bool:
        return self._phase is not _Phase.OPEN

    @property
    def every(self) -> int:
        """Steps between snapshots."""
        return self._own_every or self._daemon_every

    @property
    def clock(self) -> int:
        """The network's clock in steps, as far as it is known here."""
        return self._accounts.clock

    @property
    def samples(self) -> int:
        """The network's samples, as far as they are known here."""
        return self._accounts.all_samples

    @property
    def lost_steps(self) -> int:
        """Steps, of this process and of the network, that models which were loaded again do not hold."""
        return self._accounts.lost_steps

    # -- the beginning ----------------------------------------------------------------------------------------

    def start(self, timeout: float | None) -> None:
        """Wait until there is something to do: `next_order` is a Write at first, then the Load of the model.

        Raises:
            UnreachableError: GD-105, no daemon; GD-106, no model `timeout` seconds after the first call.
            GossipdpError: what the daemon refused this process for.
        """
        began = self._began = self._time() if self._began is None else self._began
        limit = math.inf if timeout is None else timeout
        reached = self._time() - began
        say_at = reached + SAY_EVERY
        while True:
            self.poll()
            waited = self._time() - began
            if self._phase is _Phase.ARRIVED or (self._phase is _Phase.WRITING and waited < limit):
                return
            if waited >= say_at:
                say_at += SAY_EVERY
                log.warning("training waits for its model since %.0f s: %s", waited, self._waiting or self._phase.value)
            if isinstance(self._error, UnreachableError) and self._error.code == "GD-105":
                if not links.expected(self._home) or waited - reached >= min(GRACE, limit):
                    raise self._error
                time.sleep(0.05)
            elif self._error is not None:
                raise self._error
            elif waited >= limit:
                raise UnreachableError(
                    "GD-106",
                    f"no model to start from after {limit:g} s",
                    seen=self._waiting or self._phase.value,
                    do="see `gossipdp members`: some peer must have the model, or found the network",
                )
            elif self._link is not None:
                reached = waited
                self._link.wait(min(1.0, limit - waited))
            else:
                time.sleep(0.05)

    # -- at every step boundary -------------------------------------------------------------------------------

    def stepped(self, steps: int, samples: int) -> None:
        """Count `steps` more optimizer steps; fewer, if some turn out to have been skipped."""
        self._accounts.stepped(steps, samples)

    def poll(self) -> None:
        """Take in what the daemon has said, or try to reach it again; never waits."""
        now = self._time()
        if self._phase is _Phase.OVER:
            return
        if self._link is None and (now >= self._retry_at):
            self._connect(now)
        if self._link is None:
            return
        self._flush()
        for message in self._link.receive():
            if self._link is not None:
                self._take(message, now)
        if self._link is not None and self._link.lost:
            self._lose(self._link.lost, now)
        self._flush()

    @property
    def due_in(self) -> int | None:
        """Steps until a snapshot is due, 0 if it is; None while none can be taken."""
        accounts = self._accounts
        if self._phase is not _Phase.OPEN or accounts.handed is not None or self._handover.open:
            return None
        late = self._time() - self._submitted_at >= SUBMIT_WITHIN and accounts.steps > 0
        return 0 if late else max(0, self.every - accounts.steps)

    @property
    def mode(self) -> Mode:
        """When corrections reach the live parameters; as the daemon says."""
        return self._mode

    def _drains(self, ahead: int) -> bool:
        """Is it time for corrections, or will it be in `ahead` steps?"""
        if not self._slots or self._phase is not _Phase.OPEN:
            return False
        return self._mode != "overlap" or (self.due_in is not None and self.due_in <= ahead)

    @property
    def patience(self) -> float:
        """With mode sync: seconds that training waits yet for what the round of the last snapshot brings, at most.

        Only the round's own exchanges are waited for, and never a daemon that is gone.
        """
        if self._phase is not _Phase.OPEN or self._settled >= self._number or self._link is None:
            return 0.0
        return max(0.0, self._submitted_at + self._deadline - self._time())

    def await_order(self, within: float = math.inf) -> Order | None:
        """With mode sync, after a snapshot: wait for what its round brings; None after that, or so many seconds."""
        until = self._time() + within
        while True:
            self.poll()
            if (order := self.next_order()) is not None:
                return order
            left = min(self.patience, until - self._time())
            if self._link is None or left <= 0:
                return None
            # A fence that is not passed yet is looked at again soon.
            self._link.wait(min(left, 0.001 if self._outbox else 1.0))

    def next_order(self, ahead: int = 0) -> Order | None:
        """What is to be done next; a drain is handed out once, the others until they are done.

        ahead: steps until it can be done; with mode overlap drains wait for the next snapshot's step.
        """
        if self._link is None or self._link.region is None:
            return None
        region = self._link.region
        if self._phase is _Phase.WRITING:
            return Write(region.x)
        if self._phase is _Phase.ARRIVED and self._kept:
            return Keep(self._session, self._start_clock)
        if self._phase is _Phase.ARRIVED:
            return Load(self._session, region.x, self._start_clock, self._link.carried, self._healing.due)
        if self._renewed and self._phase is _Phase.OPEN:
            return Renew(self._session, self._link.carried.state)
        if self._drains(ahead):
            slot = self._slots.popleft()
            places = self._spans[: slot.spans[-1][1] + 1] if slot.spans else []
            spans = [(places[first].start, places[last].stop) for first, last in slot.spans if last < len(places)]
            return Drain(slot.session, slot.slot, tuple(spans), region.slots[slot.slot % 2])
        # Before a snapshot: where one is due at every step, they would never have their turn.
        if self._phase is _Phase.OPEN and self._accounts.handed is None and (number := self._handover.next()):
            return Tell(self._session, number, region.x)
        return self.snapshot() if self.due_in == 0 else None

    def recall(self, which: links.Moment) -> Recall | None:
        """After the Load: wait for one of the moments that the daemon has; None if it does not come.

        A daemon that keeps this waiting for too long is left, to be reached anew: what it still writes where snapshots
        stand is then written where nobody looks.
        """
        if self.alone or not self.kept_steps:
            return None
        self._layout.finish()  # a device may still copy from where the daemon is about to write
        self._given.clear()
        self._outbox.append((passed, links.WantMoments(self._session, which), None))
        within = GIVE_WITHIN + self._layout.schema.size * GIVE_EACH
        until = self._time() + within
        while not self.alone and (left := until - self._time()) > 0:
            self.poll()
            if self._link is not None and self._link.region is not None and which in self._given:
                return Recall(which, self.kept_steps, self._link.region.x)
            if self._link is not None:
                self._link.wait(min(left, 1.0))
        if not self.alone:
            self._lose(f"the optimizer's moments have not come in {within:.0f} s", self._time())
        return None

    def withdraw(self, order: Order | None) -> None:
        """`order` will not be carried out."""
        if isinstance(order, Tell) and order.session == self._session and not self.alone:
            self._handover.undo()

    @property
    def number(self) -> int:
        """Of the session, as the daemon counts; 0 before the first."""
        return self._session

    @property
    def next_snapshot(self) -> int:
        """Number of the next snapshot."""
        return self._number + 1

    def snapshot(self) -> Snapshot | None:
        """The order to hand over what was trained since the last, however little, if that can be taken."""
        if self._link is None or self._link.region is None or not self._accounts.steps or self.due_in is None:
            return None
        return Snapshot(self._session, self._number + 1, self._applied, self._link.region.x)

    def done(self, order: Order, fence: Fence, told: Told | None = None, *, whole: bool = False) -> None:
        """`order` has been carried out; its memory is free, or written, once `fence` is passed.

        Args:
            told: with Write and Snapshot, what is kept beside the vector, if it is time to tell it.
            whole: this process alone has written a snapshot for its whole group.
        """
        match order:
            case Write():
                if self._phase is _Phase.WRITING:
                    written = self._accounts.wrote()
                    live = (self._run, *written) if self._loads and not self._healing.due else ()
                    self._outbox.append((fence, links.Ready(self.empty, *live), told))
                    self._phase = _Phase.WAITING
            case Load(session, carried=carried):
                if session == self._session and self._phase is _Phase.ARRIVED:
                    self._phase = _Phase.OPEN
                    self._took(carried.state)
                    self._loaded()
            case Keep(session):
                if session == self._session and self._phase is _Phase.ARRIVED:
                    self._phase = _Phase.OPEN
                    self._carry_on()
            case Renew(session, state):
                if session == self._session:
                    self._took(state)
            case Drain(session, slot):
                if session == self._session and self._phase is _Phase.OPEN:
                    self._applied = slot
                    self._outbox.append((fence, links.Applied(session, slot), None))
            case Snapshot(session, number, applied):
                if session == self._session and self._phase is _Phase.OPEN and number == self._number + 1:
                    self._number = number
                    handed = self._accounts.hand(number)
                    said = links.Submit(session, number, applied, handed.steps, handed.samples, self.loss, whole)
                    self._outbox.append((fence, said, told))
                    self._submitted_at = self._time()
            case Tell(session, number):
                if session == self._session and self._phase is _Phase.OPEN:
                    steps = min(max(0, self.optimizer_steps), MOST_STEPS)
                    moments = links.Moments(session, number, moment_of(number), steps)
                    self._outbox.append((fence, moments, None))
        self._flush()
        if isinstance(order, Snapshot):
            self.report()

    def report(self) -> None:
        """Tell the daemon loss and stall, now and then."""
        now = self._time()
        if self._phase is _Phase.OPEN and not self._outbox and now - self._reported_at >= REPORT_EVERY:
            assert self._link is not None
            self._reported_at = now
            self._link.send(links.Report(self._session, self.loss, self.stall_seconds, self.lost_steps))

    def tell_uncounted(self) -> None:
        """Tell the daemon that parameters change and no step is counted. May be called by any thread."""
        if (link := self._link) is not None and self._phase is _Phase.OPEN:
            link.send(links.Report(self._session, self.loss, self.stall_seconds, self.lost_steps, uncounted=True))

    def last_order(self, within: float) -> Snapshot | None:
        """The order to hand over the last steps, if the daemon takes it within so many seconds."""
        until = self._time() + within
        while self._phase is _Phase.OPEN and self._accounts.steps:
            self.poll()
            taken = self._accounts.handed is None and not self._handover.open
            if taken or self._link is None or (left := until - self._time()) <= 0:
                break
            self._link.wait(left)
        return self.snapshot()

    def close(self) -> None:
        """Leave; every fence must be passed."""
        self._reported_at = -math.inf
        self._flush()
        self.report()
        self.farewell()
        self._drop()
        self._phase = _Phase.OVER

    def farewell(self) -> None:
        """Say that this process goes of its own will."""
        if self._link is not None:
            self._link.send(links.Farewell())

    def fail(self, reason: str) -> None:
        """Another rank could not follow: this group is alone, and tries again later."""
        self._waiting = reason
        self._lose(reason, self._time())

    # -- the dialogue -----------------------------------------------------------------------------------------

    def _connect(self, now: float) -> None:
        self._retry_at = now + RETRY
        self._error = None
        try:
            self._link = links.Link.connect(self._home)
        except UnreachableError as error:
            self._error = error
            return
        self._link.hello(self._layout.announced, self._world)
        self._phase = _Phase.GREETING

    def _take(self, message: links.FromDaemon, now: float) -> None:
        match message:
            case links.RegionReady() if self._phase is _Phase.GREETING:
                self._share(now)
            case links.Waiting(text, share):
                said = f"{text} ({share:.0%})" if share else text
                if said != self._waiting:
                    log.info("waiting for the model: %s", said)
                self._waiting = said
            case links.Session(session, every, clock, chunk_parameters, mode, deadline) if (
                self._phase is _Phase.WAITING
            ):
                self._mode, self._deadline = mode, deadline
                self._session, self._daemon_every, self._renewed = session, every, False
                schema = self._layout.schema
                self._spans = chunk_spans(schema.size, schema.trainable, chunk_parameters)
                self._start_clock, self.kept_steps = clock, message.moments
                self._run, self._kept, self._healing.after = message.run, message.kept, message.heal_after
                self._handover.begin(message.moments_every if self.tells else 0)
                if message.moments_every and not self.tells and not self._loads:
                    log.info("this optimizer's moments are not told to the network: only Adam's are")
                self._phase = _Phase.ARRIVED
            case links.Pace(every, clock, samples):
                self._daemon_every = every
                # Before the session's model is loaded or kept, the clock here is that of the model before.
                self._accounts.paced(clock if self._phase is _Phase.OPEN else 0, samples)
            case links.Slot(session) if session == self._session:
                self._slots.append(message)
            case links.Settled(snapshot):
                self._settled = max(self._settled, snapshot)
            case links.MomentsTaken(number):
                self._handover.taken(number)
            case links.MomentsGiven(which):
                self._given.add(which)
            case links.Taken(snapshot, refused):
                self._taken(snapshot, refused)
            case links.Refused(code, cause, seen, do):
                if code == "GD-301" and seen.startswith("frozen"):
                    do = FROZEN_DIFFER
                self._error = _FAMILIES.get(code[:4], RefusedError)(code, cause, seen=seen, do=do)
                self._lose(str(self._error), now)
                self._retry_at = now + RETRY_REFUSED
            case links.Renewed(session):
                self._renewed = session == self._session
            case links.Closing():
                self._lose("the daemon is closing", now)

    def _share(self, now: float) -> None:
        assert self._link is not None and self._link.region is not None
        if self._link.region.size != self._layout.schema.size:
            return self._lose("the daemon shares memory of another size", now)
        self._layout.pin(self._link.region, 0, self._world)
        self._phase = _Phase.WRITING

    def _took(self, state: Buffer) -> None:
        """The model has this state. A newer one may have come between the order and now."""
        self._renewed = self._renewed and self._link is not None and self._link.carried.state is not state

    def _loaded(self) -> None:
        """The live parameters are the network's model: a session starts from here."""
        lost, earlier = self._accounts.loaded(self._start_clock, first=not self._loads)
        if self._loads:
            # A daemon that knows no later model than an old checkpoint has lost what snapshots brought it since.
            log.warning(
                "attached to the daemon again; %d steps since the last snapshot are lost%s",
                lost,
                f", {earlier} of them from before it: the model is of step {self._start_clock}" if earlier else "",
            )
        self._loads += 1
        self._healing.loaded()
        self._begin()

    def _carry_on(self) -> None:
        """The daemon's model is what the live parameters were when they were written: nothing is lost."""
        self._accounts.kept(self._start_clock)
        log.warning("attached to the daemon again; it took this process's model over, with all %d steps", self.clock)
        self._begin()

    def _begin(self) -> None:
        self._told = ""
        self._applied = 0
        self._submitted_at = self._time()

    def _taken(self, number: int, refused: str) -> None:
        handed = self._accounts.handed
        if handed is None or handed.number != number:
            return
        self._handover.round_done()
        if refused:
            self._layout.beside.forget()
        if refused == "session":
            return self._accounts.returned()
        self._accounts.taken(used=not refused)
        self._healing.judged(finite=not refused)
        if refused:
            log.warning("GD-402 a snapshot was not used: %s; has the loss diverged?", refused)
        if self._healing.due:
            count = self._healing.refused
            log.warning(
                "GD-402 %d snapshots in a row were not used: training loads the network's model anew; do: look for the "
                "batch or the rate that makes it diverge",
                count,
            )
            self.farewell()
            self._drop()
            self._phase, self._retry_at = _Phase.ALONE, 0.0

    def _flush(self) -> None:
        while self._outbox and self._link is not None:
            fence, message, told = self._outbox[0]
            if not fence() or (told is not None and not told.ready()) or not self._post(message, told):
                return
            self._outbox.popleft()

    def _post(self, message: links.FromTraining, told: Told | None) -> bool:
        """Send `message`, with the files that go with it; False if the daemon cannot take it now."""
        assert self._link is not None
        contents: list[Iterable[Buffer]] = []
        if isinstance(message, links.Ready) and (told is not None or self._layout.reference.data):
            contents = [[self._layout.reference.data], told or []]
            message = msgspec.structs.replace(message, carries=True)
        elif isinstance(message, links.Submit) and told is not None and told.new:
            contents, message = [told], msgspec.structs.replace(message, tells=True)
        files: list[int] = []
        try:
            for each in contents:
                files.append(links.write_sealed(each))
            return self._link.send(message, files)
        except OSError as error:
            # What is written is relative to a reference that the daemon does not get.
            self._lose(f"no memory for what goes with the model: {error.strerror}", self._time())
            return False
        finally:
            for file in files:
                os.close(file)

    def _lose(self, reason: str, now: float) -> None:
        if reason != self._told and self._loads:
            log.warning("no daemon: %s; training goes on alone", reason)
        self._told = reason
        self._drop()
        self._phase = _Phase.ALONE
        self._retry_at = now + RETRY

    def _drop(self) -> None:
        if self._link is not None:
            self._layout.finish()  # a device may still copy to and from the memory that goes
            self._link.close()
        self._link = None
        self._outbox.clear()
        self._slots.clear()
        self._settled = self._number
        self._accounts.returned()
