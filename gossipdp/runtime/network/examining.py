"""What `gossipdp doctor` asks members, and how a member answers.

A member serves only peers of its network, and each of them within a budget: its link is for exchanges.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network import signed_hello
from gossipdp.runtime.network.connections import Connection, Link
from gossipdp.runtime.network.context import LinksContext
from gossipdp.runtime.network.events import DialledBack, Measured
from gossipdp.runtime.network.send_queues import SendQueues

__all__ = ["BUDGET", "Examining"]

BUDGET: Final = 64 << 20
"""bytes of filler, both ways together, that one asker gets answers for in a `WINDOW`"""
TOTAL: Final = 2 * BUDGET
"""the same bound for all askers together"""
WINDOW: Final = 60.0
"""seconds"""
_FILLER: Final = bytes(signed_hello.MAX_FILLER)


class Examining:
    """Asks and answers for one peer.

    Args:
        wall: the system clock, in seconds since 1970.
    """

    def __init__(self, context: LinksContext, queues: SendQueues, wall: Callable[[], float] = time.time) -> None:
        self._context, self._queues, self._wall = context, queues, wall
        self._asked: set[tuple[bytes, str]] = set()
        self._spent: dict[bytes, int] = {}
        self._since = -math.inf
        """begin of the present window"""

    # -- questions -----------------------------------------------------------------------------------------------

    def measure(self, link: Link, lane: Lane, number: int, send: int, back: int) -> bool:
        """See `Transport.measure`."""
        frames = signed_hello.pack(signed_hello.Measure(number, back))
        return self._queues.write(link.connections[lane], frames + _filler(send), send)

    def ask_to_dial_back(self, link: Link, address: str) -> bool:
        """See `Transport.ask_to_dial_back`."""
        self._asked.add((link.peer, address))
        return self._queues.write(link.connections[Lane.CONTROL], signed_hello.pack(signed_hello.DialBack(address)))

    # -- answers -------------------------------------------------------------------------------------------------

    def take(self, link: Link, connection: Connection, message: signed_hello.ServiceMessage, filler: int) -> None:
        """Answer a question, or tell the driver of an answer. `filler`: bytes that came with the message.

        Raises:
            RemoteProtocolError: more filler than allowed.
        """
        if filler > signed_hello.MAX_FILLER:
            raise RemoteProtocolError("more filler than allowed")
        if filler:
            self._context.counters.count_received(link.peer, connection.lane, filler)
        if isinstance(message, signed_hello.Measure):
            back = message.back if self._grants(link.peer, filler + message.back) else 0
            answer = signed_hello.pack(signed_hello.Measured(message.number, self._wall(), filler))
            self._queues.write(connection, answer + _filler(back), back)
        elif isinstance(message, signed_hello.Measured):
            told = Measured(link.peer, message.number, message.clock, message.received, filler)
            self._context.turn.tell(told)

    def dialled_back(self, peer: bytes, address: str, *, met: bool, tried: bool) -> None:
        """`peer` has dialled `address`. Tell the driver if it had asked for that."""
        if (peer, address) in self._asked:
            self._asked.discard((peer, address))
            self._context.turn.tell(DialledBack(peer, address, met, tried))

    def _grants(self, asker: bytes, size: int) -> bool:
        now = self._context.turn.now
        if now >= self._since + WINDOW:
            self._since = now
            self._spent.clear()
        if self._spent.get(asker, 0) + size > BUDGET or sum(self._spent.values()) + size > TOTAL:
            return False
        self._spent[asker] = self._spent.get(asker, 0) + size
        return True


def _filler(size: int) -> list[Buffer]:
    return [memoryview(_FILLER)[:size]] if size else []
