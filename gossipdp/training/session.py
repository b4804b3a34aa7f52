"""The training process's side of the dialogue with its daemon: sessions, snapshots, slots, and coming back.

`poll` takes in what the daemon has said, `next_order` tells what is to be done to the live parameters, `done` that it
was, `submit` hands a snapshot over. Only `start` waits. A daemon that dies leaves training alone; connecting again is
tried at step boundaries and takes several of them: connect, write x, load the model once it is there. Nothing here
may change a tensor.
"""

from __future__ import annotations

import enum
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossipdp.errors import (
    DataError,
    GossipdpError,
    HardwareError,
    MismatchError,
    RefusedError,
    UnreachableError,
)
from gossipdp.runtime import link as links
from gossipdp.training.layout import Fence, Layout

__all__ = ["Drain", "Load", "Order", "Session"]

log = logging.getLogger("gossipdp.training")

RETRY: Final = 1.0
"""seconds between attempts to reach a daemon that died"""
RETRY_REFUSED: Final = 30.0
"""the same after it said no"""
SUBMIT_WITHIN: Final = 600.0
"""seconds after which a snapshot is due, however few the steps"""
GRACE: Final = 10.0
"""seconds `start` waits for a daemon that was killed (its socket is there) to be started again"""
SAY_EVERY: Final = 10.0
"""seconds between words of `start` on what it waits for"""
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


class Load(NamedTuple):
    """x := values, on the whole flat vector: a session begins."""

    session: int
    values: NDArray[np.float32]


class Drain(NamedTuple):
    """x += values on these spans (start, stop) of the flat vector."""

    session: int
    slot: int
    spans: tuple[tuple[int, int], ...]
    values: NDArray[np.float32]


Order: TypeAlias = Load | Drain


class _Phase(enum.Enum):
    ALONE = "no daemon"
    GREETING = "connected, no shared memory yet"
    WAITING = "no model yet"
    ARRIVED = "the model to start from is there"
    OPEN = "attached"
    OVER = "detached"


class _Snapshot(NamedTuple):
    number: int
    steps: int
    samples: int


