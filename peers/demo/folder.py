"""The folder a demo writes to: a marker file says that it is one, and only names that a demo makes are ever removed.

Nothing outside that folder may be touched here, and nobody else's file in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from gossipdp.errors import ConfigError

__all__ = ["MARKER", "FolderError", "claimed"]

MARKER = ".gossipdp-demo"
_PEER = re.compile(r"peer[1-9]\d?")
_FILE = re.compile(rf"(?:{_PEER.pattern}|alone)\.(?:jsonl|log|safetensors)|summary\.json|report\.txt|loss\.png")


class FolderError(ConfigError):
    """GD-318: --out names a folder that no demo may use. A mistake in the command line, and so its exit code."""

    exit_code = 2


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """`folder`, made if need be and rid of what an earlier demo left there; no other demo can have it meanwhile.

    Raises:
        FolderError: GD-318, it is no folder, holds files without being a demo's, or is another demo's at the moment.
    """
    marker = folder / MARKER
    if folder.exists() and not folder.is_dir():
        raise FolderError("GD-318", "--out is no folder", seen=str(folder), do="name another with --out")
    folder.mkdir(parents=True, exist_ok=True)
    if not marker.is_file() and (there := sorted(entry.name for entry in folder.iterdir())):
        raise FolderError(
            "GD-318",
            "the folder holds files, and no demo has been there",
            seen=f"{folder}: {', '.join(there[:3])}{', ...' if len(there) > 3 else ''}",
            do="name a new or an empty folder with --out",
        )
    with open(marker, "a+", encoding="utf-8") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderError(
                "GD-318", "another demo runs in this folder", seen=str(folder), do="wait, or name another with --out"
            ) from None
        held.truncate(0)
        held.write("Made by `gossipdp demo`, which removes its own files here when it is started again.\n")
        held.flush()
        _clear(folder)
        yield


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if _FILE.fullmatch(path.name) and (path.is_symlink() or path.is_file()):
            path.unlink()
    homes = folder / "homes"
    if homes.is_symlink():  # no demo makes one, and what it leads to is somebody else's
        homes.unlink()
    for home in homes.iterdir() if homes.is_dir() else ():
        if _PEER.fullmatch(home.name) and home.is_dir() and not home.is_symlink():
            shutil.rmtree(home)
