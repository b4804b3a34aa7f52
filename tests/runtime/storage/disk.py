"""A disk that keeps what POSIX promises of a power cut."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gossipdp.runtime.files import Files


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
