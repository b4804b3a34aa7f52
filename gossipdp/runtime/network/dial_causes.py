"""Why a dialled address does not answer, and what to do about it: a value to decide on, and text for the operator.

libzmq reports only that a connection was not made or broke off. `look` makes one more connection, sends the start of a
greeting, and reads the answer of the system and of the other side. It blocks: call it in a thread. No zmq socket may
stand here.
"""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

from gossipdp.runtime.background import BackgroundCalls
from gossipdp.runtime.descriptors import spare
from gossipdp.runtime.network.host_port import split_address

__all__ = [
    "LEADS_BACK",
    "SILENT",
    "Cause",
    "DialFault",
    "Looks",
    "dial_text",
    "foremost",
    "look",
    "no_greeting",
    "not_a_peer",
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
SILENT: Final = "check whether the peer there hangs, or another program answers at that address"
LEADS_BACK: Final = "this address leads back to the dialler itself"
"""what a peer answers to its own hello"""
_LOST: Final = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EACCES, errno.EPERM}
)


class DialFault(StrEnum):
    """What is wrong with an address. The value is its name for scripts."""

    NOT_AN_ADDRESS = "not-an-address"
    NAME_UNKNOWN = "name-unknown"
    NO_ROUTE = "no-route"
    DROPPED = "dropped"
    REFUSED = "refused"
    PROXY = "proxy"
    NO_PROXY = "no-proxy"
    """Where `[network] proxy` leads, no SOCKS5 proxy answers."""
    PROXY_LOGIN = "proxy-login"
    PROXY_REFUSES = "proxy-refuses"
    SILENT = "silent"
    ANOTHER_SERVICE = "another-service"
    LISTENS = "listens"
    """It was refused, and has passed: a peer there has started meanwhile."""
    SPEAKS = "speaks"
    """The address answered with a greeting of ZeroMQ: whatever is wrong comes after it."""
    LEADS_BACK = "leads-back"
    """The address is the dialler's own. It is harmless if another address of the peer works."""
    SLOW_HANDSHAKE = "slow-handshake"
    WRONG_SECRET = "wrong-secret"
    WRONG_KEY = "wrong-key"
    OTHER_NETWORK = "other-network"
    NOT_ALLOWED = "not-allowed"
    COPIED_HOME = "copied-home"
    OLD_SECRET = "old-secret"
    OTHER_VERSION = "other-version"


class Cause(NamedTuple):
    """Why an address did not answer."""

    code: str
    brief: str
    detail: str = ""
    do: str = ""
    """empty where the advice for the code is enough"""
    fault: DialFault | None = None
    address: str = ""
    """that was tried"""

    def at(self, address: str) -> Cause:
        """The same cause, of `address`."""
        return self._replace(address=address)

    @property
    def text(self) -> str:
        """The cause in words."""
        return f"{self.brief}: {self.detail}" if self.detail else self.brief

    def told(self, known: str = "") -> str:
        """The cause in words, with the address that was tried, unless that is `known`."""
        return self.text if self.address in ("", known) else f"{self.address} {self.text}"


def foremost(causes: Sequence[Cause]) -> Cause:
    """The cause that says most of a dial: the first other than that no peer answers."""
    return min(causes, key=lambda cause: cause.code == "GD-101", default=Cause("GD-101", ""))


def dial_text(dialled: str, causes: Sequence[Cause], prefix: str = "") -> str:
    """Why a dial failed, with each address once."""
    return f"{dialled}: {prefix}{'; '.join(cause.told(dialled) for cause in causes)}"


_CLOSED: Final = Cause(
    "GD-101",
    "connected, then closed without an answer",
    "probably a proxy or tunnel whose peer is not up",
    "start the peer behind the proxy, tunnel or load balancer that answers there, or dial the peer itself",
    DialFault.PROXY,
)
_LISTENS: Final = Cause("GD-101", "refused at first, but listening now", fault=DialFault.LISTENS)
_ANOTHER_SECRET: Final = Cause(
    "GD-201",
    "the peer broke off the encrypted handshake",
    "the network secret differs, or the host or the link is too slow",
    fault=DialFault.SPEAKS,
)


def timed_out(address: str, patience: float) -> Cause:
    """No answer came from ``IP:port`` in `patience` seconds."""
    port = address.rpartition(":")[2]
    do = f"open TCP port {port} of that host in its firewall, security group and router; check that the host is up"
    detail = f"no answer in {patience:g} s, as if a firewall drops the packets"
    return Cause("GD-101", "timed out", detail, do, DialFault.DROPPED)


def unreachable(seen: str) -> Cause:
    do = "check the address and the network between the two hosts: no route leads there"
    return Cause("GD-101", "unreachable", seen, do, DialFault.NO_ROUTE)


def unresolved(seen: str, detail: str = "") -> Cause:
    do = "check the name: it must be in DNS, or in /etc/hosts of this host"
    return Cause("GD-101", seen, detail, do, DialFault.NAME_UNKNOWN)


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
        return Cause("GD-104", "cannot open a socket here", error.strerror or "")
    with connection:
        connection.settimeout(patience)
        try:
            connection.connect((host, port))
        except TimeoutError:
            return timed_out(address, patience)
        except ConnectionRefusedError:
            do = f"start a peer there, or correct the address: no program of that host listens on port {port}"
            return Cause("GD-101", "refused", "", do, DialFault.REFUSED)
        except ConnectionResetError:
            return _CLOSED
        except OSError as error:
            if error.errno in _LOST:
                return unreachable(str(error.strerror))
            return Cause("GD-101", "no connection", error.strerror or "")
        connection.settimeout(SPEAKS)
        try:
            connection.sendall(SIGNATURE)  # the kernel may tell a listener only of connections that have sent data
            said = connection.recv(SHOWN)
        except TimeoutError:
            return no_greeting() if broke_off else _LISTENS
        except OSError:
            return _CLOSED
    return not_a_peer(said) or (_ANOTHER_SECRET if broke_off else _LISTENS)


def not_a_peer(said: bytes) -> Cause | None:
    """Why the begin of an answer, b"" if it ended at once, is that of no peer; None if it is that of one."""
    if not said:
        return _CLOSED
    if said[0] != SIGNATURE[0]:
        return _no_peer(f"answered {said[:SHOWN].decode('latin-1')!a}", DialFault.ANOTHER_SERVICE)
    return None


def no_greeting() -> Cause:
    """A connection was made, and nothing was said on it."""
    return _no_peer("does not answer the greeting", DialFault.SILENT)


def _no_peer(seen: str, fault: DialFault) -> Cause:
    do = "correct address and port: the program that answers there is not a peer"
    return Cause("GD-101", seen, "not a gossipdp peer", do, fault)


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
