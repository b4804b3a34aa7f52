"""Asks members to dial this peer back where it advertises, and answers what members and their doctors ask.

`reachability` decides what follows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network import signed_hello
from gossipdp.runtime.network.connections import Connection, Link
from gossipdp.runtime.network.context import LinksContext
from gossipdp.runtime.network.events import Dialable, DialledBack, Measured
from gossipdp.runtime.network.host_port import join_address
from gossipdp.runtime.network.reach import far_network
from gossipdp.runtime.network.reachability import Reachability
from gossipdp.runtime.network.send_queues import SendQueues
from gossipdp.runtime.network.signed_hello import pack

__all__ = ["BUDGET", "MAX_DIAL_BACKS", "DialBacks", "Examining"]

MAX_DIAL_BACKS: Final = 4
"""members that are dialled back at one time"""
ANSWER: Final = 0.5
"""Share of a pause after which a member hears that it was not met. It hears no sooner, and asks no more often: the time
would tell it which ports are open."""


@dataclass(slots=True)
class _Question:
    """A member asked to be dialled back at `address`, and hears at `due` that it was not met.

    tried: whether its host has the address; None while nothing came of it.
    """

    address: str
    due: float
    tried: bool | None = None


class DialBacks:
    def __init__(self, context: LinksContext, queues: SendQueues) -> None:
        self._context, self._queues = context, queues
        self.reachability = Reachability((), context.limits.dial_back)
        self._port = 0
        self._told: tuple[str, ...] = ()
        self._answered: dict[bytes, float] = {}
        """when each member was last dialled back"""
        self._asked: dict[bytes, _Question] = {}
        """what members asked that were not met yet"""

    def advertise(self, addresses: Sequence[str], port: int) -> None:
        """Find out whether other peers can dial `addresses`, and `port` where they see this peer come from (0: not)."""
        self._port = port
        self.reachability = Reachability(addresses, self._context.limits.dial_back)
        self._told = self.reachability.usable

    def link_up(self, inbound: bool) -> None:
        self.reachability.link_up(inbound, self._context.turn.now)
        self._tell()

    def seen_at(self, host: str) -> None:
        """A member sees this peer come from the IP address `host`. Ask about it if no such address is advertised."""
        address = join_address(host, self._port)
        network = far_network(address)
        if host and self._port and network and network not in map(far_network, self.reachability.addresses):
            self.reachability.consider(address, self._context.turn.now)

    def met(self, peer: bytes, address: str) -> None:
        """`peer` met this peer at `address`."""
        self.reachability.met(peer, address, self._context.turn.now)
        self._tell()

    def in_vain(self, peer: bytes, address: str, *, tried: bool) -> None:
        """`peer` did not meet this peer at `address`."""
        self.reachability.in_vain(peer, address, self._context.turn.now, tried=tried)

    def asked(self, asker: bytes, address: str) -> float | None:
        """Until when to dial `asker` back at `address`; None if it is not dialled."""
        now, pause = self._context.turn.now, self._context.limits.dial_back * ANSWER
        if now < self._answered.get(asker, -math.inf) + pause or len(self._asked) >= MAX_DIAL_BACKS:
            return None
        self._answered[asker] = now
        self._asked[asker] = _Question(address, now + pause)
        return now + pause

    def dialled(self, asker: bytes, address: str, *, met: bool, tried: bool) -> bool:
        """What came of such a dial. Returns whether `asker` hears now that it was met."""
        question = self._asked.get(asker)
        if question is None or question.address != address:
            return False
        question.tried = tried
        if met:
            del self._asked[asker]
        return met

    def overdue(self) -> list[tuple[bytes, str, bool]]:
        """Members that hear now that they were not met: id, address, and whether it was tried."""
        now = self._context.turn.now
        due = {asker: question for asker, question in self._asked.items() if now >= question.due}
        self._asked = {asker: question for asker, question in self._asked.items() if asker not in due}
        return [(asker, each.address, each.tried) for asker, each in due.items() if each.tried is not None]

    def next_timer(self) -> float:
        return min(self.reachability.timer(), *(question.due for question in self._asked.values()), math.inf)

    def run_timers(self, links: Iterable[Link]) -> None:
        """End a round of questions that is over, and ask the peers of the most recently used `links` again."""
        now = self._context.turn.now
        if now < self.reachability.timer():
            return
        self.reachability.end_round()
        self._tell()
        latest = {link.peer: link for link in sorted(links, key=lambda link: link.used, reverse=True) if not link.via}
        for peer in self.reachability.begin_round(latest, now):
            question = pack(signed_hello.DialBack(self.reachability.address))
            self._queues.write(latest[peer].connections[Lane.CONTROL], question)

    def sweep(self) -> None:
        recent = self._context.turn.now - self._context.limits.dial_back
        self._answered = {peer: when for peer, when in self._answered.items() if when > recent}

    def _tell(self) -> None:
        """Tell the driver if the addresses at which this peer can be dialled have changed."""
        reach = self.reachability
        if reach.usable != self._told:
            gone = tuple(address for address in reach.dropped if address in self._told)
            found = tuple(address for address in reach.usable if address not in (*self._told, *reach.addresses))
            self._told = reach.usable
            opinions = sum(reach.opinions[address] for address in gone)
            self._context.turn.tell(Dialable(reach.usable, gone, opinions, found))


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
