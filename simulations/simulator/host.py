"""One machine of the simulated network: its daemon, its disk, the memory shared with a training process, its jobs."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.codecs.base import Vector
from gossipdp.protocol import jobs
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.peer import Peer, PeerConfig
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.wire.messages import PROTOCOL_VERSION, Decision, Lane, Member
from gossipdp.runtime.link import FreeBuffer
from simulations.simulator.settings import pairwise

__all__ = ["Checkpoint", "Host", "Region", "perform", "sign", "verify"]


class Region:
    """Memory that a training process shares with its daemon, as `gossipdp.runtime.link.Region`."""

    def __init__(self, size: int) -> None:
        self.buffers: tuple[Vector, Vector] = (np.zeros(size, np.float32), np.zeros(size, np.float32))
        self._token: int | None = None
        self.free = FreeBuffer(self)
        """the daemon's side"""

    def take(self) -> int | None:
        taken, self._token = self._token, None
        return taken

    def give(self, sealed: int) -> None:
        self._token = sealed


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint on a host's disk."""

    schema: bytes
    clock: int
    rounds: int
    a: Vector
    v: Vector
    lookahead: Vector | float = 0.0


@dataclass(eq=False)
class Host:
    """One machine. `life` counts its starts and stops. Events that were scheduled in another life are void."""

    index: int
    config: PeerConfig
    id: bytes
    address: str
    outbound: bool = False
    """no other host can dial it"""
    operator: bytes = b""
    """key whose decisions about members it follows"""
    version: int = PROTOCOL_VERSION
    """newest protocol version that it speaks"""
    carries: bool = False
    """it carries what others send to outbound-only hosts"""
    only_carries: bool = False
    """it has no model, and never trains"""
    relays: tuple[bytes, ...] = ()
    """hosts that are to carry to it"""
    sent: Counter[Lane] = field(default_factory=Counter)
    """bytes that its peers have sent"""
    attending: set[bytes] = field(default_factory=set)
    """members that it carries to"""
    budget: float | None = None
    """bytes per second of all data lanes that it carries for others together; None: unlimited"""
    pairs: set[tuple[int, int]] = field(default_factory=set)
    """senders and targets between which it has carried: it carries the answers too"""
    ways: dict[tuple[int, int], deque[tuple[int, Callable[[float], None]]]] = field(default_factory=dict)
    """messages that wait for the budget, and what sends them on: by sender and target, the next pair first"""
    carrying: bool = False
    """the budget lets one of them through now"""
    carried: Counter[Lane] = field(default_factory=Counter)
    """bytes that it has carried for others"""
    offers: int = 0
    """offers of exchanges among them"""
    downlink: float | None = None
    """bytes per second of all data lanes to it together; None: unlimited"""
    incarnation: int = 0
    life: int = 0
    peer: Peer | None = None
    algorithm: Pairwise = field(default_factory=pairwise)
    checkpoint: Checkpoint | None = None
    remembered: tuple[Member, ...] = ()
    known: Mapping[bytes, float] = field(default_factory=dict)
    """seconds for which earlier lives knew each member, on its disk"""
    decisions: tuple[Decision, ...] = ()
    """of the network's operator, on its disk"""
    pinned: list[Checkpoint] = field(default_factory=list)
    """models that this host gave up for another side's model"""
    region: Region | None = None
    bound: Region | None = None
    """region that the ledger works on: `region`, once the Bind job has run"""
    slowness: float = 1.0
    """factor of the time that its jobs take"""
    step_slowness: float = 1.0
    """factor of the time that its training steps take"""
    usual_slowness: float = 1.0
    """`step_slowness` without faults"""
    paused_until: float = 0.0
    postponed: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    """events that fell due during a pause, in order"""
    waiting: deque[tuple[jobs.Job[object], Region | None]] = field(default_factory=deque)
    """jobs, each with the region at the time of its request"""
    working: bool = False
    picked_up: float = 0.0
    wakes_at: float = float("inf")
    timer: float | None = None
    """the peer's timer after its last input"""

    def __post_init__(self) -> None:
        self.step_slowness = self.usual_slowness

    def begin_life(self, now: float) -> None:
        """Start the process with a new incarnation. Its vectors, jobs and timers are gone."""
        self.life += 1
        self.incarnation += 1
        self.forget()
        self.relays = ()
        self.attending.clear()
        self.pairs.clear()
        self.ways.clear()
        self.carrying = False
        self.waiting.clear()
        self.postponed.clear()
        self.working, self.picked_up, self.wakes_at, self.paused_until = False, now, float("inf"), 0.0

    def end_life(self, *, keep_disk: bool) -> None:
        """Kill the process. The disk keeps the last checkpoint and the members alive then."""
        if self.peer is not None and keep_disk:
            self.remembered = tuple(self.peer.view.alive)
            self.decisions = self.peer.view.decisions
        if not keep_disk:
            self.checkpoint, self.remembered, self.decisions = None, (), ()
        self.peer = None
        self.life += 1

    def save(self) -> None:
        """Write a checkpoint to the disk, unless the peer has no whole model."""
        if self.running.view.model is not None and self.running.view.whole:
            self.keep()

    def keep(self, *, pinned: bool = False) -> None:
        """Write a checkpoint to the disk.

        Args:
            pinned: keep it beside later ones.
        """
        peer, ledger = self.running, self.algorithm.ledger
        assert peer.view.model is not None
        self.checkpoint = Checkpoint(
            peer.view.model.schema_bytes,
            peer.view.state_clock,
            peer.view.model_rounds,
            ledger.a.copy(),
            ledger.v.copy(),
            ledger.lookahead.copy(),
        )
        if pinned:
            self.pinned.append(self.checkpoint)

    def unbind(self) -> None:
        """The ledger no longer works on shared memory."""
        self.bound = None
        self.algorithm.ledger.unbind()

    def tear(self, older: Checkpoint | None) -> None:
        """The last checkpoint is damaged: the one before takes its place."""
        self.checkpoint = older

    def share(self, size: int) -> Region:
        """Share new memory with a training process that attaches."""
        self.region = Region(size)
        return self.region

    def slow_down(self, *, jobs: float, steps: float) -> None:
        """Jobs take `jobs` times as long, and training steps `steps` times as long as usual."""
        self.slowness, self.step_slowness = jobs, self.usual_slowness * steps

    def forget(self) -> None:
        """Drop all vectors, as a new process does."""
        self.algorithm = pairwise()
        self.bound = self.region = None

    @property
    def name(self) -> str:
        return f"p{self.index}"

    @property
    def running(self) -> Peer:
        assert self.peer is not None, f"{self.name} is down"
        return self.peer


