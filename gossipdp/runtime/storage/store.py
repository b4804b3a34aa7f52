"""The checkpoints of a peer on disk. The newest one reported as saved always loads.

A checkpoint is a directory, complete once it has its final name. It is written in pieces under a temporary name beside
the others, the manifest last, so there is no second copy in memory. Every file is synced, then the directory, then it
is renamed, then the directory above is synced. Without each of these steps some file system loses it (Pillai et al.,
OSDI 2014). A disk that fails costs only the checkpoint being written. Nothing here may know a peer's protocol state, or
decide when to save.
"""

from __future__ import annotations

import errno
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

import msgspec
from numpy.typing import NDArray

from gossipdp.errors import DataError
from gossipdp.protocol.events import Notice
from gossipdp.runtime.files import (
    TEMPORARY,
    Files,
    bytes_of,
    read_bounded,
    unwritable,
    write_file,
)
from gossipdp.runtime.progress import Say, silent
from gossipdp.runtime.storage.checkpoint import (
    FORMAT,
    MANIFEST,
    MAX_SCHEMA,
    NAMES,
    SCHEMA,
    STATE,
    Checkpoint,
    CheckpointMeta,
    Into,
    Manifest,
    Shape,
    glance,
    header,
    nothing,
    read_manifest,
    unreadable,
    verify,
)
from gossipdp.runtime.storage.pieces import PIECE, PieceHashes

__all__ = ["PINS", "UNSYNCED", "Store", "Writer"]

PINS: Final = 4
"""pinned checkpoints that stay, newest first; each is larger than the model"""
MAX_REASON: Final = 4 << 10
UNSYNCED: Final = 1 << 30
"""bytes written between two syncs: unsynced bytes pile up in memory, and the next sync waits for them"""

_PINNED: Final = "pinned"
_NAME: Final = re.compile(rf"(?:{re.escape(TEMPORARY)}checkpoint-(\d{{8,}}).*|checkpoint-(\d{{8,}}))")


class Writer:
    """A checkpoint being written: pieces in the order of `layout`, then `commit`. Before that there is no checkpoint.

    The caller may wait between pieces, so that a whole vector can be written as a sequence of chunk jobs. A second
    thread hashes each piece while it is written.
    """

    def __init__(self, store: Store, meta: CheckpointMeta, schema: bytes, layout: Mapping[str, tuple[str, Shape]]):
        self._store, self._meta, self._files = store, meta, store.files
        self._final = store.prepare()
        self._directory = store.dir / f"{TEMPORARY}{self._final.name}"
        self._hashes, self._unsynced = PieceHashes(PIECE), 0
        self._hasher = ThreadPoolExecutor(1, "gossipdp-hash")
        self._file: IO[bytes] | None = None
        start, self._left = header(layout, {})
        self._left += len(start)
        with self._guarded():
            self._check_room(self._left + len(schema))
            self._files.make_directory(self._directory)
            write_file(self._files, self._directory / SCHEMA, [schema])
            of_schema = PieceHashes(PIECE)
            of_schema.update(memoryview(schema))
            self._schema = of_schema.record()
            self._file = self._files.create(self._directory / STATE)
            self._put(memoryview(start))

    @property
    def open(self) -> bool:
        """Whether more may be written: it was neither committed nor abandoned."""
        return self._file is not None

    def write(self, piece: NDArray[Any] | memoryview | bytes) -> None:
        """Append the contiguous `piece`. Raises DataError GD-602; the unfinished checkpoint is then removed."""
        with self._guarded():
            self._put(bytes_of(piece))

    def commit(self) -> Path:
        """Sync, write the manifest, give the checkpoint its name and drop the oldest one. Returns its directory.

        Raises:
            DataError: GD-602.
        """
        with self._guarded():
            if self._left or self._file is None:
                raise ValueError(f"{self._left} bytes of the announced layout are missing")
            self._files.sync(self._file)
            self._file.close()
            files = {STATE: self._hashes.record(), SCHEMA: self._schema}
            manifest = Manifest(format=FORMAT, saved_at=time.time(), meta=self._meta, files=files)
            text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
            write_file(self._files, self._directory / MANIFEST, [text])
            self._files.sync_directory(self._directory)
            self._files.rename(self._directory, self._final)
            self._files.sync_directory(self._store.dir)
        self._file = None
        self._hasher.shutdown()
        self._store.prune()
        return self._final

    def abandon(self) -> None:
        """Remove the unfinished checkpoint."""
        if self._file is not None:
            with suppress(OSError):  # closing reports what could not be written, which does not matter now
                self._file.close()
            self._file = None
        self._hasher.shutdown()
        with suppress(OSError):
            self._files.remove(self._directory)

    def _check_room(self, needed: int) -> None:
        """Refuse a checkpoint that cannot fit: it would use up the disk for all other writers, and then be removed."""
        free = self._files.free(self._store.dir)
        if free < needed:
            why = f"{os.strerror(errno.ENOSPC)}: {needed} bytes are needed, {free} are free"
            raise OSError(errno.ENOSPC, why)

    def _put(self, view: memoryview) -> None:
        if len(view) > self._left or self._file is None:
            raise ValueError("more bytes than the announced layout")
        hashed = self._hasher.submit(self._hashes.update, view)
        for start in range(0, len(view), PIECE):
            piece = view[start : start + PIECE]
            self._files.write(self._file, piece)
            self._unsynced += len(piece)
            if self._unsynced >= UNSYNCED:
                self._files.sync(self._file)
                self._unsynced = 0
        hashed.result()
        self._left -= len(view)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError):
                raise unwritable(self._final, error) from error
            raise


