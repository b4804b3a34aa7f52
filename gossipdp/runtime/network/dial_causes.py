"""Why a dialled address does not answer, in words for people, and what to do about it.

libzmq says only that a connection was not made, or broke off. `look` makes one more connection, says no more
than the begin of a greeting, and sees what the system and the other side say. It blocks: call it in a thread. No zmq
socket may stand here.
"""

from __future__ import annotations

import errno
import secrets
import socket
from functools import partial
from typing import Final, NamedTuple

from gossipdp.runtime.background import Errands
from gossipdp.runtime.descriptors import spare
from gossipdp.runtime.network.identity import split_address

__all__ = ["SILENT", "Cause", "Looks", "look", "timed_out", "unreachable", "unresolved"]

HOLDS: Final = 10.0
"""Seconds for which what was found at an address holds."""

SIGNATURE: Final = b"\xff" + bytes(7) + b"\x01\x7f"
"""How a ZMTP greeting begins (ZeroMQ RFC 23). A peer answers it with its own."""
SPEAKS: Final = 2.0
"""Seconds in which a peer sends its greeting."""
SHOWN: Final = 24
"""Bytes of a stranger's greeting that are shown."""
SILENT: Final = "see whether the peer there hangs, or another program answers at that address"
_LOST: Final = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EACCES, errno.EPERM}
)


class Cause(NamedTuple):
    """`do` is empty where the advice for the code says it."""

    code: str
    text: str
    do: str = ""

    def at(self, address: str) -> Cause:
        """The same, of `address`."""
        return self._replace(text=f"{address} {self.text}")


def told(dialled: str, reason: str, cause: str = "") -> str:
    """Why a dial failed, with each address once: `reason` begins with that which was tried."""
    return f"{dialled}: {cause}{reason.removeprefix(f'{dialled} ')}"


_CLOSED: Final = Cause(
    "GD-101",
    "connected, then closed without a word: a proxy, or a tunnel, whose peer is not up",
    "start the peer behind the proxy, tunnel or balancer that answers there, or dial the peer itself",
)
_LISTENS: Final = Cause("GD-101", "refused, and listens since")
_ANOTHER_SECRET: Final = Cause(
    "GD-201", "a peer that broke off the encrypted handshake: the network secret differs, or it is too busy"
)


def timed_out(address: str, patience: float) -> Cause:
    """Nothing came back from ``IP:port`` in `patience` seconds, neither yes nor no."""
    port = address.rpartition(":")[2]
    do = f"open TCP port {port} of that host in its firewall, security group and router; see that the host is up"
    return Cause("GD-101", f"timed out: no answer in {patience:g} s, as behind a firewall that drops", do)


def unreachable(seen: str) -> Cause:
    do = "see to the network between the two hosts and to the address: no route leads there"
    return Cause("GD-101", f"unreachable: {seen}", do)


def unresolved(seen: str) -> Cause:
    return Cause("GD-101", seen, "see to the name: it must be in DNS, or in /etc/hosts of this host")


def look(address: str, broke_off: bool, patience: float) -> Cause:
    """Connect to `address` once more.

    Args:
        address: ``IP:port``.
        broke_off: the first connection was made, and ended in the encrypted handshake.
        patience: seconds for the connection.
    """
    host, port = split_address(address)
    try:
        with spare():
            connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        return Cause("GD-104", f"no socket here: {error.strerror}")
    with connection:
        connection.settimeout(patience)
        try:
            connection.connect((host, port))
        except TimeoutError:
            return timed_out(address, patience)
        except ConnectionRefusedError:
            do = f"start a peer there, or correct the address: no program of that host listens on port {port}"
            return Cause("GD-101", "refused", do)
        except ConnectionResetError:
            return _CLOSED
        except OSError as error:
            if error.errno in _LOST:
                return unreachable(str(error.strerror))
            return Cause("GD-101", f"no connection: {error.strerror}")
        connection.settimeout(SPEAKS)
        try:
            connection.sendall(SIGNATURE)  # a listener may not be told of a connection on which nothing has come
            said = connection.recv(SHOWN)
        except TimeoutError:
            return _stranger("answers no greeting") if broke_off else _LISTENS
        except OSError:
            return _CLOSED
    if not said:
        return _CLOSED
    if not said.startswith(SIGNATURE[:1]):
        return _stranger(f"answered {said.decode('latin-1')!a}")
    return _ANOTHER_SECRET if broke_off else _LISTENS


def _stranger(seen: str) -> Cause:
    do = "correct address and port: another program than a peer answers there"
    return Cause("GD-101", f"{seen}: no gossipdp peer", do)


class Looks:
    """Second looks, few at a time, each in a thread of its own. `patience`: seconds for a connection."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._errands: Errands[Cause] = Errands("gossipdp-dial")
        self._under_way: dict[str, tuple[str, bool]] = {}
        self._found: dict[tuple[str, bool], tuple[float, Cause]] = {}
        """By address and whether the connection had broken off: when it was looked at, and what was found."""

    @property
    def pending(self) -> int:
        return self._errands.pending

    def begin(self, address: str, failed: Cause, broke_off: bool, elapsed: float, now: float) -> Cause | str:
        """Why `address` did not answer, or the key under which `collect` returns that.

        Args:
            failed: what libzmq tells.
            broke_off: there was a connection, which ended in the encrypted handshake.
            elapsed: seconds from the dial to the failure.
        """
        what = address, broke_off
        if not broke_off and elapsed >= 0.9 * self._patience:
            return timed_out(address, self._patience)
        if what in self._found and now < self._found[what][0] + HOLDS:
            return self._found[what][1]
        key = secrets.token_hex(8)
        if not self._errands.start(key, partial(look, *what, self._patience)):
            return failed
        self._under_way[key] = what
        return key

    def collect(self, now: float) -> list[tuple[str, Cause]]:
        """What was found since the last call, by key."""
        found = self._errands.collect()
        for key, cause in found:
            self._found[self._under_way.pop(key)] = now, cause
        return found

    def sweep(self, now: float) -> None:
        """Forget what does not hold any more."""
        self._found = {what: found for what, found in self._found.items() if now < found[0] + HOLDS}
