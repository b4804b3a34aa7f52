"""The objects that every part of a node uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.protocol.peer import Peer
from gossipdp.runtime.node.config import NodeConfig
from gossipdp.runtime.node.records import Records
from gossipdp.runtime.observability.metrics import Metrics
from gossipdp.runtime.observability.notices import Notices
from gossipdp.runtime.observability.status import Status

__all__ = ["NodeContext"]


@dataclass(frozen=True, slots=True)
class NodeContext:
    """run: returns the run this peer belongs to, or b"". clock: monotonic time in seconds."""

    config: NodeConfig
    peer: Peer
    algorithm: Pairwise
    incarnation: int
    status: Status
    metrics: Metrics
    notices: Notices
    records: Records
    run: Callable[[], bytes]
    clock: Callable[[], float]
