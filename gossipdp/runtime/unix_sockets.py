"""Unix sockets for both ends of the link: their paths, their users, and one packet. Nothing here may know a message."""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gossipdp.errors import ConfigError
from gossipdp.runtime.descriptors import spare
from gossipdp.runtime.home_paths import expanded, homes_of_user

__all__ = [
    "ATTEMPT",
    "MAX_PACKET",
    "Listening",
    "address",
    "default_home",
    "expected",
    "is_default",
    "others_that_run",
    "receive",
    "shut",
    "socket_path",
    "supervised",
    "user_of",
]

log = logging.getLogger("gossipdp.link")

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


def socket_path(home: Path, name: str = "link.sock") -> Path:
    """HOME/NAME, whatever its length: see `address`."""
    return Path(os.path.realpath(home)) / name


@contextmanager
def address(path: Path) -> Iterator[str]:
    """What `bind` and `connect` take for `path`. A longer path than they take is named by its folder's descriptor.

    Raises:
        OSError: the folder does not exist, or this user may not look into it.
    """
    if len(os.fsencode(path)) <= MAX_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class Listening:
    """A socket in a home, which listens to this user alone. It never waits.

    Args:
        path: of its file, in an existing folder.
        kind: SOCK_SEQPACKET or SOCK_STREAM.
        backlog: connections that wait to be accepted.

    Raises:
        OSError: it cannot be made, or another process listens there.
    """

    def __init__(self, path: Path, kind: socket.SocketKind, backlog: int) -> None:
        self._path, self._kind, self._backlog = path, kind, backlog
        self.socket = self._open()

    def _open(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, self._kind)
        try:
            listener.setblocking(False)
            with address(self._path) as where:
                if self._path.exists():
                    with socket.socket(socket.AF_UNIX, self._kind) as probe:
                        probe.setblocking(False)
                        if probe.connect_ex(where) != errno.ECONNREFUSED:
                            raise OSError(errno.EADDRINUSE, "a daemon is listening there")
                    self._path.unlink()
                # The file takes the mode of the descriptor. So it is never open to others, whatever the umask.
                os.fchmod(listener.fileno(), 0o600)
                listener.bind(where)
            listener.listen(self._backlog)
            self._inode = os.stat(self._path).st_ino
        except OSError:
            listener.close()
            raise
        return listener

    def renew(self) -> bool:
        """Listen anew if the file is gone: cleaners delete old ones. Returns whether `socket` is another one now."""
        if self._path.exists():
            return False
        try:
            renewed = self._open()
        except OSError:  # the home is gone, or no descriptor is left
            return False
        self.socket.close()
        self.socket = renewed
        log.warning("%s was deleted: this daemon listens there again", self._path)
        return True

    def close(self) -> None:
        """Stop, and delete the file unless it is another daemon's. A second call does nothing."""
        if self.socket.fileno() < 0:
            return
        try:
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        except OSError:
            pass
        self.socket.close()


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
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection, address(path) as where:
            connection.setblocking(False)
            connection.connect(where)
            return user_of(connection) == os.geteuid()
    except OSError:
        return False


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
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, f"no room for the files of a packet: {os.strerror(errno.EMFILE)}")
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
