"""A daemon that leaves, and checkpoints on request."""

import select
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import pytest

from gossipdp.errors import DataError
from gossipdp.protocol.membership.signatures import Signer
from gossipdp.protocol.model import Model
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.wire.messages import Member, Ping, State
from gossipdp.runtime import files
from gossipdp.runtime.network.dial_causes import Cause
from gossipdp.runtime.network.events import DialFailed
from gossipdp.runtime.network.identity import Identity
from gossipdp.runtime.node import Node
from gossipdp.runtime.observability.history import FILE, read
from gossipdp.runtime.storage.checkpointer import PIECE
from gossipdp.runtime.storage.store import Store
from peers import services
from peers.control import ControlServer
from tests.peers.daemon.homes_and_nodes import Start, asked, noticed, save, shown


class Slow(files.Files):
    """A disk that accepts a piece of the model only when the test permits."""

    def __init__(self) -> None:
        self.let = threading.Semaphore(0)

    def write(self, file: IO[bytes], piece: memoryview) -> None:
        if piece.nbytes == 1024:
            self.let.acquire()
        super().write(file, piece)


class Leaving:
    """A leaving peer with a model and a slow disk. The test advances its time."""

    def __init__(self, node: Node) -> None:
        self.node, self.disk, self.now = node, Slow(), node._clock()
        node._clock, node._jobs._store.files = lambda: self.now, self.disk
        schema = Schema.of([("w", (1024,), "float32", "parameter")])
        node._algorithm.allocate(schema.size, schema.trainable, 256)
        node.peer._replica.model = Model.of(schema.to_bytes(), b"", 0, 0)
        node.leave()
        self.live(2.0)
        assert node.status.leaving and node._checkpoints.writer.busy

    def live(self, seconds: float) -> None:
        for _ in range(10):
            self.now += seconds / 10
            if not self.node._finished:
                self.node._turn()

    def until(self, done: Callable[[], bool]) -> None:
        """Let the disk work, without advancing the time."""
        while not done():
            threads = [self.node._checkpoints.writer, self.node._jobs]
            select.select(threads, [], [])
            self.node._turn()

    def let(self, pieces: int) -> None:
        steps = self.node._checkpoints.writer.steps
        self.disk.let.release(pieces)
        self.until(lambda: self.node._checkpoints.writer.steps >= steps + pieces)


def test_address_that_does_not_answer_is_told_unless_its_member_has_left(start: Start) -> None:
    node, other = start(), Identity.generate()
    word = Member(other.id, "gone", "127.0.0.1:9", 1, 1, State.LEFT)
    word = Signer(other.sign, Identity.verify).sign_member(word)
    node.peer._membership.receive(Ping(1, (word,)), other.id, 0.0)
    for address in ("127.0.0.1:9", "127.0.0.1:11"):
        node._network.handle(DialFailed(b"", address, (Cause("GD-101", "refused"),)), 1.0)
    assert [notice.split(":")[:2] for notice in shown(node.status)] == [["GD-101 127.0.0.1", "11"]]


@pytest.mark.parametrize("unsent", [0, 1])
def test_peer_that_leaves_ends_once_its_last_words_are_sent_or_after_a_while(
    unsent: int, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    now = node._clock()
    node._clock = lambda: now
    monkeypatch.setattr(type(node._transport), "queued_bytes", unsent)
    node.leave()
    for _ in range(8):
        now += 0.1
        if not node._finished:
            node._turn()
    assert node._finished == (not unsent)
    now += 2.5
    if not node._finished:
        node._turn()
    assert node._finished


def test_peer_that_leaves__its_last_bytes_are_in_the_history(where: Path, start: Start) -> None:
    node = start()
    now = node._clock()
    node._clock = lambda: now
    node._turn()
    node.status.exchanged_bytes = 77
    node.leave()
    for _ in range(60):
        now += 0.1
        if not node._finished:
            node._turn()
    assert node._finished and [record.exchanged for record in read(where / FILE)] == [0, 77]


def test_peer_that_leaves_waits_for_its_last_checkpoint_as_long_as_that_moves(where: Path, start: Start) -> None:
    leaving = Leaving(start())
    for _ in range(8):
        leaving.live(7.0)
        told = asked(leaving.node, where, "status")["reply"]
        assert told["saving"] and told["state"] == "leaving" and not leaving.node._finished
        leaving.let(1)
    leaving.until(lambda: leaving.node._finished)
    assert leaving.node.status.checkpoint == str(Store(where / "checkpoints").list()[-1])
    assert not leaving.node.saving and not leaving.node.status.notices


def test_checkpoint_under_way_when_the_peer_is_told_to_leave_is_not_its_last(where: Path, start: Start) -> None:
    leaving = Leaving(start())
    leaving.node._final_checkpoint = False
    leaving.disk.let.release(16)
    leaving.until(lambda: len(leaving.node._jobs._store.list()) == 1)
    assert leaving.node.saving and not leaving.node._finished
    leaving.live(0.1)
    leaving.until(lambda: leaving.node._finished)
    assert len(Store(where / "checkpoints").list()) == 2


def test_last_checkpoint_on_a_disk_that_hangs_is_given_up_and_told(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = Leaving(start())
    node = leaving.node
    leaving.let(2)
    leaving.live(PIECE - 1.0)
    assert node.saving and not node._finished
    leaving.live(2.0)
    assert node._finished
    leaving.disk.let.release(16)
    node.close()
    monkeypatch.setattr(node, "close", lambda: None)
    assert "given up" in shown(node.status)[-1] and noticed(node) == {"GD-602": 1.0}
    assert list((where / "checkpoints").iterdir()) == []


def test_peer_that_is_not_leaving_is_not_saving__whatever_is_written(start: Start) -> None:
    node = start()
    node._checkpoints.writer.busy = True
    assert not node.saving


class Asked:
    """A request of the control socket."""

    verb = "checkpoint"

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.reply = self.fail = self.answers.append


def test_checkpoint_asked_for__answered_when_it_is_on_the_disk_or_could_not_be_written(
    where: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    asked: list[Any] = [Asked() for _ in range(3)]
    control = services.Control(
        cast(ControlServer, SimpleNamespace(handle=lambda fd: [asked[fd]])), node, None, where, None, None
    )  # type: ignore[arg-type]
    monkeypatch.setattr(type(node.peer._replica), "whole", property(lambda replica: True))
    monkeypatch.setattr(node._checkpoints, "save", lambda: True)
    control.handle(0)
    path, error = save(where, 90), DataError("GD-602", "checkpoint-00000002 could not be written", seen="No space left")
    assert asked[0].answers == [], "not yet"
    node._checkpoints.saved(path)
    control.handle(1)
    node._checkpoints.saved(error)
    node._checkpoints.writer.busy = True
    control.handle(2)
    assert [each.answers for each in asked] == [[{"saved": str(path)}], [error], [{"saved": ""}]]