class Store:
    """The checkpoints of one peer in one directory. One writer at a time; readers need no lock.

    Args:
        dir: made when the first checkpoint is saved.
        keep: checkpoints that are kept, besides pinned ones.
        files: the file system.
    """

    def __init__(self, dir: Path, keep: int = 3, *, files: Files | None = None) -> None:
        if keep < 1:
            raise ValueError("keep must be at least 1")
        self.dir, self.keep, self.files = dir, keep, files or Files()

    verify = staticmethod(verify)

    def begin(self, meta: CheckpointMeta, schema: bytes, layout: Mapping[str, tuple[str, Shape]]) -> Writer:
        """Begin a checkpoint of the arrays in `layout`, name -> (numpy dtype, shape). Raises DataError GD-602."""
        if len(schema) > MAX_SCHEMA:
            raise ValueError(f"schema of {len(schema)} bytes, limit {MAX_SCHEMA}")
        return Writer(self, meta, schema, {name: (NAMES[dtype], shape) for name, (dtype, shape) in layout.items()})

    def save(self, arrays: Mapping[str, NDArray[Any]], meta: CheckpointMeta, schema: bytes) -> Path:
        """Save contiguous arrays, which must not change meanwhile. Raises DataError GD-602."""
        writer = self.begin(meta, schema, {name: (array.dtype.name, array.shape) for name, array in arrays.items()})
        for array in arrays.values():
            writer.write(array)
        return writer.commit()

    def list(self) -> list[Path]:
        """The directories of all complete checkpoints, oldest first; not verified. Raises DataError GD-601."""
        return [self.dir / name for name in sorted(self._names(), key=_number) if not name.startswith(TEMPORARY)]

    def manifests(self) -> Iterator[tuple[Path, Manifest | DataError]]:
        """Every checkpoint with its manifest, or the error, oldest first. Nothing is hashed. Raises DataError GD-601.

        As with `each`, checkpoints that are dropped meanwhile are left out.
        """
        for path in self.list():
            try:
                yield path, glance(path)
            except DataError as error:
                if path.is_dir():
                    yield path, error

    def each(
        self, paths: Sequence[Path] | None = None, into: Into = nothing, say: Say = silent
    ) -> Iterator[tuple[Path, Checkpoint | DataError]]:
        """Every checkpoint, or those of `paths`: verified, or the error. Raises DataError GD-601.

        Checkpoints that are dropped meanwhile are left out: a reader may look on while the peer saves. For `into` and
        `say` see `verify`.
        """
        for path in self.list() if paths is None else paths:
            try:
                yield path, self.verify(path, into, say)
            except DataError as error:
                if path.is_dir():
                    yield path, error

    def latest(self, into: Into = nothing, say: Say = silent) -> tuple[Checkpoint | None, Sequence[Notice]]:
        """The newest checkpoint that verifies, and a notice for every damaged one that was skipped.

        `into` and `say` are as of `verify`. What `into` gave for a damaged one must not be used.
        """
        damaged: list[DataError] = []
        try:
            paths = self.list()
        except DataError as error:
            return None, [Notice(error.code, error.text)]
        for path, found in self.each(paths[::-1], into, say):
            if isinstance(found, Checkpoint):
                return found, [Notice(each.code, f"{each.text}\n  used: {path}") for each in damaged]
            damaged.append(found)
        return None, [Notice(each.code, f"{each.text}\n  used: none, no older one is left") for each in damaged]

    def newest(self) -> tuple[Path, CheckpointMeta] | None:
        """The newest checkpoint with a readable manifest, and its meta data. Its vectors are not checked.

        Raises:
            DataError: GD-601, the directory cannot be listed.
        """
        for path in reversed(self.list()):
            with suppress(OSError, ValueError):
                return path, read_manifest(path).meta
        return None

    @staticmethod
    def saved_at(path: Path) -> float:
        """Unix time at which the checkpoint at `path` was saved; NaN if its manifest cannot be read."""
        try:
            return read_manifest(path).saved_at
        except (OSError, ValueError):
            return math.nan

    def pin(self, path: Path, why: str) -> Sequence[Path]:
        """Keep the checkpoint at `path` until the operator deletes it or its mark, or `PINS` later ones are pinned.

        The mark needs no atomic writing, because its presence is enough.

        Args:
            why: the reason, kept in the mark.

        Returns:
            The checkpoints that lost their pin.

        Raises:
            DataError: GD-601 or GD-602.
        """
        try:
            with suppress(FileExistsError):
                write_file(self.files, path / _PINNED, [why.encode() + b"\n"])
            self.files.sync_directory(path)
            surplus = [each for each in self.list() if self.pinned(each)][:-PINS]
            for each in surplus:
                self.files.remove(each / _PINNED)
        except OSError as error:
            raise unwritable(path / _PINNED, error) from error
        return surplus

    @staticmethod
    def pinned(path: Path) -> bool:
        return (path / _PINNED).exists()

    @staticmethod
    def why_pinned(path: Path) -> str | None:
        """Why the checkpoint at `path` is pinned; "" if the reason was lost; None if it is not pinned."""
        try:
            return read_bounded(path / _PINNED, MAX_REASON).decode(errors="replace").strip()
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return ""

    def prepare(self) -> Path:
        """Make the directory if necessary, and remove what a crash left unfinished.

        What cannot be removed stays, and costs only its room and its number.

        Returns:
            The path of the next checkpoint.

        Raises:
            DataError: GD-601 or GD-602.
        """
        try:
            if not self.dir.is_dir():
                self.files.make_directory(self.dir)
        except OSError as error:
            raise unwritable(self.dir, error) from error
        names = self._names()
        left = [name for name in names if name.startswith(TEMPORARY)]
        if left:
            with suppress(OSError):
                self.files.sync_directory(self.dir)  # on the disk an old one may still have its final name
                for name in left:
                    self.files.remove(self.dir / name)
        return self.dir / f"checkpoint-{max(map(_number, names), default=0) + 1:08d}"

    def prune(self) -> None:
        """Drop all but the newest `keep` and the pinned ones. A failure to delete is no failure to save."""
        try:
            unpinned = [path for path in self.list() if not self.pinned(path)]
        except (OSError, DataError):
            return
        for old in unpinned[: -self.keep]:
            grave = self.dir / f"{TEMPORARY}{old.name}-old"
            with suppress(OSError):
                self.files.rename(old, grave)  # before its first file goes: half a checkpoint looks damaged
                self.files.sync_directory(self.dir)
                self.files.remove(grave)

    def _names(self) -> Sequence[str]:
        """Names of all checkpoints and of the remains of unfinished ones."""
        try:
            return [name for name in self.files.names(self.dir) if _NAME.fullmatch(name)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreadable(str(self.dir), error) from error


def _number(name: str) -> int:
    match = _NAME.fullmatch(name)
    assert match is not None
    return int(match[1] or match[2])
