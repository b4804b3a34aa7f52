"""Names to IP addresses, without blocking the caller. No zmq socket may stand here.

Literal addresses are resolved at once. A name takes a thread until the system's resolver answers: libzmq would look it
up on its only I/O thread and hold up every link meanwhile.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  getaddrinfo loads it at its first name; no descriptor may be left then
import errno
import socket
from typing import Final, NamedTuple

from gossipdp.runtime.background import BackgroundCalls
from gossipdp.runtime.descriptors import spare
from gossipdp.runtime.network.dial_causes import Cause, unresolved
from gossipdp.runtime.network.host_port import plain_ip, split_address

MAX_TARGETS: Final = 4


class Target(NamedTuple):
    """One IP address to dial, or a relay.

    text: for a person.
    endpoint: for the wire.
    routable: whether the routing table has a route.
    relay: the member that is to carry; b"" for an IP address.
    """

    text: str
    endpoint: str
    routable: bool
    relay: bytes = b""

    @property
    def host(self) -> str:
        """The IP address; "" for a relay."""
        return "" if self.relay else plain_ip(split_address(self.text)[0])


class Resolver:
    def __init__(self) -> None:
        self._calls: BackgroundCalls[list[Target] | Cause] = BackgroundCalls("gossipdp-resolver")

    @property
    def pending(self) -> int:
        """Number of names that are being looked up."""
        return self._calls.pending

    def look_up(self, key: str, host: str, port: int) -> list[Target] | Cause | None:
        """Targets for `host:port`, or why there are none. None: `collect` returns the answer later, under `key`."""
        try:
            return _resolve(host, port, socket.AI_NUMERICHOST)
        except UnicodeError:  # the idna codec refuses labels that are empty or too long
            return unresolved("is not a valid name")
        except OSError:
            pass
        if self._calls.start(key, lambda: looked_up(host, port)):
            return None
        return unresolved("too many names are being looked up")

    def collect(self) -> list[tuple[str, list[Target] | Cause]]:
        """What was resolved since the last call."""
        return self._calls.collect()


def unresolved_target(address: str) -> Target:
    """The target that a proxy is to resolve."""
    return Target(address, f"tcp://{address}", True)


def looked_up(host: str, port: int) -> list[Target] | Cause:
    """Targets for `host:port`, or why there are none. It blocks as long as the system's resolver does."""
    try:
        return _resolve(host, port, 0)
    except UnicodeError:
        return unresolved("is not a valid name")
    except OSError as error:
        return unresolved("name not resolved", error.strerror or "")


def _resolve(host: str, port: int, flags: int) -> list[Target]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    targets = {}
    for family, _, _, _, place in found:
        name = str(place[0])
        text = f"[{name}]:{port}" if family == socket.AF_INET6 else f"{name}:{port}"
        targets[text] = Target(text, f"tcp://{text}", _has_route(family, place))
    return list(targets.values())[:MAX_TARGETS]


def _has_route(family: int, place: tuple[str | int | bytes, ...]) -> bool:
    """Connecting a datagram socket sends nothing. It only asks the routing table."""
    try:
        with spare(), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)  # no descriptor to ask with: dialling will tell
    return True
