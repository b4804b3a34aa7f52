"""Two hundred checkpoint writes that did not come to their end, and the newest one reported as saved always loads and
verifies (safety I5, campaign T15).

Two ways to die. A process that writes checkpoint after checkpoint is killed -9 at random moments, as the daemon writes
them, with a thread for the disk. And a disk stops at every single call, and then shows everything that POSIX allows it
to show: of files what was synced, and of the rest all, nothing, a part or zeros; of directories the entries at their
last sync, and of what was changed since any part (Pillai et al., OSDI 2014).
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from gossipdp.runtime import store as runtime_store
from gossipdp.runtime.files import Files, load_state, save_state
from gossipdp.runtime.store import CheckpointMeta, Store

ROOT = Path(runtime_store.__file__).parents[2]
SIZE = 300


def meta(round: int) -> CheckpointMeta:
    return CheckpointMeta(
        network="t",
        run="ab",
        peer="cd",
        incarnation=1,
        round=round,
        clock=round,
        steps=round,
        samples=round,
        schema="ef",
    )


def vectors(round: int) -> dict[str, np.ndarray]:
    return {"anchor": np.full(SIZE, round, np.float32), "momentum": np.arange(SIZE, dtype=np.float32) * round}


# -- a disk that stops -------------------------------------------------------------------------------------------


class Stop(BaseException):
    """The machine stops here; not an Exception, so that no handler takes it for an error of the disk."""


@dataclass(eq=False)
class File:
    live: bytes = b""
    synced: bytes = b""


@dataclass(eq=False)
class Directory:
    live: dict[str, Node] = field(default_factory=dict)
    synced: dict[str, Node] = field(default_factory=dict)
    since: list[dict[str, Node]] = field(default_factory=list)
    """the entries after each change since the last sync"""

    def change(self) -> None:
        self.since.append(dict(self.live))


Node = File | Directory


class Disk(Files):
    """Carries out what is asked for, keeps account of what is sure, and stops at call number `stop`."""

    def __init__(self, root: Path, stop: int = 1 << 30) -> None:
        self.root, self.stop, self.calls = root, stop, 0
        self.tree = Directory()
        self._torn = random.Random(stop)

    def _call(self) -> None:
        if self.calls >= self.stop:
            raise Stop
        self.calls += 1

    def _at(self, path: Path) -> Node:
        node: Node = self.tree
        for name in path.relative_to(self.root).parts:
            assert isinstance(node, Directory)
            node = node.live[name]
        return node

    def _in(self, path: Path) -> Directory:
        parent = self._at(path.parent)
        assert isinstance(parent, Directory)
        return parent

    def create(self, path: Path) -> IO[bytes]:
        self._call()
        file = super().create(path)
        parent = self._in(path)
        parent.live[path.name] = File()
        parent.change()
        return file

    def write(self, file: IO[bytes], piece: memoryview) -> None:
        node = self._at(Path(file.name))
        assert isinstance(node, File)
        try:
            self._call()
        except Stop:
            node.live += bytes(piece[: self._torn.randrange(len(piece) + 1)])
            raise
        super().write(file, piece)
        node.live += bytes(piece)

    def sync(self, file: IO[bytes]) -> None:
        self._call()
        node = self._at(Path(file.name))
        assert isinstance(node, File)
        node.synced = node.live

    def make_directory(self, path: Path) -> None:
        if path.parent.is_dir():
            self._call()
        super().make_directory(path)
        parent = self._in(path)
        parent.live[path.name] = Directory()
        parent.change()

    def rename(self, before: Path, after: Path) -> None:
        self._call()
        super().rename(before, after)
        old, new = self._in(before), self._in(after)
        new.live[after.name] = old.live.pop(before.name)
        new.change()
        if old is not new:
            old.change()

    def sync_directory(self, path: Path) -> None:
        self._call()
        node = self._at(path)
        assert isinstance(node, Directory)
        node.synced, node.since = dict(node.live), []

    def remove(self, path: Path) -> None:
        """One call for each file and directory of it."""
        for name in sorted(os.listdir(path)):
            if (path / name).is_dir():
                self.remove(path / name)
                continue
            self._call()
            (path / name).unlink()
            self._forget(path / name)
        self._call()
        path.rmdir()
        self._forget(path)

    def _forget(self, path: Path) -> None:
        parent = self._in(path)
        del parent.live[path.name]
        parent.change()

    # -- what may be found afterwards

    def after(self) -> Iterator[tuple[str, dict[str, bytes | None]]]:
        """Every state the disk may be in, as path -> contents, None for a directory."""
        seen = set()
        for (how, content), (which, entries) in itertools.product(CONTENTS.items(), ENTRIES.items()):
            image: dict[str, bytes | None] = {}
            _image(self.tree, "", content, entries, image)
            key = tuple(sorted((path, data or b"", data is None) for path, data in image.items()))
            if key not in seen:
                seen.add(key)
                yield f"{how}, {which}", image


CONTENTS: dict[str, Callable[[File], bytes]] = {
    "what was not synced is lost": lambda file: file.synced,
    "all was written": lambda file: file.live,
    "half was written": lambda file: file.live[: max(len(file.synced), len(file.live) // 2)],
    "the length was written, and zeros": lambda file: file.synced + bytes(len(file.live) - len(file.synced)),
    "all but the last byte was written": lambda file: file.live[: max(len(file.synced), len(file.live) - 1)],
}
ENTRIES: dict[str, Callable[[Directory], dict[str, Node]]] = {
    "directories as they were synced": lambda directory: directory.synced,
    "directories as they were": lambda directory: directory.live,
    "the first change since": lambda directory: directory.since[0] if directory.since else directory.synced,
    "the last change missing": lambda directory: ([directory.synced, *directory.since[:-1]])[-1],
    "old entries and new": lambda directory: {**directory.synced, **directory.live},
    "nothing new, and nothing old that has gone": lambda directory: {
        name: node for name, node in directory.synced.items() if name in directory.live
    },
}


def _image(
    directory: Directory,
    path: str,
    content: Callable[[File], bytes],
    entries: Callable[[Directory], dict[str, Node]],
    image: dict[str, bytes | None],
) -> None:
    for name, node in entries(directory).items():
        if isinstance(node, File):
            image[path + name] = content(node)
        else:
            image[path + name] = None
            _image(node, f"{path}{name}/", content, entries, image)


def lay(image: dict[str, bytes | None], root: Path) -> None:
    root.mkdir()
    for path, contents in sorted(image.items()):
        if contents is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(contents)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_store, "PIECE", 1024)


@dataclass
class Life:
    """A daemon's disk work up to the stop: saves, with an older checkpoint pinned in between."""

    disk: Disk
    reported: int = 0
    pinned: str = ""

    def lead(self, directory: Path) -> None:
        store = Store(directory, keep=2, files=self.disk)
        for round in range(1, 6):
            path = store.save(vectors(round), meta(round), b"schema")
            self.reported = round
            if round == 2:
                store.pin(path, "it is later")
                self.pinned = path.name


