"""One machine of the simulated network: its daemon, its disk, the memory its training process shares, and its jobs.

What a host is and what a job does to its vectors, at one instant. Nothing here may know of time, links or other hosts.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.algorithms.registry import ALGORITHMS
from gossipdp.codecs.base import Vector
from gossipdp.protocol import jobs
from gossipdp.protocol.peer import Peer, PeerConfig
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.protocol.wire.messages import Member

__all__ = ["Checkpoint", "Host", "Region", "perform", "sign", "verify"]


class Region(NamedTuple):
    """The memory a training process shares with its daemon."""

    x: Vector
    slots: tuple[Vector, Vector]

    @classmethod
    def of(cls, size: int) -> Region:
        x, first, second = (np.zeros(size, np.float32) for _ in range(3))
        return cls(x, (first, second))


@dataclass(frozen=True)
class Checkpoint:
    """A host's disk: what a restarted peer may go on from."""

    schema: bytes
    clock: int
    rounds: int
    a: Vector
    v: Vector


@dataclass(eq=False)
class Host:
    """One machine. `life` counts its starts and stops, and voids what was scheduled for an earlier one."""

    index: int
    config: PeerConfig
    id: bytes
    address: str
    outbound: bool = False
    """nobody can dial it; to be set before it starts"""
    downlink: float | None = None
    """bytes per second that reach it on all data lanes together; None: no limit"""
    incarnation: int = 0
    life: int = 0
    peer: Peer | None = None
    algorithm: Any = field(default_factory=Pairwise)
    """that of the config's strategy"""
    checkpoint: Checkpoint | None = None
    remembered: tuple[Member, ...] = ()
    pinned: list[Checkpoint] = field(default_factory=list)
    """checkpoints of what this host has given up for another side's model"""
    region: Region | None = None
    bound: Region | None = None
    """the region the ledger works on: `region`, once the Bind job has run"""
    slowness: float = 1.0
    """its jobs take so many times as long"""
    step_slowness: float = 1.0
    """its training steps take so many times as long"""
    usual_slowness: float = 1.0
    """the same while no fault slows it down"""
    paused_until: float = 0.0
    put_off: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    """what was due during a pause, in order"""
    waiting: deque[tuple[jobs.Job[object], Region | None]] = field(default_factory=deque)
    """jobs, and the region there was when each was asked for"""
    working: bool = False
    picked_up: float = 0.0
    wakes_at: float = float("inf")
    timer: float | None = None
    """what the peer said when it was asked last"""

    def forget(self) -> None:
        """All vectors are gone, as when a process begins."""
        self.algorithm = ALGORITHMS[self.config.algorithm]()
        self.bound = self.region = None

    @property
    def name(self) -> str:
        return f"p{self.index}"

    @property
    def running(self) -> Peer:
        assert self.peer is not None, f"{self.name} is down"
        return self.peer


def perform(host: Host, job: jobs.Job[object]) -> object:
    """Carry a job out; those that are the driver's own are done here."""
    match job:
        case jobs.Bind():
            assert host.bound is not None
            return host.algorithm.ledger.bind(host.bound.x, host.bound.slots)
        case jobs.Unbind():
            host.bound = None
            return host.algorithm.ledger.unbind()
        case jobs.Restore():
            return _restore(host)
        case jobs.Keep(reason):
            _keep(host, reason)
            return None
    return host.algorithm.run(job)


def _restore(host: Host) -> jobs.Restored | None:
    saved = host.checkpoint
    if saved is None:
        return None
    schema = Schema.from_bytes(saved.schema)
    host.algorithm.allocate(schema.size, schema.trainable, chunk_parameters(schema.size, host.config.most_chunk))
    host.algorithm.ledger.a[:] = saved.a
    host.algorithm.ledger.v[:] = saved.v
    return jobs.Restored(saved.schema, saved.clock, saved.rounds)


def _keep(host: Host, reason: str) -> None:
    model, ledger, peer = host.running.model, host.algorithm.ledger, host.running
    assert model is not None
    host.checkpoint = Checkpoint(
        model.schema_bytes, peer.state_clock, peer.rounds.rounds, ledger.a.copy(), ledger.v.copy()
    )
    if reason == "apart":
        host.pinned.append(host.checkpoint)


def sign(peer: bytes, data: bytes) -> bytes:
    """Stands in for Ed25519, whose strength is not the subject here."""
    return hashlib.blake2b(data, key=peer, digest_size=64).digest()


def verify(peer: bytes, data: bytes, signature: bytes) -> bool:
    return sign(peer, data) == signature
