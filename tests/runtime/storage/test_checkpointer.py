"""Checkpoints beside the running peer: whole, verified, and an error if the disk fails."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossipdp.algorithms.ledger import Ledger
from gossipdp.errors import DataError
from gossipdp.protocol.schema import Schema
from gossipdp.runtime.files import Files
from gossipdp.runtime.storage.checkpoint import CheckpointMeta
from gossipdp.runtime.storage.checkpointer import PIECE, SLOWEST, Checkpointer
from gossipdp.runtime.storage.store import Store

SCHEMA = Schema.of([("w", (700,), "float32", "parameter")])
META = CheckpointMeta(
    network="t", run="00" * 16, peer="11" * 32, incarnation=1, round=2, clock=3, steps=4, samples=5, schema="22" * 16
)


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(SCHEMA.size, SCHEMA.trainable, 256)
    ledger.a[:] = np.arange(SCHEMA.size)
    ledger.v[:] = -1.0
    return ledger


class Copies:
    """Stands in for the compute thread: copies wait until the test runs them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def queue(self, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._waiting.append((function, done))

    def run(self) -> None:
        function, done = self._waiting.pop(0)
        done(function())


def save(checkpointer: Checkpointer, ledger: Ledger, copies: Copies, outcomes: list[object]) -> None:
    """Drive the checkpointer as the node does: run each copy, and collect until an outcome is there."""
    checkpointer.save(ledger, META, SCHEMA.to_bytes())
    poll = select.poll()
    poll.register(checkpointer, select.POLLIN)
    while not outcomes:
        assert poll.poll(5000), "the storage thread said nothing for 5 s"
        checkpointer.collect()
        while copies:
            copies.run()


def test_checkpoint_holds_anchor_and_momentum_of_every_chunk(tmp_path: Path, ledger: Ledger) -> None:
    copies = Copies()
    outcomes: list[object] = []
    store = Store(tmp_path / "checkpoints")
    checkpointer = Checkpointer(store, copies.queue, outcomes.append)
    save(checkpointer, ledger, copies, outcomes)
    checkpoint, notices = store.latest()
    assert checkpoint is not None and not notices and outcomes == [checkpoint.path]
    assert checkpoint.meta == META and Schema.from_bytes(checkpoint.schema) == SCHEMA
    assert np.array_equal(checkpoint.read("anchor"), ledger.a)
    assert np.array_equal(checkpoint.read("momentum"), ledger.v)
    assert not checkpointer.busy
    checkpointer.close()


def test_chunks_are_copied_one_at_a_time(tmp_path: Path, ledger: Ledger) -> None:
    copies = Copies()
    outcomes: list[object] = []
    checkpointer = Checkpointer(Store(tmp_path / "checkpoints"), copies.queue, outcomes.append)
    checkpointer.save(ledger, META, SCHEMA.to_bytes())
    checkpointer.save(ledger, META, SCHEMA.to_bytes())  # the second request changes nothing
    poll = select.poll()
    poll.register(checkpointer, select.POLLIN)
    most = 0
    while not outcomes:
        assert poll.poll(5000)
        checkpointer.collect()
        most = max(most, len(copies))
        while copies:
            copies.run()
    assert most == 1
    checkpointer.close()


class FullDisk(Files):
    def write(self, file: object, piece: memoryview) -> None:  # type: ignore[override]
        raise OSError(28, "No space left on device")


def test_full_disk__an_outcome__and_the_next_checkpoint_is_tried(tmp_path: Path, ledger: Ledger) -> None:
    copies = Copies()
    outcomes: list[object] = []
    store = Store(tmp_path / "checkpoints", files=FullDisk())
    checkpointer = Checkpointer(store, copies.queue, outcomes.append)
    save(checkpointer, ledger, copies, outcomes)
    assert isinstance(outcomes[0], DataError) and outcomes[0].code == "GD-602" and not checkpointer.busy
    store.files = Files()
    outcomes.clear()
    save(checkpointer, ledger, copies, outcomes)
    assert isinstance(outcomes[0], Path)
    checkpointer.close()


class Recording(Files):
    """Records the threads that removed something."""

    def __init__(self) -> None:
        self.removed_by: list[str] = []

    def remove(self, path: Path) -> None:
        self.removed_by.append(threading.current_thread().name)
        super().remove(path)


def test_closed_in_the_middle_of_a_save__the_storage_thread_removes_everything(tmp_path: Path, ledger: Ledger) -> None:
    copies = Copies()
    files = Recording()
    checkpointer = Checkpointer(Store(tmp_path / "checkpoints", files=files), copies.queue, lambda outcome: None)
    checkpointer.save(ledger, META, SCHEMA.to_bytes())
    poll = select.poll()
    poll.register(checkpointer, select.POLLIN)
    while not copies:
        assert poll.poll(5000)
        checkpointer.collect()
    copies.run()
    checkpointer.close()
    assert list((tmp_path / "checkpoints").iterdir()) == [] and files.removed_by == ["storage"]


def test_each_step_counts__and_the_last_has_time_for_buffered_bytes(tmp_path: Path, ledger: Ledger) -> None:
    copies = Copies()
    outcomes: list[object] = []
    checkpointer = Checkpointer(Store(tmp_path / "checkpoints"), copies.queue, outcomes.append)
    checkpointer.save(ledger, META, SCHEMA.to_bytes())
    poll = select.poll()
    poll.register(checkpointer, select.POLLIN)
    patience = {}
    while not outcomes:
        patience[checkpointer.steps] = checkpointer.patience
        assert poll.poll(5000)
        checkpointer.collect()
        while copies:
            copies.run()
    last = 1 + 2 * ledger.chunks
    assert patience == dict.fromkeys(range(last), PIECE) | {last: PIECE + 8 * 700 / SLOWEST}
    assert checkpointer.steps == last + 1 and checkpointer.patience == PIECE
    checkpointer.close()
