"""Open files of the daemon: a reserve of descriptors that connections from outside cannot use up.

libzmq accepts connections until the process reaches its limit of open files. So the daemon lowers its soft limit by a
reserve, and lifts it for the moments in which it opens something itself. Open descriptors stay valid. The limit belongs
to the process, so it is kept in this module. A process that claims no reserve keeps its limit.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

__all__ = ["Shares", "accept", "claim", "shares", "spare"]

ENOUGH: Final = 8192
"""open files that a daemon asks for if the hard limit allows it"""
OWN: Final = 64
"""descriptors that a daemon always has open"""
A_LINK: Final = 8
"""descriptors of a dialled link: on each lane a connection, and three mailboxes of its socket and monitor"""

_lock: Final = threading.Lock()
_limit = 0
"""the soft limit with the reserve; 0 before `claim`"""
_inside = 0
"""calls that are using the reserve now"""
_sacrifice = -1
"""descriptor given up for a moment to refuse a connection when none is left"""


class Shares(NamedTuple):
    """The shares of a limit of open files."""

    limit: int
    reserve: int
    """for files that the daemon itself opens"""
    unproven: int
    """for inbound connections without a proven member"""
    links: int


def shares(limit: int = 0) -> Shares:
    """The shares of `limit` open files, of this process's limit by default."""
    limit = limit or _limit or resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    reserve, unproven = min(max(64, limit // 8), limit // 4, 256), min(limit // 8, 256)
    return Shares(limit, reserve, unproven, max(4, (limit - reserve - unproven - OWN) // A_LINK))


def claim() -> None:
    """Raise the limit of this process as far as useful and allowed, and hold the reserve back from now on."""
    global _limit, _sacrifice
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _limit = max(soft, min(ENOUGH, hard))
    _sacrifice = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    _set(_limit - shares().reserve)


@contextmanager
def spare() -> Iterator[None]:
    """Within this context the reserve may be used. Open files in it, and do nothing slow."""
    global _inside
    if not _limit:
        yield
        return
    with _lock:
        _inside += 1
        _set(_limit)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _set(_limit - shares().reserve)


def accept(listener: socket.socket) -> socket.socket | None:
    """The next connection; None if none waits.

    A connection for which no descriptor is left is closed. Otherwise the listener would stay readable forever.
    """
    try:
        return listener.accept()[0]
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            return None
    with spare():
        try:
            return listener.accept()[0]
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                _turn_away(listener)
            return None


def _turn_away(listener: socket.socket) -> None:
    global _sacrifice
    if _sacrifice < 0:
        return
    with _lock:
        os.close(_sacrifice)
        try:
            listener.accept()[0].close()
        except OSError:
            pass
        try:
            _sacrifice = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            _sacrifice = -1


def _set(soft: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
