"""Unix sockets for both ends of the link: their paths, their users, and one packet. Nothing here may know a message."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gossipdp.errors import ConfigError
from gossipdp.runtime.descriptors import spare
from gossipdp.runtime.home_paths import expanded, homes_of_user

__all__ = [
    "ATTEMPT",
    "MAX_PACKET",
    "check_private",
    "default_home",
    "expected",
    "is_default",
    "others_that_run",
    "receive",
    "short_paths",
    "shut",
    "socket_path",
    "supervised",
    "user_of",
]

DEFAULT_NETWORK: Final = "gossipdp"
ATTEMPT: Final = "GOSSIPDP_ATTEMPT"
"""the variable in which a supervisor counts the starts of the training command"""
KEY: Final = "identity.key"
"""the key file of a home, which `identity` writes; named here so that training need not import that"""
MAX_PACKET: Final = 64 << 10
"""bytes"""
MAX_PATH: Final = 107
"""bytes of a unix socket's path (sun_path, less its final zero)"""


def default_home(environment: Mapping[str, str] | None = None) -> Path:
    """GOSSIPDP_HOME, or ~/.gossipdp/NETWORK. Raises ConfigError GD-314."""
    environment = os.environ if environment is None else environment
    if home := environment.get("GOSSIPDP_HOME"):
        return expanded(home)
    return homes_of_user(environment) / (environment.get("GOSSIPDP_NETWORK_NAME") or DEFAULT_NETWORK)


def is_default(home: Path) -> bool:
    """Whether `home` is the one that is meant if none is named."""
    try:
        return home == default_home({})
    except ConfigError:  # this user has no home directory
        return False


def short_paths() -> Path:
    """The folder for sockets of homes with long paths."""
    return Path(f"/tmp/gossipdp-{os.geteuid()}")


def socket_path(home: Path, name: str = "link.sock") -> Path:
    """HOME/NAME, or a short path if that is too long for a socket.

    The short path does not depend on the environment, so a daemon and a training process started by different means
    agree on it.
    """
    path = Path(os.path.realpath(home)) / name
    if len(os.fsencode(path)) <= MAX_PATH:
        return path
    return short_paths() / f"{hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()}.sock"


def expected(home: Path) -> bool:
    """Whether a daemon of this home may be starting. A killed daemon leaves its socket, and a made home has a key."""
    try:
        return socket_path(home).exists() or (home / KEY).exists()
    except OSError:  # this user may not look into the home
        return False


def supervised(home: Path) -> bool:
    """Whether this process is the training command of `home`, so that a supervisor starts its daemon again."""
    return ATTEMPT in os.environ and default_home() == home


def others_that_run(home: Path) -> list[Path]:
    """Homes of this user, beside `home`, whose daemons answer."""
    try:
        homes = [each for each in sorted(homes_of_user(os.environ).iterdir()) if each != home and expected(each)]
    except (OSError, ConfigError):
        return []
    return [each for each in homes if _answers(socket_path(each))]


def _answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.setblocking(False)
            connection.connect(str(path))
            return user_of(connection) == os.geteuid()
    except OSError:
        return False


def check_private(directory: Path) -> None:
    """Raises OSError unless `directory` belongs to this user alone. Anyone may make one in /tmp."""
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise OSError(errno.EPERM, "not a directory of this user alone", str(directory))


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """One packet and the descriptors that came with it; b"" at the end-of-file. Raises OSError."""
    with spare():
        try:
            packet, fds, flags, _ = socket.recv_fds(connection, MAX_PACKET, 4, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            # The other end closed without reading everything. That is reported once, before its last messages.
            packet, fds, flags, _ = socket.recv_fds(connection, MAX_PACKET, 4, socket.MSG_CMSG_CLOEXEC)
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for received in fds:
            os.close(received)
        raise OSError(errno.EMSGSIZE, "a packet past its limit")
    return packet, list(fds)


def user_of(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
