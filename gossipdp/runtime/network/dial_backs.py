"""Asks members to dial this peer back where it advertises, and answers members that ask the same of this one.

What follows from the answers is decided in `reachability`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network import signed_hello
from gossipdp.runtime.network.connections import Link
from gossipdp.runtime.network.context import LinksContext
from gossipdp.runtime.network.events import Dialable
from gossipdp.runtime.network.host_port import join_address
from gossipdp.runtime.network.reach import is_public
from gossipdp.runtime.network.reachability import Reachability
from gossipdp.runtime.network.send_queues import SendQueues
from gossipdp.runtime.network.signed_hello import pack

__all__ = ["DialBacks"]


class DialBacks:
    def __init__(self, context: LinksContext, queues: SendQueues) -> None:
        self._context, self._queues = context, queues
        self.reachability = Reachability((), context.limits.dial_back)
        self._port = 0
        self._told: tuple[str, ...] = ()
        self._answered: dict[bytes, float] = {}
        """when each member was last dialled back"""

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
        known = [each for each in self.reachability.addresses if is_public(each)]
        if host and self._port and is_public(address) and not any(("[" in each) == ("[" in address) for each in known):
            self.reachability.consider(address, self._context.turn.now)

    def met(self, peer: bytes, address: str) -> None:
        """`peer` met this peer at `address`."""
        self.reachability.met(peer, address, self._context.turn.now)
        self._tell()

    def in_vain(self, peer: bytes, address: str, *, tried: bool) -> None:
        """`peer` did not meet this peer at `address`."""
        self.reachability.in_vain(peer, address, self._context.turn.now, tried=tried)

    def may_ask(self, asker: bytes) -> bool:
        """Whether `asker` is dialled back now: rarely, so that a member cannot have others probe addresses."""
        now, pause = self._context.turn.now, self._context.limits.dial_back / 2
        if now < self._answered.get(asker, -math.inf) + pause:
            return False
        self._answered[asker] = now
        return True

    def next_timer(self) -> float:
        return self.reachability.timer()

    def run_timers(self, links: Iterable[Link]) -> None:
        """End a round of questions that is over, and ask the peers of the most recently used `links` again."""
        now = self._context.turn.now
        if now < self.reachability.timer():
            return
        self.reachability.end_round()
        self._tell()
        latest = {link.peer: link for link in sorted(links, key=lambda link: link.used, reverse=True)}
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