class Session:
    """Args:

    home: the peer's home.
    world: training processes of this replica group.
    every: steps between snapshots; None: as the daemon says.
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
        self._home, self._layout, self._world, self._time = home, layout, world, clock
        self._own_every = every
        self._phase = _Phase.ALONE
        self._link: links.Link | None = None
        self._retry_at = 0.0
        self._told = ""
        self._error: GossipdpError | None = None
        self._waiting = ""
        self._outbox: deque[tuple[Fence, links.FromTraining]] = deque()
        self._session = 0
        self._chunk_parameters = 0
        self._daemon_every = 1
        self._slots: deque[links.Slot] = deque()
        self._applied = 0
        self._number = 0
        self._snapshot: _Snapshot | None = None
        self._submitted_at = 0.0
        self._reported_at = -math.inf
        self._steps = self._samples = 0
        """since the last snapshot"""
        self._clock = self._clock_samples = 0
        """the network's, at the last snapshot"""
        self._start_clock = 0
        self._loads = 0
        self.lost_steps = 0
        """steps that never reached an anchor, for a daemon died"""
        self.loss = math.nan
        self.stall_seconds = 0.0

    @property
    def alone(self) -> bool:
        return self._phase is not _Phase.OPEN

    @property
    def every(self) -> int:
        """Steps between snapshots."""
        return self._own_every or self._daemon_every

    @property
    def _arrived(self) -> bool:
        return self._phase is _Phase.ARRIVED

    @property
    def clock(self) -> int:
        """The network's clock in steps, as far as it is known here."""
        return self._clock + self._steps + (self._snapshot.steps if self._snapshot else 0)

    @property
    def samples(self) -> int:
        """The network's samples, as far as they are known here."""
        return self._clock_samples + self._samples + (self._snapshot.samples if self._snapshot else 0)

    # -- the beginning ----------------------------------------------------------------------------------------

    def start(self, timeout: float | None) -> None:
        """Wait until the model to start from is there: `next_order` then is a Load.

        Raises:
            UnreachableError: GD-105, no daemon; GD-106, no model after `timeout` seconds.
            GossipdpError: what the daemon refused this process for.
        """
        began = self._time()
        limit = math.inf if timeout is None else timeout
        say_at, reached = SAY_EVERY, 0.0
        while True:
            self.poll()
            if self._arrived:
                return
            waited = self._time() - began
            if waited >= say_at:
                say_at += SAY_EVERY
                log.warning("training waits for its model since %.0f s: %s", waited, self._waiting or self._phase.value)
            if isinstance(self._error, UnreachableError) and self._error.code == "GD-105":
                killed = links.socket_path(self._home).exists()
                if not killed or waited - reached >= min(GRACE, limit):
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

    def stepped(self, samples: int) -> None:
        """One optimizer step has been made, on so many samples."""
        self._steps += 1
        self._samples += samples

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

    def next_order(self) -> Order | None:
        """What is to be done to the live parameters next; a drain is handed out once."""
        if self._link is None or self._link.region is None:
            return None
        region = self._link.region
        if self._phase is _Phase.ARRIVED:
            return Load(self._session, region.x)
        if self._phase is _Phase.OPEN and self._slots:
            slot = self._slots.popleft()
            width, size = self._chunk_parameters, region.size
            spans = [(first * width, min((last + 1) * width, size)) for first, last in slot.spans]
            return Drain(slot.session, slot.slot, tuple(s for s in spans if s[0] < s[1]), region.slots[slot.slot % 2])
        return None

    def done(self, order: Order, fence: Fence) -> None:
        """`order` has been carried out; its memory is free once `fence` is passed."""
        if order.session != self._session or self._phase not in (_Phase.ARRIVED, _Phase.OPEN):
            return
        match order:
            case Load():
                self._phase = _Phase.OPEN
                self._begin()
            case Drain(session, slot):
                self._applied = slot
                self._outbox.append((fence, links.Applied(session, slot)))
                self._flush()

    def submit(self, *, even_early: bool = False) -> None:
        """Hand over a snapshot if one is due and the last has been taken."""
        if self._phase is not _Phase.OPEN or self._snapshot is not None or not self._steps or self._link is None:
            return
        now = self._time()
        if self._steps < self.every and now - self._submitted_at < SUBMIT_WITHIN and not even_early:
            return
        assert self._link.region is not None
        fence = self._layout.read(self._link.region.x)
        self._number += 1
        self._snapshot = _Snapshot(self._number, self._steps, self._samples)
        message = links.Submit(self._session, self._number, self._applied, self._steps, self._samples, self.loss)
        self._outbox.append((fence, message))
        self._steps = self._samples = 0
        self._submitted_at = now
        self._flush()
        self.report()

    def report(self) -> None:
        """Tell the daemon loss and stall, now and then."""
        now = self._time()
        if self._phase is _Phase.OPEN and not self._outbox and now - self._reported_at >= REPORT_EVERY:
            assert self._link is not None
            self._reported_at = now
            self._link.send(links.Report(self._session, self.loss, self.stall_seconds, self.lost_steps))

    def close(self, within: float) -> None:
        """Hand over the last steps if the daemon takes them within so many seconds, and leave."""
        until = self._time() + within
        while self._phase is _Phase.OPEN and self._steps:
            self.poll()
            if self._snapshot is None or self._link is None or (left := until - self._time()) <= 0:
                break
            self._link.wait(left)
        self.submit(even_early=True)
        self._layout.finish()
        self._reported_at = -math.inf
        self._flush()
        self.report()
        self._drop()
        self._phase = _Phase.OVER

    # -- the dialogue -----------------------------------------------------------------------------------------

    def _connect(self, now: float) -> None:
        self._retry_at = now + RETRY
        self._error = None
        try:
            self._link = links.Link.connect(self._home)
        except UnreachableError as error:
            self._error = error
            return
        self._link.hello(self._layout.schema, self._world)
        self._phase = _Phase.GREETING

    def _take(self, message: links.FromDaemon, now: float) -> None:
        match message:
            case links.RegionReady() if self._phase is _Phase.GREETING:
                self._write_model(now)
            case links.Waiting(text, share):
                said = f"{text} ({share:.0%})" if share else text
                if said != self._waiting:
                    log.info("waiting for the model: %s", said)
                self._waiting = said
            case links.Session(session, every, clock, chunk_parameters) if self._phase is _Phase.WAITING:
                self._session, self._daemon_every, self._chunk_parameters = session, every, chunk_parameters
                self._start_clock = clock
                self._phase = _Phase.ARRIVED
            case links.Pace(every, clock, samples):
                self._daemon_every = every
                self._clock, self._clock_samples = max(self._clock, clock), max(self._clock_samples, samples)
            case links.Slot(session) if session == self._session:
                self._slots.append(message)
            case links.Taken(snapshot, refused):
                self._taken(snapshot, refused)
            case links.Refused(code, cause, seen, do):
                self._error = _FAMILIES.get(code[:4], RefusedError)(code, cause, seen=seen, do=do)
                self._lose(str(self._error), now)
                self._retry_at = now + RETRY_REFUSED
            case links.Closing():
                self._lose("the daemon is closing", now)

    def _write_model(self, now: float) -> None:
        assert self._link is not None and self._link.region is not None
        if self._link.region.size != self._layout.schema.size:
            return self._lose("the daemon shares memory of another size", now)
        self._layout.pin(self._link.region)
        self._outbox.append((self._layout.read(self._link.region.x), links.Ready()))
        self._phase = _Phase.WAITING

    def _begin(self) -> None:
        """The live parameters are the network's model: a session starts from here."""
        if self._loads:
            self.lost_steps += self._steps
            log.warning("attached to the daemon again; %d steps since the last snapshot are lost", self._steps)
        self._loads += 1
        self._told = ""
        self._applied = 0
        self._steps = self._samples = 0
        self._clock = self._start_clock
        self._submitted_at = self._time()

    def _taken(self, number: int, refused: str) -> None:
        snapshot = self._snapshot
        if snapshot is None or snapshot.number != number:
            return
        self._snapshot = None
        if refused == "session":
            self._steps += snapshot.steps
            self._samples += snapshot.samples
            return
        self._clock += snapshot.steps
        self._clock_samples += snapshot.samples
        if refused:
            log.warning("GD-402 a snapshot was not used: %s; has the loss diverged?", refused)

    def _flush(self) -> None:
        while self._outbox and self._link is not None:
            fence, message = self._outbox[0]
            if not fence() or not self._link.send(message):
                return
            self._outbox.popleft()

    def _lose(self, reason: str, now: float) -> None:
        if reason != self._told and self._loads:
            log.warning("no daemon: %s; training goes on alone", reason)
        self._told = reason
        self._drop()
        self._phase = _Phase.ALONE
        self._retry_at = now + RETRY

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None
        self._outbox.clear()
        self._slots.clear()
        if self._snapshot is not None:
            # Whether it was used is not known; if not, these steps are lost with the rest.
            self._steps += self._snapshot.steps
            self._samples += self._snapshot.samples
            self._snapshot = None
