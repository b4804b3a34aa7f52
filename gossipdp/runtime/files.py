"""Writes files so that a crash leaves the old contents or the new, and keeps the small state files of a home.

`Files` is the seam to the file system: tests pass one that fails, tears or forgets. State files are JSON, checked
against a type and a size limit when read. Nothing here may unpickle or know what a checkpoint is.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from gossipdp.errors import DataError
from gossipdp.protocol.wire.messages import MAX_ADDRESS, MAX_OTHERS
from gossipdp.runtime import plain_json
from gossipdp.runtime.descriptors import spare

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Files",
    "Hex",
    "Remembered",
    "load_members",
    "load_run",
    "load_state",
    "save_members",
    "save_run",
    "save_state",
    "set_aside",
]

MAX_STATE: Final = 16 << 20
TEMPORARY: Final = ".unfinished-"
Hex = Annotated[str, Meta(pattern=r"^([0-9a-f]{2}){0,64}$")]
T = TypeVar("T")


class Files:
    """What a store asks of a file system."""

    def create(self, path: Path) -> IO[bytes]:
        with spare():
            return open(path, "xb", buffering=0, opener=_private)

    def write(self, file: IO[bytes], piece: memoryview) -> None:
        while piece:
            piece = piece[file.write(piece) or 0 :]

    def sync(self, file: IO[bytes]) -> None:
        os.fsync(file.fileno())

    def make_directory(self, path: Path) -> None:
        """Make `path` and its parents. The parent's name is on the disk before `path` is made.

        An existing parent is synced, too: its last sync may have failed. The caller syncs the name of `path`.
        """
        if not path.parent.is_dir():
            self.make_directory(path.parent)
        self.sync_directory(path.parent.parent)
        path.mkdir(mode=0o700)

    def free(self, directory: Path) -> float:
        """Bytes that may still be written there; infinity if the file system does not tell."""
        room = os.statvfs(directory)
        return room.f_bavail * room.f_frsize if room.f_blocks else math.inf

    def names(self, directory: Path) -> list[str]:
        with spare():
            return os.listdir(directory)

    def rename(self, before: Path, after: Path) -> None:
        os.replace(before, after)

    def sync_directory(self, path: Path) -> None:
        with spare():
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        """Remove a file, or a directory with its contents."""
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


# -- state files -------------------------------------------------------------------------------------------------


def save_state(path: Path, value: Any, files: Files | None = None) -> None:
    """Replace `path` by `value` as JSON. After a crash it holds the old value or the new one, whole.

    Raises:
        DataError: GD-602.
    """
    replace_file(files or Files(), path, [msgspec.json.encode(value)])


def load_state(path: Path, kind: type[T]) -> T | None:
    """The value that `save_state` saved, checked against the msgspec type `kind`. None if there is no file.

    Raises:
        DataError: GD-603, the file is damaged or cannot be read.
    """
    try:
        return plain_json.decode(read_bounded(path, MAX_STATE), kind)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(
            "GD-603", f"{path} cannot be read", seen=str(error), do="move it away; the peer writes a new one"
        ) from None


def set_aside(path: Path, error: DataError) -> str:
    """Rename a damaged file that this peer can do without. Returns the text of a notice."""
    kept = path.with_name(f"{path.name}.damaged")
    try:
        path.rename(kept)
    except OSError as refused:
        return f"{path} is damaged ({error.seen}), is not used, and cannot be moved away: {refused.strerror}"
    return f"{path} is damaged ({error.seen}): it is kept as {kept.name}, and a new one is begun"


class Remembered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member met before, to dial after a restart."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    name: Annotated[str, Meta(max_length=48)]
    address: Annotated[str, Meta(max_length=MAX_ADDRESS)]
    others: Annotated[tuple[Annotated[str, Meta(max_length=MAX_ADDRESS)], ...], Meta(max_length=MAX_OTHERS)] = ()
    known: float = 0.0
    """seconds for which this peer has known it"""


def save_members(path: Path, members: Sequence[Remembered]) -> None:
    """Remember `members`. Raises DataError GD-602."""
    save_state(path, list(members))


def load_members(path: Path) -> list[Remembered]:
    """The remembered members; [] if there is no file. Raises DataError GD-603."""
    return load_state(path, list[Remembered]) or []


def save_run(path: Path, run: bytes) -> None:
    """Remember the run that this home belongs to, so that it never founds another. Raises DataError GD-602."""
    save_state(path, run.hex())


def load_run(path: Path) -> bytes | None:
    """The remembered run id, or None. Raises DataError GD-603."""
    text = load_state(path, Hex)
    return None if text is None else bytes.fromhex(text)


# -- bytes -------------------------------------------------------------------------------------------------------


def bytes_of(piece: NDArray[Any] | memoryview | bytes) -> memoryview:
    view = memoryview(piece)  # type: ignore[arg-type]
    return view.cast("B") if view.nbytes else memoryview(b"")


def write_file(files: Files, path: Path, pieces: Iterable[bytes | NDArray[Any]]) -> None:
    with files.create(path) as file:
        for piece in pieces:
            files.write(file, bytes_of(piece))
        files.sync(file)


def replace_file(files: Files, path: Path, pieces: Iterable[bytes | NDArray[Any]]) -> None:
    """Give `path` new contents, or leave it unchanged. Raises DataError GD-602."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)  # left from a killed process with the same number
        write_file(files, temporary, pieces)
        files.rename(temporary, path)
        files.sync_directory(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def reading(path: Path) -> IO[bytes]:
    with spare():
        return open(path, "rb")


def read_bounded(path: Path, limit: int) -> bytes:
    with reading(path) as file:
        contents = file.read(limit + 1)
    if len(contents) > limit:
        raise ValueError(f"{path.name}: more than {limit} bytes")
    return contents


def unwritable(path: Path, error: OSError) -> DataError:
    return DataError(
        "GD-602", f"{path} could not be written", seen=str(error), do="free disk space, or let this user write there"
    )
