"""Checkpoints beside the running peer: whole, verified, and honest about a disk that fails."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gossipdp.algorithms.ledger import Ledger
from gossipdp.codecs.base import Vector
from gossipdp.errors import DataError
from gossipdp.protocol.schema import Schema
from gossipdp.runtime.files import Files
from gossipdp.runtime.storage.checkpointer import PIECE, SLOWEST, Keeper
from gossipdp.runtime.storage.store import CheckpointMeta, Store

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


def save(keeper: Keeper, ledger: Ledger, copies: list[Callable[[], Vector]], outcomes: list[object]) -> None:
    """Drive the keeper as the node does: run each copy asked for, and collect until an outcome is there."""
    keeper.save(ledger, META, SCHEMA.to_bytes())
    poll = select.poll()
    poll.register(keeper, select.POLLIN)
    while not outcomes:
        assert poll.poll(5000), "the storage thread said nothing for 5 s"
        keeper.collect()
        while copies:
            keeper.copied(copies.pop(0)())


def test_a_checkpoint_holds_anchor_and_momentum_of_every_chunk(tmp_path: Path, ledger: Ledger) -> None:
    copies: list[Callable[[], Vector]] = []
    outcomes: list[object] = []
    store = Store(tmp_path / "checkpoints")
    keeper = Keeper(store, copies.append, outcomes.append)
    save(keeper, ledger, copies, outcomes)
    checkpoint, notices = store.latest()
    assert checkpoint is not None and not notices and outcomes == [checkpoint.path]
    assert checkpoint.meta == META and Schema.from_bytes(checkpoint.schema) == SCHEMA
    assert np.array_equal(checkpoint.read("anchor"), ledger.a)
    assert np.array_equal(checkpoint.read("momentum"), ledger.v)
    assert not keeper.busy
    keeper.close()


def test_a_chunk_is_copied_when_its_turn_comes_not_before(tmp_path: Path, ledger: Ledger) -> None:
    copies: list[Callable[[], Vector]] = []
    outcomes: list[object] = []
    keeper = Keeper(Store(tmp_path / "checkpoints"), copies.append, outcomes.append)
    keeper.save(ledger, META, SCHEMA.to_bytes())
    keeper.save(ledger, META, SCHEMA.to_bytes())  # one at a time: the second asking changes nothing
    poll = select.poll()
    poll.register(keeper, select.POLLIN)
    most = 0
    while not outcomes:
        assert poll.poll(5000)
        keeper.collect()
        most = max(most, len(copies))
        while copies:
            keeper.copied(copies.pop(0)())
    assert most == 1
    keeper.close()


class FullDisk(Files):
    def write(self, file: object, piece: memoryview) -> None:  # type: ignore[override]
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_an_outcome_and_the_next_checkpoint_is_tried(tmp_path: Path, ledger: Ledger) -> None:
    copies: list[Callable[[], Vector]] = []
    outcomes: list[object] = []
    store = Store(tmp_path / "checkpoints", files=FullDisk())
    keeper = Keeper(store, copies.append, outcomes.append)
    save(keeper, ledger, copies, outcomes)
    assert isinstance(outcomes[0], DataError) and outcomes[0].code == "GD-602" and not keeper.busy
    store.files = Files()
    outcomes.clear()
    save(keeper, ledger, copies, outcomes)
    assert isinstance(outcomes[0], Path)
    keeper.close()


class Watched(Files):
    """Knows which threads have removed something."""

    def __init__(self) -> None:
        self.removed_by: list[str] = []

    def remove(self, path: Path) -> None:
        self.removed_by.append(threading.current_thread().name)
        super().remove(path)


def test_closing_in_the_middle_of_a_save_leaves_nothing_and_removes_it_in_the_thread_that_writes(
    tmp_path: Path, ledger: Ledger
) -> None:
    copies: list[Callable[[], Vector]] = []
    files = Watched()
    keeper = Keeper(Store(tmp_path / "checkpoints", files=files), copies.append, lambda outcome: None)
    keeper.save(ledger, META, SCHEMA.to_bytes())
    poll = select.poll()
    poll.register(keeper, select.POLLIN)
    while not copies:
        assert poll.poll(5000)
        keeper.collect()
    keeper.copied(copies.pop()())
    keeper.close()
    assert list((tmp_path / "checkpoints").iterdir()) == [] and files.removed_by == ["storage"]


def test_each_step_counts__and_the_last_has_time_for_what_the_system_kept_for_the_disk(
    tmp_path: Path, ledger: Ledger
) -> None:
    copies: list[Callable[[], Vector]] = []
    outcomes: list[object] = []
    keeper = Keeper(Store(tmp_path / "checkpoints"), copies.append, outcomes.append)
    keeper.save(ledger, META, SCHEMA.to_bytes())
    poll = select.poll()
    poll.register(keeper, select.POLLIN)
    patience = {}
    while not outcomes:
        patience[keeper.steps] = keeper.patience
        assert poll.poll(5000)
        keeper.collect()
        while copies:
            keeper.copied(copies.pop(0)())
    last = 1 + 2 * ledger.chunks
    assert patience == dict.fromkeys(range(last), PIECE) | {last: PIECE + 8 * 700 / SLOWEST}
    assert keeper.steps == last + 1 and keeper.patience == PIECE
    keeper.close()
