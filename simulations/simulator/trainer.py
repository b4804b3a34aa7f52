"""A training process in virtual time. It steps, submits snapshots and drains corrections (algorithms section 1).

It never waits. A step is due every `step_time`, whatever the daemon does. A sealed slot is drained at a step boundary,
perhaps some steps late, and before a snapshot. A snapshot is submitted when one is due, the last was taken and the
buffer is free. The process keeps its own sum of steps in fp64, from which `invariants` computes what x must be. It may
die at any time and loses its memory then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs import moments as codec
from gossipdp.codecs.blocks import BLOCK
from gossipdp.protocol.events import Event, Pace, SessionOpened, SessionRefused, SlotSealed, SnapshotTaken
from gossipdp.protocol.jobs import Frozen
from gossipdp.protocol.peer import Peer
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.claims import Live
from gossipdp.protocol.transfer.moments import Moments, chunk_sizes
from simulations.simulator.host import Host
from simulations.simulator.network import Network

__all__ = ["Trainer", "TrainerConfig"]

_HEARD = (SessionOpened, SessionRefused, Pace, SlotSealed, SnapshotTaken)

LINK_DELAY = 0.001
"""seconds that a message takes between daemon and training process"""


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    step_time: float = 0.2
    """seconds per step"""
    rate: float = 0.05
    """step size: x moves by -rate (x - optimum) + noise, stochastic gradient descent on a quadratic"""
    noise: float = 0.02
    momentum: float = 0.0
    """of the steps: what a step moves, times this, is part of the next step"""
    latest_drain: int = 3
    """most steps by which a sealed slot is drained late"""
    tells: int = 0
    """rounds between two reports of the optimizer's moments; 0: the optimizer has none"""


