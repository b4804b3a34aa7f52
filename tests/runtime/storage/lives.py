"""Lives of a daemon that saves checkpoints, as the node drives it."""

import select
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from gossipdp.algorithms.ledger import Ledger
from gossipdp.errors import DataError
from gossipdp.runtime.files import Files
from gossipdp.runtime.storage.checkpoint import CheckpointMeta
from gossipdp.runtime.storage.checkpointer import Checkpointer
from gossipdp.runtime.storage.store import Store

ROUNDS = 5


class Host:
    """A checkpointer, driven as the node drives it."""

    def __init__(self, directory: Path, files: Files) -> None:
        self.store = Store(directory, keep=2, files=files)
        self.ledger = Ledger(600, 600, 256)
        self.copies: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.outcomes: list[Path | DataError] = []
        self.checkpointer = Checkpointer(self.store, self._copy, self.outcomes.append)
        self.close = self.checkpointer.close

    def _copy(self, function: Callable[[], Any], done: Callable[[Any], None], place: int | None = None) -> None:
        self.copies.append((function, done))

    def save(self, round: int) -> Path | DataError:
        self.ledger.a[:], self.ledger.v[:] = round, -round
        meta = CheckpointMeta(
            network="t", run="ab", peer="cd", incarnation=1, round=round, clock=round, steps=round, samples=round,
            schema="ef",
        )  # fmt: skip
        self.checkpointer.save(self.ledger, meta, b"schema")
        while not self.outcomes:
            assert select.select([self.checkpointer], [], [], 10.0)[0], "the storage thread said nothing for 10 s"
            self.checkpointer.collect()
            while self.copies:
                function, done = self.copies.pop()
                done(function())
        return self.outcomes.pop()


@dataclass
class Life:
    """The reported saves of a peer. The checkpoint of round 2 is pinned."""

    tried: int = 0
    reported: int = 0
    pinned: str = ""
    refused: list[DataError] = field(default_factory=list)

    def lead(self, host: Host, rounds: int = ROUNDS) -> None:
        for round in range(self.tried + 1, rounds + 1):
            self.tried = round
            outcome = host.save(round)
            if isinstance(outcome, DataError):
                self.refused.append(outcome)
                continue
            self.reported = round
            if round == 2:
                try:
                    host.store.pin(outcome, "it is later")
                    self.pinned = outcome.name
                except DataError as error:
                    self.refused.append(error)

    def check(self, directory: Path, where: str) -> int:
        """What must hold of `directory` at any time. Returns the round of the newest checkpoint."""
        store = Store(directory, keep=2)
        newest, notices = store.latest()
        found = 0 if newest is None else newest.meta.round
        assert not notices, f"{where}: something torn has a checkpoint's name: {notices}"
        assert self.reported <= found <= self.tried, f"{where}: {self.reported} was reported, {found} is found"
        for path, checkpoint in store.each():
            assert not isinstance(checkpoint, DataError), f"{where}: something torn has a checkpoint's name: {path}"
            round = checkpoint.meta.round
            assert np.all(checkpoint.read("anchor") == round) and np.all(checkpoint.read("momentum") == -round), where
        assert not self.pinned or store.pinned(directory / self.pinned), f"{where}: the pin is lost"
        return found


def check_goes_on(directory: Path, round: int, where: str) -> None:
    with closing(Host(directory, Quick())) as host:
        assert isinstance(host.save(round), Path), where
    left = [path.name for path in directory.iterdir() if path.name.startswith(".")]
    assert not left, f"{where}: litter stays: {left}"


class Quick(Files):
    """Nothing is torn here, so no sync is needed."""

    def sync(self, file: IO[bytes]) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


LONG = pytest.mark.long
