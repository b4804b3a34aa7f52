"""A test daemon of one peer: the real LinkServer, and the ledger of algorithms section 1 as plain array maths."""

from __future__ import annotations

import contextlib
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gossipdp.protocol.carried_state import NOTHING, Carried
from gossipdp.protocol.schema import Schema
from gossipdp.runtime import link as links
from gossipdp.runtime.link.free_buffer import Use
from tests.training.repeated import repeated

WIDTH = 256
"""parameters of a chunk, so that small models have many"""


class LedgerDaemon:
    """`pump` handles what has arrived, `mix` acts as an exchange, and `seal` hands out corrections."""

    def __init__(
        self,
        home: Path,
        *,
        every: int = 1,
        alpha: float = 1.0,
        mu: float = 0.0,
        anchor: NDArray[np.float32] | None = None,
        clock: int = 0,
        mode: Literal["async", "overlap", "sync"] = "async",
        settles: Callable[[LedgerDaemon], None] | None = None,
        deadline: float = 20.0,
        keeps: bool = False,
        heal_after: int = 0,
        carried: Carried = NOTHING,
    ) -> None:
        self.heal_after = heal_after
        self.keeps = keeps
        """a process that has outlived a daemon keeps its parameters"""
        self.run = b"the run"
        self.mode, self.settles, self.deadline = mode, settles, deadline
        self.server = links.LinkServer(home)
        self.every, self.alpha, self.mu, self.clock = every, alpha, mu, clock
        self.a = anchor
        self.v: NDArray[np.float32] | None = None
        self.session = 0
        self.schema: Schema | None = None
        self.pending: dict[int, NDArray[np.float32]] = {}
        """by slot number: those not known to be applied"""
        self.open = 1
        self.out = 0
        self.dirty: set[int] = set()
        self.free: links.FreeBuffer | None = None
        self.sealed = np.zeros(1, np.float32)
        """what is in the slot that is out"""
        self.events: list[links.LinkEvent] = []
        self.written = links.ModelWritten()
        """the process's first message"""
        self.apart = 0.0
        """distance of what the process wrote last, relative to the anchor"""
        self.began: NDArray[np.float32] | None = None
        """the anchor, when the last session began"""
        self.has_model = True
        """False: training processes have to wait"""
        self.carried = carried
        """carried with the model: the founder's reference, and the state of the newest snapshot"""
        self.snapshot = 0
        self.drained = 0
        self.added = np.zeros(1, np.float32)
        """the sum of what was drained"""
        self.last: NDArray[np.float32] | None = None
        """the newest snapshot"""
        self.beyond = np.zeros(1, np.float32)
        """what it contains that the parameters do not: the slot that it alone names"""

    # -- the loop ---------------------------------------------------------------------------------------------

    def pump(self, timeout: float = 0.0) -> None:
        """Handle everything that has arrived, or that arrives within `timeout` seconds."""
        while True:
            ready = self.awaited().poll(1000 * timeout)
            if not ready:
                return
            timeout = 0.0
            for fd, _ in ready:
                for event in self.server.handle(fd):
                    self.events.append(event)
                    self.feed(event)

    def awaited(self) -> select.poll:
        """What says that something has arrived."""
        poll = select.poll()
        for fd in self.server.filenos():
            poll.register(fd, select.POLLIN)
        return poll

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Pump in another thread meanwhile, because `attach` blocks."""
        with repeated(lambda: self.pump(0.01)):
            yield

    def feed(self, event: links.LinkEvent) -> None:
        match event:
            case links.Attached(schema):
                self.schema = Schema.from_bytes(schema)
                self.free = links.FreeBuffer(self.region)
            case links.Detached() if self.free is not None:
                self.free.detach()
            case links.ModelWritten():
                self.written = event
                if self.a is None:
                    self.carried = event.carried
                if self.has_model:
                    self.begin_session()
                else:
                    self.server.send(links.Waiting("a member that has the model", 0.25))
            case links.Submitted():
                self.submitted(event)
            case links.SlotApplied(session, 0) if session == self.session:
                self.done("model")
            case links.SlotApplied(session, slot) if session == self.session:
                self.slot_applied(slot)

    def slot_applied(self, slot: int) -> None:
        if slot and slot == self.out:
            self.added = self.added + self.sealed
            del self.pending[slot]
            self.out = 0
            self.drained += 1

    def done(self, use: Use) -> None:
        assert self.free is not None
        self.free.done(use)

    @property
    def region(self) -> links.Region:
        assert self.server.region is not None
        return self.server.region

    # -- the ledger -------------------------------------------------------------------------------------------

    def begin_session(self) -> None:
        x = self.region.buffers[0]
        kept = self.keeps and self.written.run == self.run
        if self.a is None or kept:
            self.a, self.clock = x.copy(), max(self.clock, self.written.clock)
        if self.v is None:
            self.v = np.zeros_like(self.a)
        self.apart = float(np.linalg.norm(x - self.a) / (np.linalg.norm(self.a) or 1.0))
        x[:] = self.began = self.a
        self.session += 1
        self.open, self.out, self.dirty = 1, 0, set()
        self.pending = {}
        self.begin_slot()
        self.say_session(0, 0, kept)

    def say_session(self, moments_every: int, moments: int, kept: bool) -> None:
        said = self.session, self.every, self.clock, WIDTH, self.mode, self.deadline, moments_every, moments
        carried = [] if self.carried == NOTHING else [self.carried.reference, self.carried.state]
        self.server.send(links.Session(*said, self.run, kept, self.heal_after, bool(carried), self.apart), carried)

    def submitted(self, event: links.Submitted) -> None:
        """The outer step, word for word:

        D = a - (x + slots > applied);  v <- mu v + D;  m = -alpha (D + mu v)
        a += m;  pending += (1 - alpha) D - alpha mu v
        """
        assert self.a is not None and self.v is not None and self.free is not None
        self.free.received("snapshot")
        if event.session != self.session:
            self.taken(event.snapshot, "session")
            return
        alone = event.applied == self.out > 0
        self.slot_applied(event.applied)
        if event.state is not None:
            self.carried = Carried(self.carried.reference, event.state)
        self.snapshot = event.snapshot
        self.clock += event.steps
        self.last = self.region.buffers[event.applied % 2].copy()
        self.beyond = self.sealed if alone else np.zeros_like(self.last)
        x_now = self.last + self.outstanding(event.applied)
        if not np.isfinite(x_now).all():
            self.taken(event.snapshot, "nan")
            return
        if self.alpha == 1.0 and self.mu == 0.0:
            self.a = x_now
        else:
            d = self.a - x_now
            self.v = np.float32(self.mu) * self.v + d
            self.correct(np.float32(1 - self.alpha) * d - np.float32(self.alpha * self.mu) * self.v)
            self.a = self.a - np.float32(self.alpha) * (d + np.float32(self.mu) * self.v)
        self.taken(event.snapshot)
        if self.settles is not None:
            self.settles(self)
            self.server.send(links.Settled(event.snapshot))

    def taken(self, snapshot: int, refused: str = "") -> None:
        self.server.send(links.Taken(snapshot, refused))
        self.done("snapshot")

    def outstanding(self, applied: int) -> NDArray[np.float32]:
        """Sum of the slots past `applied`."""
        total = np.zeros(self.region.size, np.float32)
        for number, slot in self.pending.items():
            if number > applied:
                total += slot
        return total

    def correct(self, correction: NDArray[np.float32]) -> None:
        self.pending[self.open] += correction
        self.dirty |= set((np.flatnonzero(correction) // WIDTH).tolist())

    def mix(self, delta: NDArray[np.float32]) -> None:
        """An exchange moves the anchor: a += delta, pending += delta."""
        assert self.a is not None
        self.a = self.a + delta
        self.correct(delta)

    def seal(self) -> bool:
        """Hand out the open slot, if it holds anything and no other is out, as soon as the free buffer is free."""
        if self.out or not self.dirty:
            return False
        assert self.free is not None
        self.free.seal(self._seal, lambda: None)
        return bool(self.out)

    def _seal(self) -> None:
        self.sealed = self.pending[self.open].copy()
        self.server.send(links.Slot(self.session, self.open, links.chunk_bits(sorted(self.dirty))))
        self.out, self.open, self.dirty = self.open, self.open + 1, set()
        self.begin_slot()
        assert self.free is not None
        self.free.sealed(self.out)

    def begin_slot(self) -> None:
        self.pending[self.open] = self.region.buffers[self.open % 2]
        self.pending[self.open][:] = 0.0


class PumpedDaemon(LedgerDaemon):
    """Pumped by its own thread and by the test's. The test does everything else under `lock`."""

    def __init__(self, home: Path, **options: Any) -> None:
        super().__init__(home, **options)
        self.lock = threading.RLock()

    def pump(self, timeout: float = 0.0) -> None:
        with self.lock:
            poll = self.awaited()
        # A thread that waits with the lock and repeats that at once can keep the other one from it for ever.
        poll.poll(1000 * timeout)
        with self.lock:
            super().pump()