class Quick(Files):
    """Nothing is torn any more, so nothing need be waited for."""

    def sync(self, file: IO[bytes]) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


def check(root: Path, life: Life, where: str) -> None:
    store = Store(root / "home" / "checkpoints", keep=2, files=Quick())
    newest, notices = store.latest()
    assert not notices, f"{where}: something torn has a checkpoint's name: {notices}"
    found = newest.meta.round if newest is not None else 0
    assert life.reported <= found <= life.reported + 1, f"{where}: {life.reported} was reported, {found} is found"
    for path in store.list():
        checkpoint = store.verify(path)
        assert np.array_equal(checkpoint.read("momentum"), vectors(checkpoint.meta.round)["momentum"]), where
    if life.pinned:
        assert store.pinned(store.dir / life.pinned), f"{where}: what was reported as pinned is not"
    store.save(vectors(9), meta(9), b"schema")
    after, notices = store.latest()
    assert after is not None and after.meta.round == 9 and not notices, f"{where}: cannot go on"
    left = [path.name for path in store.dir.iterdir() if path.name.startswith(".")]
    assert not left, f"{where}: a crash's litter stays: {left}"


def test_disk_that_stops_at_any_call_shows_the_newest_reported_checkpoint_whatever_it_forgets(
    tmp_path: Path, small_pieces: None
) -> None:
    whole = Life(Disk(tmp_path / "whole"))
    (tmp_path / "whole").mkdir()
    whole.lead(tmp_path / "whole" / "home" / "checkpoints")
    points = cases = 0
    seen = set()
    for stop in range(whole.disk.calls):
        root = tmp_path / f"{stop}"
        root.mkdir()
        life = Life(Disk(root, stop))
        with pytest.raises(Stop):
            life.lead(root / "home" / "checkpoints")
        points += 1
        for number, (how, image) in enumerate(life.disk.after()):
            again = tmp_path / f"{stop}-{number}"
            known = life.reported, life.pinned, tuple(sorted(image.items(), key=lambda item: item[0]))
            if known in seen:
                continue
            seen.add(known)
            lay(image, again)
            check(again, life, f"stopped at call {stop}: {how}")
            cases += 1
    assert points >= 100 and cases > 4 * points


