"""A training process in virtual time: it steps, submits and drains by the two verbs of algorithms section 1.

It never waits: a step is due every `step_time` whatever the daemon does; a sealed slot is added at a step boundary,
perhaps some steps late; a snapshot is submitted when one is due and the last has been taken. It counts its own steps
in fp64, so that `invariants` can tell what x must be. It may die at any time, and take its memory with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gossipdp.codecs import moments as codec
from gossipdp.protocol.events import Event, Pace, SessionOpened, SessionRefused, SlotSealed, SnapshotTaken
from gossipdp.protocol.jobs import Frozen
from gossipdp.protocol.peer import Peer
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.claims import Live
from gossipdp.protocol.transfer.moments import Moments, chunk_sizes
from simulations.simulator.host import Host, Region
from simulations.simulator.network import Network

__all__ = ["Trainer", "TrainerConfig"]

_HEARD = (SessionOpened, SessionRefused, Pace, SlotSealed, SnapshotTaken)

LINK_DELAY = 0.001
"""seconds a word takes between daemon and training process"""


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    step_time: float = 0.2
    """seconds"""
    rate: float = 0.05
    """x moves by -rate (x - optimum) + noise: stochastic gradient descent on a quadratic"""
    noise: float = 0.02
    latest_drain: int = 3
    """a sealed slot is added up to so many steps late"""
    tells: int = 0
    """rounds between two times that it tells its optimizer's moments, and begins with others'; 0: it has none"""


class Trainer:
    """Args:

    done: called with what has just been done to x, "load", "step" or "drain", and the chunks concerned; or with "tell"
        or "inherit": `moments` are the newest that were told, or another's that the optimizer begins with.
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
        """what it trains towards"""
        self.x: NDArray[np.float32] = rows.standard_normal(schema.size).astype(np.float32)
        """the live parameters; its own start, until the daemon says otherwise"""
        self.since: NDArray[np.float64] = np.zeros(schema.size)
        """progress since the last snapshot the outer step has used, chunk by chunk"""
        self.submitted: NDArray[np.float64] = np.zeros(schema.size)
        """`since` at the last submit"""
        self._gradient, self._moved = np.empty_like(self.x), np.empty_like(self.since)
        self.alive, self.session, self.applied, self.steps = True, 0, 0, 0
        self.moments: Moments | None = None
        self._optimizer_steps = self._rounds = 0
        self.refused = ""
        self.drained_at = network.now
        self._every, self._since_submit, self._under_way = 1, 0, 0
        self._outstanding = False
        self._snapshots = 0
        self.clock = 0
        """the network's, in steps, as far as this process knows"""
        self.kept = 0
        """sessions that began with its own parameters"""
        self._live: Live | None = None
        """what it said of itself when it attached last"""
        self._slots: deque[tuple[int, tuple[int, ...], int]] = deque()
        self._stepping = False
        self._moving = True
        self._spans: list[slice] = []
        """of the chunks"""
        self.attach()

    def attach(self) -> None:
        """Ask the daemon for a session, at the start and after a restart of the daemon. Steps go on meanwhile."""
        if self._stepping:
            self._since_submit, self._under_way = self._since_submit + self._under_way, 0
            self._live = Live(self.clock, self._since_submit, 8 * self._since_submit)
            self.since[:] = 0.0
        live = self._live
        self.region = self.host.region = Region.of(self._schema.size)
        self.region.x[:] = self.x
        self.session, self._outstanding = 0, True
        self._slots.clear()
        schema, empty = self._schema.to_bytes(), self.config.tells > 0 and self._optimizer_steps == 0
        self._tell("attach", lambda peer: peer.attach(schema, self._network.now, moments=empty, live=live))

    def stand_still(self) -> None:
        """Go on with steps that move nothing."""
        self._moving = False

    def die(self) -> None:
        """kill -9: the daemon hears of it by the end of the link."""
        self.alive = False
        if self.host.peer is not None:
            self._tell("detach", lambda peer: peer.detach(self._network.now), dead=True)

    def _tell(self, kind: str, action: Callable[[Peer], object], *, dead: bool = False) -> None:
        network, host = self._network, self.host
        network.at(network.now + LINK_DELAY, kind, host, lambda: network.command(host, kind, action))

    # -- what the daemon says ---------------------------------------------------------------------------------

    def hear(self, event: Event) -> None:
        """An event of the daemon that goes over the link: it arrives a little later, if the process still lives."""
        if not isinstance(event, _HEARD):
            return
        region = self.region

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
                    self._since_submit, self.clock = 0, self.host.running.clock
                    self.since[:] = 0.0
                    self.x[:] = self.region.x
                self._every = self.host.running.every
                self._spans = self._schema.spans(self.host.config.most_chunk)
                self._done(self, "load", tuple(range(self.host.algorithm.ledger.chunks)))
                self._inherit(self.host.running.moments.held)
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
                self.clock = max(self.clock, self.host.running.clock + self._since_submit)
                self._rounds += 1
                if self.config.tells and self._rounds % self.config.tells == 0:
                    self._tell_moments()

    def _inherit(self, held: Moments | None) -> None:
        """What the daemon has for an optimizer that has made no step."""
        if self.config.tells and self._optimizer_steps == 0 and held is not None:
            self.moments, self._optimizer_steps = held, held.steps
            self._done(self, "inherit", ())

    def _tell_moments(self) -> None:
        """Any will do that are a mean and a mean square; no two times the same."""
        start, chunks = self._random.randrange(self._schema.trainable), list[Frozen]()
        for size in chunk_sizes(self._schema):
            gradient = self._noise[start : start + size]
            second = codec.encode_second(gradient * gradient)
            payload = np.concatenate([second, codec.encode_first(gradient, second.data)]).data
            chunks.append(Frozen(payload, codec.digest(payload)))
        self.moments = moments = Moments(self._optimizer_steps, tuple(chunks))
        self._done(self, "tell", ())
        self._tell("moments", lambda peer: peer.moments.hold(moments, self._network.now))

    # -- what it does -----------------------------------------------------------------------------------------

    def _next_step(self) -> None:
        """Whatever becomes of the daemon: a step has no life but the process's own."""

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
            np.subtract(x, self.optimum, out=gradient)
            gradient *= np.float32(self.config.rate)
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
        self.region.x[:] = self.x
        self.submitted[:] = self.since
        self._outstanding = True
        self._snapshots += 1
        session, snapshot, applied, steps = self.session, self._snapshots, self.applied, self._since_submit
        self._since_submit, self._under_way = 0, steps
        network = self._network
        self._tell("submit", lambda peer: peer.submit(session, snapshot, applied, steps, 8 * steps, network.now))

    def _drain(self, slot: int, chunks: tuple[int, ...]) -> None:
        """x += slot on its chunks, then say so."""
        for chunk in chunks:
            span = self._spans[chunk]
            self.x[span] += self.region.slots[slot % 2][span]
        self.applied, self.drained_at = slot, self._network.now
        self._done(self, "drain", chunks)
        session, network = self.session, self._network
        self._tell("slot applied", lambda peer: peer.slot_applied(session, slot, network.now))


def _optimum(size: int) -> NDArray[np.float32]:
    """The same for all replicas."""
    return np.cos(np.arange(size, dtype=np.float32))
