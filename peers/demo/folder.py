"""The folder that a demo writes to. A marker file identifies it, and only files that a demo makes are removed.

Nothing outside that folder, and no other file in it, may be touched here.
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
_FILE = re.compile(
    rf"(?:{_PEER.pattern}|alone)\.(?:jsonl|log|safetensors)|summary\.json|run\.html|report\.txt|loss\.png"
)


class FolderError(ConfigError):
    """GD-318: --out names a folder that a demo may not use. The exit code is that of a usage error."""

    exit_code = 2


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Claim `folder` for one demo: make it, and remove the files of an earlier demo.

    Raises:
        FolderError: GD-318, it is not a folder, holds other files, or another demo uses it now.
    """
    marker = folder / MARKER
    if folder.exists() and not folder.is_dir():
        raise FolderError("GD-318", "--out is not a folder", seen=str(folder), do="name another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    if not marker.is_file() and (there := sorted(entry.name for entry in folder.iterdir())):
        raise FolderError(
            "GD-318",
            "the folder holds files that are not a demo's",
            seen=f"{folder}: {', '.join(there[:3])}{', ...' if len(there) > 3 else ''}",
            do="name a new or empty folder with --out",
        )
    with open(marker, "a+", encoding="utf-8") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderError(
                "GD-318",
                "another demo runs in this folder",
                seen=str(folder),
                do="wait, or name another with --out",
            ) from None
        held.truncate(0)
        held.write("Made by `gossipdp demo`. It removes its own files here at the next start.\n")
        held.flush()
        _clear(folder)
        yield


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if _FILE.fullmatch(path.name) and (path.is_symlink() or path.is_file()):
            path.unlink()
    homes = folder / "homes"
    if homes.is_symlink():  # not made by a demo: its target stays
        homes.unlink()
    for home in homes.iterdir() if homes.is_dir() else ():
        if _PEER.fullmatch(home.name) and home.is_dir() and not home.is_symlink():
            shutil.rmtree(home)
