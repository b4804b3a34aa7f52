"""Small private files of a home: whole, mode 0600 and on the disk before their name appears."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gossipdp.errors import ConfigError
from gossipdp.runtime.descriptors import spare
from gossipdp.runtime.files import reading, unwritable

__all__ = ["KEY_BYTES", "damaged", "key_line", "read_key", "read_keys", "replace_file", "write_new"]

KEY_BYTES: Final = 32
MAX_KEYS: Final = 9
"""keys in one file"""


def write_new(path: Path, data: bytes) -> None:
    """Create `path` whole, 0600 and on the disk, or not at all.

    Raises:
        FileExistsError: the file exists.
        DataError: GD-602.
    """
    _write(path, data, os.link)  # link, unlike rename, refuses to replace


def replace_file(path: Path, data: bytes) -> None:
    """Replace `path` by a whole new file, mode 0600, on the disk before this returns. Raises DataError GD-602."""
    _write(path, data, Path.rename)


def _write(path: Path, data: bytes, name: Callable[[Path, Path], object]) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        with spare():
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            name(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_directory(path.parent)
    except OSError as error:
        if isinstance(error, FileExistsError) and path.exists():
            raise
        raise unwritable(path, error) from error


def _sync_directory(path: Path) -> None:
    with spare():
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def key_line(key: bytes) -> bytes:
    """The contents of a key file: the key in hexadecimal digits, and a checksum against damage."""
    return f"{key.hex()} {_key_checksum(key)}\n".encode()


def _key_checksum(key: bytes) -> str:
    return hashlib.blake2b(key, digest_size=4, person=b"gossipdp-keyfile").hexdigest()


def read_key(path: Path) -> bytes:
    """The one key in a file, or the first of several. See `read_keys`."""
    return read_keys(path)[0]


def read_keys(path: Path) -> list[bytes]:
    """The keys in a file, a line each. Files of earlier versions have no checksum.

    Raises:
        FileNotFoundError: there is no file.
        ConfigError: GD-206, the file is damaged, unreadable or open to other users.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a file")
        with reading(path) as file:
            text = file.read(4 * KEY_BYTES * MAX_KEYS)
    except FileNotFoundError:
        raise
    except OSError as error:
        seen, do = f"{path}: {error.strerror}", "check the file; restore it from a backup if it is lost"
        raise ConfigError("GD-206", "a key file cannot be read", seen=seen, do=do) from None
    mode = stat.S_IMODE(mode)
    if mode & 0o077:
        raise ConfigError(
            "GD-206", "a key file is open to other users", seen=f"{path} has mode {mode:03o}", do=f"chmod 600 {path}"
        )
    keys = [_key_of(line) for line in text.splitlines()]
    found = [key for key in keys if key is not None]
    if not found or len(found) != len(keys):
        raise damaged(path)
    return found


def damaged(path: Path) -> ConfigError:
    """GD-206 for a key file whose lines are not whole."""
    do = "restore it; without it this host joins as a new peer in a new home"
    return ConfigError("GD-206", "a key file is damaged", seen=f"{path}, {path.stat().st_size} bytes", do=do)


def _key_of(line: bytes) -> bytes | None:
    """The key in a line; None if the line is damaged."""
    read = re.fullmatch(rb"([0-9a-f]{64})(?: ([0-9a-f]{8}))?\s*", line)
    if read is None:
        return None
    key = bytes.fromhex(read[1].decode())
    return key if read[2] is None or read[2].decode() == _key_checksum(key) else None