def perform(host: Host, job: jobs.Job[object]) -> object:
    """Carry out a job. Jobs of the driver are done here, all others by the algorithm."""
    match job:
        case jobs.Bind():
            assert host.bound is not None
            host.algorithm.ledger.bind(host.bound.buffers)
            return None
        case jobs.Unbind():
            host.unbind()
            return None
        case jobs.Restore():
            return _restore(host)
        case jobs.Keep(reason):
            host.keep(pinned=reason is Reason.APART)
            return None
    return host.algorithm.run(job)


def _restore(host: Host) -> jobs.Restored | None:
    saved = host.checkpoint
    if saved is None:
        return None
    schema = Schema.from_bytes(saved.schema)
    host.algorithm.allocate(schema.size, schema.trainable, chunk_parameters(schema.size), schema.tensors)
    host.algorithm.ledger.a[:] = saved.a
    host.algorithm.ledger.v[:] = saved.v
    host.algorithm.ledger.lookahead[:] = saved.lookahead
    return jobs.Restored(saved.schema, saved.clock, saved.rounds)


def sign(peer: bytes, data: bytes) -> bytes:
    """Replaces Ed25519, whose strength is not tested here."""
    return hashlib.blake2b(data, key=peer, digest_size=64).digest()


def verify(peer: bytes, data: bytes, signature: bytes) -> bool:
    return sign(peer, data) == signature
