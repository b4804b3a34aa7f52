"""Checkpoints and nodes of the tests of the daemon. Not a test."""

import json
import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gossipdp.protocol.transfer.claims import Held
from gossipdp.runtime.node import Node
from gossipdp.runtime.observability.status import Status
from gossipdp.runtime.storage.checkpoint import CheckpointMeta
from gossipdp.runtime.storage.store import Store
from peers.control import socket_path

RUN = b"\x07" * 16
Start = Callable[[], Node]


class NoSignals:
    def __init__(self, node: Node, supervisor: int = 0) -> None:
        pass

    def filenos(self) -> list[int]:
        return []

    def tick(self, now: float) -> None:
        pass

    def close(self) -> None:
        pass


def save(where: Path, clock: int, run: bytes = RUN, network: str = "tiny", peer: str = "cd" * 32) -> Path:
    meta = CheckpointMeta(
        network=network, run=run.hex(), peer=peer, incarnation=1, round=clock // 10, clock=clock, steps=clock,
        samples=clock, schema="ef" * 16, peer_rounds=clock // 20,
    )  # fmt: skip
    arrays = {"anchor": np.ones(8, np.float32), "momentum": np.zeros(8, np.float32)}
    return Store(where / "checkpoints").save(arrays, meta, b"schema")


def asked(node: Node, where: Path, verb: str) -> dict[str, Any]:
    """The answer to `verb`, while the loop of `node` runs."""
    with socket.socket(socket.AF_UNIX) as asker:
        asker.connect(str(socket_path(where)))
        asker.sendall(b'{"verb": "%s"}\n' % verb.encode())
        while not select.select([asker], [], [], 0.0)[0]:
            assert not node._finished
            node._turn()
        return dict(json.loads(asker.recv(1 << 20)))


def shown(status: Status) -> list[str]:
    """The notices that `status` shows."""
    return [str(each.notice) for each in status.notices]


def noticed(node: Node) -> dict[str, float]:
    """`gossipdp_notices_total` by code."""
    samples = [sample for family in node._metrics.registry.collect() for sample in family.samples]
    return {sample.labels["code"]: sample.value for sample in samples if sample.name == "gossipdp_notices_total"}


def held(node: Node) -> Held | None:
    """The checkpoint from which the peer would resume."""
    return node.peer._replica.resumes