class Trainer:
    """One training process.

    Args:
        number: number of the process in the run; seeds its noise.
        done: callback after a change of x: "load", "step" or "drain", and the chunks concerned. Also called with "tell"
            after a report of `moments`, and with "inherit" after the optimizer took `moments` from the daemon.
    """

    def __init__(
        self,
        network: Network,
        host: Host,
        schema: Schema,
        config: TrainerConfig,
        number: int,
        done: Callable[[Trainer, str, tuple[int, ...]], None],
    ) -> None:
        self.host, self.config, self.number = host, config, number
        self._network, self._schema, self._done = network, schema, done
        self._random = network.random(f"trainer/{host.index}/{number}")
        rows = np.random.Generator(np.random.PCG64(self._random.getrandbits(64)))
        self._noise = (config.noise * rows.standard_normal(2 * schema.size)).astype(np.float32)
        self.optimum = _optimum(schema.size)
        """optimum of its quadratic"""
        self.x: NDArray[np.float32] = rows.standard_normal(schema.size).astype(np.float32)
        """live parameters; the process's own until the daemon sends the network's"""
        self.since: NDArray[np.float64] = np.zeros(schema.size)
        """progress since the last snapshot that an outer step used, for each chunk"""
        self.submitted: NDArray[np.float64] = np.zeros(schema.size)
        """`since` at the last submission"""
        self._gradient, self._moved = np.zeros_like(self.x), np.empty_like(self.since)
        self.alive, self.session, self.applied, self.steps = True, 0, 0, 0
        self.moments: Moments | None = None
        self._optimizer_steps = self._rounds = 0
        self.refused = ""
        self.drained_at = network.now
        self._every, self._since_submit, self._under_way = 1, 0, 0
        self._outstanding = False
        self._sealed: int | None = None
        """while it holds the region's token: number of the last slot that was sealed"""
        self._snapshots = 0
        self.clock = 0
        """the network's clock in steps, as far as this process knows it"""
        self.kept = 0
        """sessions that began with the process's own parameters"""
        self._live: Live | None = None
        """its state at its last attachment"""
        self._slots: deque[tuple[int, tuple[int, ...], int]] = deque()
        self._stepping = False
        self._moving = True
        self._spans: list[slice] = []
        """span of each chunk"""
        self.attach()

    def attach(self) -> None:
        """Ask the daemon for a session, at the start and after each restart of the daemon. Steps go on meanwhile."""
        if self._stepping:
            self._since_submit, self._under_way = self._since_submit + self._under_way, 0
            self._live = Live(self.clock, self._since_submit, 8 * self._since_submit)
            self.since[:] = 0.0
        live = self._live
        self.region = self.host.share(self._schema.size)
        self.region.buffers[0][:] = self.x
        self.session, self._outstanding, self._sealed = 0, True, None
        self._slots.clear()
        schema, empty = self._schema.to_bytes(), self.config.tells > 0 and self._optimizer_steps == 0
        self._tell("attach", lambda peer: peer.attach(schema, self._network.now, moments=empty, live=live))

    def snapshot_used(self, span: slice) -> None:
        """An outer step used the last submitted snapshot on these parameters."""
        self.since[span] -= self.submitted[span]

    def stand_still(self) -> None:
        """From now on steps change nothing."""
        self._moving = False

    def die(self) -> None:
        """kill -9. The daemon notices the end of the link."""
        self.alive = False
        if self.host.peer is not None:
            self._tell("detach", self._detached, dead=True)

    def _detached(self, peer: Peer) -> None:
        self.region.free.detach()
        peer.detach(self._network.now)

    def _tell(self, kind: str, action: Callable[[Peer], object], *, dead: bool = False) -> None:
        network, host = self._network, self.host
        network.at(network.now + LINK_DELAY, kind, host, lambda: network.command(host, kind, action))

    # -- what the daemon says ---------------------------------------------------------------------------------

    def hear(self, event: Event) -> None:
        """Pass an event of the daemon over the link. It arrives a little later if the process still lives."""
        if not isinstance(event, _HEARD):
            return
        region = self.region
        if isinstance(event, SnapshotTaken):
            region.free.done("snapshot")

        def arrive() -> None:
            if self.alive and region is self.host.region:
                self._heard(event)

        self._network.at(self._network.now + LINK_DELAY, f"hears {type(event).__name__}", self.host, arrive)

    def _heard(self, event: Event) -> None:
        match event:
            case SessionOpened(session, kept):
                self.session, self.applied, self._outstanding = session, 0, False
                self._slots.clear()
                self.kept += kept
                if kept and self._live is not None:
                    self._since_submit -= self._live.steps
                else:
                    self._since_submit, self.clock = 0, self.host.running.view.clock
                    self.since[:] = 0.0
                    self.x[:] = self.region.buffers[0]
                self._every = self.host.running.view.every
                self._spans = self._schema.spans()
                self._done(self, "load", tuple(range(self.host.algorithm.ledger.chunks)))
                self._inherit(self.host.running.view.moments)
                free = self.region.free
                self._tell("loaded", lambda peer: free.done("model"))
                if not self._stepping:
                    self._stepping = True
                    self._next_step()
            case SessionRefused(code):
                self.refused = code
            case Pace(every):
                self._every = every
            case SlotSealed(slot, chunks):
                due = self.steps + self._random.randint(0, self.config.latest_drain)
                self._slots.append((slot, chunks, due))
            case SnapshotTaken():
                self._outstanding, self._under_way = False, 0
                self.clock = max(self.clock, self.host.running.view.clock + self._since_submit)
                self._rounds += 1
                if self.config.tells and self._rounds % self.config.tells == 0:
                    self._tell_moments()

    def _inherit(self, held: Moments | None) -> None:
        """Take the daemon's moments if the optimizer has made no step."""
        if self.config.tells and self._optimizer_steps == 0 and held is not None:
            self.moments, self._optimizer_steps = held, held.steps
            self._done(self, "inherit", ())

    def _tell_moments(self) -> None:
        """Report moments: any codes, different each time."""
        start, chunks = self._random.randrange(self._schema.trainable), list[Frozen]()
        for size in chunk_sizes(self._schema):
            codes = self._noise[start : start + size].view(np.uint8)
            scales = np.full(-(-size // BLOCK), 1 / 127, "<f4").view(np.uint8)
            payload = np.concatenate([codes[:size], scales, codes[-size:], scales]).data
            chunks.append(Frozen(payload, codec.digest(payload)))
        self.moments = moments = Moments(self._optimizer_steps, tuple(chunks))
        self._done(self, "tell", ())
        self._tell("moments", lambda peer: peer.hold_moments(moments, self._network.now))

    # -- what it does -----------------------------------------------------------------------------------------

    def _next_step(self) -> None:
        """Schedule the next step. It does not depend on the daemon's life."""

        def step() -> None:
            if self.alive:
                self._step()
                self._next_step()

        due = self._network.now + self.config.step_time * self.host.step_slowness
        self._network.at(due, f"{self.host.name} steps", None, step)

    def _step(self) -> None:
        while self._slots and self._slots[0][2] <= self.steps:
            self._drain(*self._slots.popleft()[:2])
        start = self._random.randrange(len(self.x))
        if self._moving:
            x, gradient, moved = self.x, self._gradient, self._moved
            moved[:] = x
            gradient *= np.float32(self.config.momentum)
            gradient += np.float32(self.config.rate) * (x - self.optimum)
            x -= gradient
            x += self._noise[start : start + len(x)]
            np.subtract(x, moved, out=moved)
            self.since += moved
        self.steps += 1
        self._optimizer_steps += 1
        self._since_submit += 1
        self.clock += 1
        self._done(self, "step", ())
        if self._since_submit >= self._every and not self._outstanding:
            self._submit()

    def _submit(self) -> None:
        if self._sealed is None:
            self._sealed = self.region.take()
        while self._slots:
            self._drain(*self._slots.popleft()[:2])
        if self._sealed != self.applied:
            return  # a slot is being sealed, or its message is on its way
        self._sealed, region = None, self.region
        region.buffers[self.applied % 2][:] = self.x
        self.submitted[:] = self.since
        self._outstanding = True
        self._snapshots += 1
        session, snapshot, applied, steps = self.session, self._snapshots, self.applied, self._since_submit
        self._since_submit, self._under_way = 0, steps
        network = self._network

        def submit(peer: Peer) -> None:
            region.free.received("snapshot")
            peer.submit(session, snapshot, applied, steps, 8 * steps, network.now)

        self._tell("submit", submit)

    def _drain(self, slot: int, chunks: tuple[int, ...]) -> None:
        """Add the slot's chunks to x and report it."""
        for chunk in chunks:
            span = self._spans[chunk]
            self.x[span] += self.region.buffers[slot % 2][span]
        self.applied, self.drained_at = slot, self._network.now
        self._done(self, "drain", chunks)
        session, network = self.session, self._network
        self._tell("slot applied", lambda peer: peer.slot_applied(session, slot, network.now))


def _optimum(size: int) -> NDArray[np.float32]:
    """The optimum of all replicas."""
    return np.cos(np.arange(size, dtype=np.float32))
