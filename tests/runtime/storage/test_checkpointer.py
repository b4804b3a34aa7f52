"""Checkpoints beside the running peer: whole, verified, and an error if the disk fails."""

import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from gossipdp.algorithms.ledger import Ledger
from gossipdp.errors import DataError
from gossipdp.protocol.schema import Schema
from gossipdp.runtime.files import Files
from gossipdp.runtime.storage.checkpoint import CheckpointMeta
from gossipdp.runtime.storage.checkpointer import IN_FLIGHT, PIECE, SLOWEST, Checkpointer
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
    ledger.lookahead[:] = 0.5, 0.25, 0.5
    return ledger


class Copies:
    """Stands in for the compute thread: copies wait until the test runs them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def queue(self, function: Callable[[], Any], done: Callable[[Any], None], place: int | None = None) -> None:
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


def test_checkpoint_holds_anchor_momentum_and_lookahead_of_every_chunk(tmp_path: Path, ledger: Ledger) -> None:
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
    assert np.array_equal(checkpoint.read("lookahead"), ledger.lookahead)
    assert not checkpointer.busy
    checkpointer.close()


def test_training_that_ends_in_the_middle_of_a_save_is_in_the_model_of_each_chunk_once(
    tmp_path: Path, ledger: Ledger
) -> None:
    copies, outcomes = Copies(), list[object]()
    store = Store(tmp_path / "checkpoints")
    checkpointer = Checkpointer(store, copies.queue, outcomes.append)
    ahead = np.repeat(ledger.lookahead, [256, 256, 188])
    point = ledger.a + ahead * ledger.v
    checkpointer.save(ledger, META, SCHEMA.to_bytes())
    poll = select.poll()
    poll.register(checkpointer, select.POLLIN)
    made = 0
    while not outcomes:
        assert poll.poll(5000)
        checkpointer.collect()
        while copies:
            copies.run()
            made += 1
            if made == 2:  # of the anchor's three chunks
                for chunk in range(ledger.chunks):
                    ledger.rest(chunk)
    checkpoint, _ = store.latest()
    checkpointer.close()
    assert checkpoint is not None and np.array_equal(ledger.a, point)
    saved = checkpoint.read("anchor") + np.repeat(checkpoint.read("lookahead"), [256, 256, 188]) * checkpoint.read(
        "momentum"
    )
    assert np.array_equal(saved, point) and not np.array_equal(checkpoint.read("anchor"), point)


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
    last = 2 + 2 * ledger.chunks
    assert patience.pop(last) == PIECE + (8 * 700 + 4 * ledger.chunks) / SLOWEST and set(patience.values()) == {PIECE}
    assert checkpointer.steps == last + 1 and checkpointer.patience == PIECE
    checkpointer.close()


class Gate(Files):
    """Writes nothing of the state until `open` is set, and then fails if `fails`."""

    def __init__(self, fails: bool = False) -> None:
        self.open, self.fails = threading.Event(), fails

    def write(self, file: IO[bytes], piece: memoryview) -> None:
        if len(piece) == 1024:  # a chunk
            self.open.wait()
            if self.fails:
                raise OSError(5, "Input/output error")
        super().write(file, piece)


@pytest.mark.parametrize("fails", [False, True])
def test_few_pieces_are_in_flight__and_a_failure_waits_for_them(tmp_path: Path, fails: bool) -> None:
    ledger = Ledger(256 * 10, 256 * 10, 256)
    ledger.a[:], ledger.v[:] = np.arange(2560), -1.0
    gate, copies, outcomes = Gate(fails), Copies(), list[object]()
    store = Store(tmp_path / "checkpoints", files=gate)
    checkpointer = Checkpointer(store, copies.queue, outcomes.append)
    checkpointer.save(ledger, META, SCHEMA.to_bytes())
    poll = select.poll()
    poll.register(checkpointer, select.POLLIN)
    assert poll.poll(5000)
    checkpointer.collect()
    copied = 0
    while copies:
        copies.run()
        copied += 1
    assert copied == IN_FLIGHT and not outcomes
    gate.open.set()
    save(checkpointer, ledger, copies, outcomes)  # goes on with the one under way
    if fails:
        assert len(outcomes) == 1 and isinstance(outcomes[0], DataError) and not checkpointer.busy
        assert list((tmp_path / "checkpoints").iterdir()) == []
        gate.fails = False
        outcomes.clear()
        save(checkpointer, ledger, copies, outcomes)
    read = {"anchor": np.zeros(2560, np.float32), "momentum": np.zeros(2560, np.float32)}
    checkpoint, notices = store.latest(lambda _: read)
    assert checkpoint is not None and not notices and outcomes == [checkpoint.path]
    assert np.array_equal(read["anchor"], ledger.a) and np.array_equal(read["momentum"], ledger.v)
    checkpointer.close()
