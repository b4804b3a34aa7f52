"""The newest checkpoint reported as saved loads and verifies after any crash (safety I5, campaign T15).

Power cut: the disk stops at a call, and then holds what POSIX allows (Pillai et al., OSDI 2014). A file has what was
synced, and all, nothing, a part or zeros of the rest. A directory has each entry as last synced, or as at the cut.
Failing disk: calls fail for a while. All of it goes through the checkpointer and its thread, as the node drives it.
"""

from __future__ import annotations

import errno
import operator
import os
import random
import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from gossipdp.runtime.files import Files, load_state, save_state
from tests.runtime.storage.lives import LONG, ROUNDS, Host, Life, check_goes_on


class Stop(BaseException):
    """The machine stops here. No Exception, so that no handler takes it for an error of the disk."""


@dataclass(eq=False)
class File:
    live: bytes = b""
    synced: bytes = b""

    def remains(self) -> Sequence[bytes]:
        tail = self.live[len(self.synced) :]
        half = tail[: len(tail) // 2]
        tails = (b"", half, half + bytes(len(tail) - len(half)), bytes(len(tail)), tail[:-1], tail)
        return [self.synced + each for each in tails]


@dataclass(eq=False)
class Directory:
    live: dict[str, File | Directory] = field(default_factory=dict)
    synced: dict[str, File | Directory] = field(default_factory=dict)

    def lay(self, path: Path, pick: Callable[[Sequence[Any]], Any]) -> None:
        """Make `path` one of the states this directory may be found in."""
        path.mkdir()
        for name in sorted(self.synced.keys() | self.live.keys()):
            node = pick((self.synced.get(name), self.live.get(name)))
            if isinstance(node, Directory):
                node.lay(path / name, pick)
            elif node is not None:
                (path / name).write_bytes(pick(node.remains()))


class Disk(Files):
    """Carries out calls, records what is synced, refuses the calls `fails`, and stops after call `stop`."""

    def __init__(self, root: Path, stop: int = 1 << 30, fails: Collection[int] = ()) -> None:
        self.root, self.stop, self.fails, self.calls = root, stop, fails, 0
        peers = Directory()
        self.tree = Directory({"peers": peers}, {"peers": peers})
        (root / "peers").mkdir(parents=True)

    def _call(self) -> None:
        if self.calls >= self.stop:
            raise Stop
        self.calls += 1
        if self.calls - 1 in self.fails:
            raise OSError(errno.EIO, "Input/output error")

    def _at(self, path: Path) -> Any:
        node: Any = self.tree
        for name in path.relative_to(self.root).parts:
            node = node.live[name]
        return node

    def create(self, path: Path) -> IO[bytes]:
        self._call()
        file = super().create(path)
        self._at(path.parent).live[path.name] = File()
        return file

    def write(self, file: IO[bytes], piece: memoryview) -> None:
        try:
            self._call()
        except BaseException:
            piece = piece[: len(piece) // 2]
            raise
        finally:
            super().write(file, piece)
            self._at(Path(file.name)).live += bytes(piece)

    def sync(self, file: IO[bytes]) -> None:
        self._call()
        node = self._at(Path(file.name))
        node.synced = node.live

    def make_directory(self, path: Path) -> None:
        self._call()
        super().make_directory(path)
        self._at(path.parent).live[path.name] = Directory()

    def names(self, directory: Path) -> list[str]:
        self._call()
        return sorted(super().names(directory))

    def rename(self, before: Path, after: Path) -> None:
        self._call()
        super().rename(before, after)
        self._at(after.parent).live[after.name] = self._at(before.parent).live.pop(before.name)

    def sync_directory(self, path: Path) -> None:
        self._call()
        node = self._at(path)
        node.synced = dict(node.live)

    def remove(self, path: Path) -> None:
        """One call for each file and each directory of it."""
        if path.is_dir():
            for name in sorted(os.listdir(path)):
                self.remove(path / name)
        self._call()
        path.rmdir() if path.is_dir() else path.unlink()
        del self._at(path.parent).live[path.name]


HOME = Path("peers/home/checkpoints")
"""under a disk's root; `peers` is there from the start, the rest is made"""


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The number of calls that a life makes."""
    disk = Disk(tmp_path_factory.mktemp("whole") / "root")
    with closing(Host(disk.root / HOME, disk)) as host:
        Life().lead(host)
    return disk.calls


def power_cut(where: Path, calls: int, seed: int, kind: type[Disk] = Disk) -> None:
    """The disk stops at call `seed` of `calls`, modulo; from the second time around some calls just before have failed.
    Then three states of it: nothing is there that was not synced, everything, and a mixture."""
    chance, stop = random.Random(seed), seed % calls
    before = range(max(0, stop - 12), stop)
    failed = frozenset(chance.sample(before, min(seed // calls, 3, len(before))))
    disk, life = kind(where / "root", stop, failed), Life()
    with closing(Host(disk.root / HOME, disk)) as host, pytest.raises(Stop):
        life.lead(host, rounds=2 * ROUNDS)
    for number, pick in enumerate((operator.itemgetter(0), operator.itemgetter(-1), chance.choice)):
        found, told = where / f"found{number}", f"seed {seed}, stopped at call {stop}, state {number}"
        disk.tree.lay(found, pick)
        life.check(found / HOME, told)
        if number == 2:
            check_goes_on(found / HOME, 99, told)


class Reluctant(Disk):
    """Does not sync the removal of an old checkpoint until the next one is saved."""

    def rename(self, before: Path, after: Path) -> None:
        super().rename(before, after)
        if after.name.endswith("-old"):
            self.fails = {self.calls}


@pytest.mark.campaign("T15")
@pytest.mark.parametrize(
    ("kind", "points"),
    [(Disk, 60), (Reluctant, 30), pytest.param(Disk, 7000, marks=LONG), pytest.param(Reluctant, 1000, marks=LONG)],
)
def test_power_cut_at_any_call_leaves_the_newest_reported_checkpoint(
    tmp_path: Path, calls: int, kind: type[Disk], points: int
) -> None:
    assert 100 <= calls <= 150
    for seed in range(points):
        power_cut(tmp_path / f"{seed}", calls, seed, kind)
        shutil.rmtree(tmp_path / f"{seed}")


class NoFileSync(Disk):
    def sync(self, file: IO[bytes]) -> None:
        self._call()


class NoDirectorySync(Disk):
    def sync_directory(self, path: Path) -> None:
        self._call()


class NoSyncOfAncestors(Disk):
    def sync_directory(self, path: Path) -> None:
        self._call() if path < self.root / HOME else super().sync_directory(path)


@pytest.mark.parametrize(
    ("kind", "noticed"),
    [
        (NoFileSync, "has a checkpoint's name"),
        (NoDirectorySync, "was reported, 0 is found"),
        (NoSyncOfAncestors, "was reported, 0 is found"),
    ],
)
def test_store_that_skips_a_sync_is_noticed(tmp_path: Path, calls: int, kind: type[Disk], noticed: str) -> None:
    with pytest.raises(AssertionError, match=noticed):
        for seed in range(calls):
            power_cut(tmp_path / f"{seed}", calls, seed, kind)


@pytest.mark.parametrize("outage", [1, 40])
def test_disk_that_fails_for_a_while_costs_only_the_saves_it_refuses(tmp_path: Path, calls: int, outage: int) -> None:
    refused = 0
    for start in range(0, calls, 1 if outage == 1 else 7):
        disk, life = Disk(tmp_path / f"{start}", fails=range(start, start + outage)), Life()
        where = f"failed from call {start}"
        with closing(Host(disk.root / HOME, disk)) as host:
            while disk.calls < start + outage:
                life.lead(host, life.tried + 1)
                if life.tried > 1 or not life.refused:
                    life.check(disk.root / HOME, where)
            life.lead(host, life.tried + 2)
        assert life.reported == life.tried, f"{where}: it never saved again"
        assert all(error.code in ("GD-601", "GD-602") and "Input/output" in error.seen for error in life.refused)
        assert outage == 1 or life.refused, where
        refused += len(life.refused)
        check_goes_on(disk.root / HOME, 99, where)
    assert refused >= (calls // 2 if outage == 1 else calls // 7)


def test_state_file_is_the_old_or_the_new_one_after_a_stop_at_any_call(tmp_path: Path) -> None:
    outcomes, values = set(), (None, "old", "new" * 100)
    for seed in range(60):
        chance, disk, done = random.Random(seed), Disk(tmp_path / f"{seed}/root", stop=seed % 10), 0
        try:
            for value in values[1:]:
                save_state(disk.root / "peers/state", value, disk)
                done += 1
        except Stop:
            pass
        disk.tree.lay(tmp_path / f"{seed}/found", chance.choice)
        found = load_state(tmp_path / f"{seed}/found/peers/state", str)
        assert found in values[done : done + 2], f"seed {seed}: {found!r}"
        outcomes.add(found)
    assert outcomes == set(values)
