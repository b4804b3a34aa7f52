"""Why a dialled address does not answer, as text for the operator, and what to do about it.

libzmq reports only that a connection was not made or broke off. `look` makes one more connection, sends the start of a
greeting, and reads the answer of the system and of the other side. It blocks: call it in a thread. No zmq socket may
stand here.
"""

from __future__ import annotations

import errno
import secrets
import socket
from functools import partial
from typing import Final, NamedTuple

from gossipdp.runtime.background import BackgroundCalls
from gossipdp.runtime.descriptors import spare
from gossipdp.runtime.network.host_port import split_address

__all__ = [
    "LEADS_BACK",
    "LISTENS",
    "SILENT",
    "SPEAKS_ZMTP",
    "Cause",
    "Looks",
    "dial_text",
    "look",
    "timed_out",
    "unreachable",
    "unresolved",
]

HOLDS: Final = 10.0
"""seconds for which the cause found at an address stays valid"""

SIGNATURE: Final = b"\xff" + bytes(7) + b"\x01\x7f"
"""start of a ZMTP greeting (ZeroMQ RFC 23); a peer answers with its own"""
SPEAKS: Final = 2.0
"""seconds in which a peer sends its greeting"""
SHOWN: Final = 24
"""bytes shown of a greeting that no peer sent"""
SILENT: Final = "see whether the peer there hangs, or another program answers at that address"
SPEAKS_ZMTP: Final = "speaks"
"""the fault of an address that answered with a greeting of ZeroMQ: whatever is wrong comes after it"""
_LOST: Final = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EACCES, errno.EPERM}
)


class Cause(NamedTuple):
    """Code, text, what to do, and a name for scripts. `do` is empty where the advice for the code is enough."""

    code: str
    text: str
    do: str = ""
    fault: str = ""

    def at(self, address: str) -> Cause:
        """The same cause, with `address` in front of its text."""
        return self._replace(text=f"{address} {self.text}")


def dial_text(dialled: str, reason: str, cause: str = "") -> str:
    """Why a dial failed, with each address once. `reason` begins with the address that was tried."""
    return f"{dialled}: {cause}{reason.removeprefix(f'{dialled} ')}"


_CLOSED: Final = Cause(
    "GD-101",
    "connected, then closed without a word: a proxy, or a tunnel, whose peer is not up",
    "start the peer behind the proxy, tunnel or balancer that answers there, or dial the peer itself",
    "proxy",
)
LEADS_BACK: Final = "this address leads back to the dialler itself"
"""text of a cause. It is harmless if another address of the peer works."""
LISTENS: Final = "refused, and listens since"
"""the text of a cause that has passed: a peer there has started meanwhile"""
_LISTENS: Final = Cause("GD-101", LISTENS)
_ANOTHER_SECRET: Final = Cause(
    "GD-201",
    "a peer that broke off the encrypted handshake: the network secret differs, or host or link are too slow",
    fault=SPEAKS_ZMTP,
)


def timed_out(address: str, patience: float) -> Cause:
    """No answer came from ``IP:port`` in `patience` seconds."""
    port = address.rpartition(":")[2]
    do = f"open TCP port {port} of that host in its firewall, security group and router; check that the host is up"
    return Cause("GD-101", f"timed out: no answer in {patience:g} s, as behind a firewall that drops", do, "dropped")


def unreachable(seen: str) -> Cause:
    do = "check the network between the two hosts and the address: no route leads there"
    return Cause("GD-101", f"unreachable: {seen}", do, "no-route")


def unresolved(seen: str) -> Cause:
    do = "check the name: it must be in DNS, or in /etc/hosts of this host"
    return Cause("GD-101", seen, do, "name-unknown")


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
            return Cause("GD-101", "refused", do, "refused")
        except ConnectionResetError:
            return _CLOSED
        except OSError as error:
            if error.errno in _LOST:
                return unreachable(str(error.strerror))
            return Cause("GD-101", f"no connection: {error.strerror}")
        connection.settimeout(SPEAKS)
        try:
            connection.sendall(SIGNATURE)  # the kernel may tell a listener only of connections that have sent data
            said = connection.recv(SHOWN)
        except TimeoutError:
            return _no_peer("answers no greeting", "silent") if broke_off else _LISTENS
        except OSError:
            return _CLOSED
    if not said:
        return _CLOSED
    if not said.startswith(SIGNATURE[:1]):
        return _no_peer(f"answered {said.decode('latin-1')!a}", "another-service")
    return _ANOTHER_SECRET if broke_off else _LISTENS


def _no_peer(seen: str, fault: str) -> Cause:
    do = "correct address and port: another program than a peer answers there"
    return Cause("GD-101", f"{seen}: no gossipdp peer", do, fault)


class Looks:
    """Second looks at addresses, few at a time, each in its own thread.

    Args:
        patience: seconds for a connection.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._calls: BackgroundCalls[Cause] = BackgroundCalls("gossipdp-dial")
        self._under_way: dict[str, tuple[str, bool]] = {}
        self._found: dict[tuple[str, bool], tuple[float, Cause]] = {}
        """time and cause of the last look, by address and by whether the connection had broken off"""

    @property
    def pending(self) -> int:
        return self._calls.pending

    def begin(self, address: str, failed: Cause, broke_off: bool, elapsed: float, now: float) -> Cause | str:
        """Why `address` did not answer, or the key under which `collect` returns the cause.

        Args:
            failed: what libzmq reports.
            broke_off: a connection was made, and ended in the encrypted handshake.
            elapsed: seconds from the dial to the failure.
        """
        what = address, broke_off
        if not broke_off and elapsed >= 0.9 * self._patience:
            return timed_out(address, self._patience)
        if what in self._found and now < self._found[what][0] + HOLDS:
            return self._found[what][1]
        key = secrets.token_hex(8)
        if not self._calls.start(key, partial(look, *what, self._patience)):
            return failed
        self._under_way[key] = what
        return key

    def collect(self, now: float) -> list[tuple[str, Cause]]:
        """Causes found since the last call, by key."""
        found = self._calls.collect()
        for key, cause in found:
            self._found[self._under_way.pop(key)] = now, cause
        return found

    def sweep(self, now: float) -> None:
        """Forget causes that are no longer valid."""
        self._found = {what: found for what, found in self._found.items() if now < found[0] + HOLDS}