def test_state_file_is_the_old_or_the_new_at_any_call_whatever_the_disk_forgets(tmp_path: Path) -> None:
    outcomes = set()
    for stop in range(10):
        root = tmp_path / f"{stop}"
        root.mkdir()
        disk = Disk(root, stop)
        done = 0
        try:
            for value in ("old", "new" * 100):
                save_state(root / "state", value, disk)
                done += 1
        except Stop:
            pass
        for number, (how, image) in enumerate(disk.after()):
            again = tmp_path / f"{stop}-{number}"
            lay(image, again)
            found = load_state(again / "state", str)
            allowed = [None, "old", "new" * 100][done : done + 2]
            assert found in allowed, f"stopped at call {stop}: {how}: {found!r}"
            outcomes.add(found)
    assert outcomes == {None, "old", "new" * 100}


# -- a process that is killed ------------------------------------------------------------------------------------

KILLED = """
import os, random, select, signal, sys
sys.path.insert(0, {root!r})
from pathlib import Path
import numpy as np
from gossipdp.algorithms.base import Ledger
from gossipdp.runtime.keeper import Keeper
from gossipdp.runtime.store import CheckpointMeta, Store

def save_for_ever(directory, first, report):
    ledger, outcomes, copies = Ledger(20_000, 20_000, 4096), [], []
    keeper = Keeper(Store(directory, keep=2), copies.append, outcomes.append)
    poll = select.poll()
    poll.register(keeper, select.POLLIN)
    for round in range(first, first + 10_000):
        ledger.a[:], ledger.v[:] = round, -round
        keeper.save(ledger, CheckpointMeta(network="t", run="ab", peer="cd", incarnation=1, round=round, clock=round,
                    steps=round, samples=round, schema="ef"), b"schema")
        while not outcomes:
            poll.poll()
            keeper.collect()
            while copies:
                keeper.copied(copies.pop()())
        assert isinstance(outcomes.pop(), Path)
        os.write(report, round.to_bytes(8, "little"))

chance, first, usual = random.Random(15), 1, 0.02
directory = Path({directory!r})
for line in sys.stdin:
    get, report = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(get)
            save_for_ever(directory, first, report)
        finally:
            os._exit(1)
    os.close(report)
    reported = os.read(get, 8 * chance.randrange(1, 3))  # it is at work: one save at least is reported
    select.select([], [], [], chance.uniform(0.0, usual))  # any moment of the next
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(get, 4096):
        reported += more
    os.close(get)
    last = int.from_bytes(reported[-8:], "little")
    first = last + 10
    print(last, flush=True)
"""


def test_process_killed_a_hundred_times_while_it_saves_has_its_newest_reported_checkpoint(tmp_path: Path) -> None:
    code = KILLED.format(root=str(ROOT), directory=str(tmp_path / "checkpoints"))
    torn = 0
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for kill in range(100):
            process.stdin.write("go\n")
            process.stdin.flush()
            reported = int(process.stdout.readline())
            store = Store(tmp_path / "checkpoints", keep=2)
            checkpoint, notices = store.latest()
            assert checkpoint is not None and not notices, f"kill {kill}: {notices}"
            round = checkpoint.meta.round
            assert reported <= round <= reported + 1, f"kill {kill}: {reported} was reported, {round} is found"
            assert (checkpoint.read("anchor") == round).all() and (checkpoint.read("momentum") == -round).all()
            for path in store.list():
                Store.verify(path)
            torn += any(path.name.startswith(".") for path in store.dir.iterdir())
        process.stdin.close()
    assert process.returncode == 0
    assert torn >= 20, f"only {torn} of the kills came in the middle of a write"
