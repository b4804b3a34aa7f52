"""What a node is built from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.peer import Peer
from gossipdp.runtime.link import LinkServer
from gossipdp.runtime.network.transport import Transport
from gossipdp.runtime.node.config import NodeConfig
from gossipdp.runtime.node.ending import Outside
from gossipdp.runtime.node.records import Records
from gossipdp.runtime.observability.history import History
from gossipdp.runtime.observability.metrics import Metrics
from gossipdp.runtime.observability.page.published import Published
from gossipdp.runtime.room import Room
from gossipdp.runtime.storage.spill import Spill
from gossipdp.runtime.storage.store import Store

__all__ = ["NodeParts"]


@dataclass(frozen=True, kw_only=True)
class NodeParts:
    """The objects that a node drives. Its builder makes them once."""

    config: NodeConfig
    peer: Peer
    """not joined yet; the daemon calls `join` on it before the node runs"""
    admission: Admission
    """the peer's"""
    algorithm: Pairwise
    """carries out the peer's jobs"""
    transport: Transport
    """closed by the node, like `link`, `store` and `metrics`"""
    link: LinkServer
    room: Room
    """tells beforehand whether a model fits in memory"""
    store: Store
    metrics: Metrics
    spill: Spill
    """keeps moments"""
    incarnation: int
    """of this start"""
    records: Records
    """the files of the home"""
    history: History
    """what this peer has been through; the node adds to it"""
    published: Published
    """takes what the status page shows"""
    outside: Outside | None = None
    """what the end of a run causes outside the node"""
    clock: Callable[[], float] = time.monotonic
    """monotonic time in seconds"""
    wall: Callable[[], float] = time.time
    """seconds since 1970"""
