"""Whether relays carry: members are asked to dial this peer through each of them.

A relay that keeps its links, and drops what it should carry, looks like a good one from both sides. So a peer asks
members that it is directly linked with to dial it back through the relay (`dial_backs`). The relay cannot tell such a
dial from any other one. If several members try in vain and none succeeds, the relay counts as one that says no. No
socket or clock may stand here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from gossipdp.protocol.wire.messages import Lane, relay_of, through
from gossipdp.runtime.network.connections import Link
from gossipdp.runtime.network.context import LinksContext
from gossipdp.runtime.network.events import CarriedBy
from gossipdp.runtime.network.send_queues import SendQueues
from gossipdp.runtime.network.signed_hello import DialBack, pack

__all__ = ["RelayChecks"]

CHECK: Final = 6
"""pauses (`TransportLimits.dial_back`) between two checks of a relay that carries"""
OPINIONS: Final = 2
"""members asked in one round, and least members whose dials were in vain before the verdict"""
ROUNDS: Final = 2
"""rounds in vain before the verdict: one dial may fail by chance"""


@dataclass(slots=True)
class _Check:
    due: float
    """when the next round begins"""
    asked: set[bytes] = field(default_factory=set)
    """members asked in this round"""
    vain: set[bytes] = field(default_factory=set)
    """members that have dialled in vain since one was met"""
    rounds: int = 0
    """rounds in vain"""


class RelayChecks:
    """The checks of one peer's relays."""

    def __init__(self, context: LinksContext, queues: SendQueues) -> None:
        self._context, self._queues = context, queues
        self._checks: dict[bytes, _Check] = {}

    def begin(self, relay: bytes) -> None:
        """`relay` has agreed to carry to this peer."""
        if relay not in self._checks:
            self._checks[relay] = _Check(self._context.turn.now + self._pause)

    def keep(self, relays: Collection[bytes]) -> None:
        """Check no other relay any more."""
        self._checks = {relay: check for relay, check in self._checks.items() if relay in relays}

    def answered(self, peer: bytes, address: str, *, met: bool, tried: bool) -> None:
        """`peer` has dialled `address`: did it meet this peer, and was there a way to try?"""
        check = self._checks.get(relay_of(address))
        if check is None or peer not in check.asked:
            return
        if met:
            self._checks[relay_of(address)] = _Check(self._context.turn.now + CHECK * self._pause)
        elif tried:
            check.vain.add(peer)

    def next_timer(self) -> float:
        return min((check.due for check in self._checks.values()), default=math.inf)

    def run_timers(self, links: Iterable[Link]) -> None:
        """Begin the rounds that are due. The most recently used direct `links` are asked first."""
        now = self._context.turn.now
        due = {relay: check for relay, check in self._checks.items() if now >= check.due}
        if not due:
            return
        direct = sorted((link for link in links if not link.via), key=lambda link: link.used, reverse=True)
        for relay, check in due.items():
            check.rounds += bool(check.asked & check.vain)
            if check.rounds >= ROUNDS and len(check.vain) >= OPINIONS:
                del self._checks[relay]
                self._context.turn.tell(CarriedBy(relay, False, "members do not reach this peer through it"))
                continue
            others = [link for link in direct if link.peer != relay]
            # Members of the last round come last. Other members may have a way that these lack.
            chosen = sorted(others, key=lambda link: link.peer in check.asked)[:OPINIONS]
            check.asked = {link.peer for link in chosen}
            for link in chosen:
                question = pack(DialBack(through(relay, self._context.me.identity.id)))
                self._queues.write(link.connections[Lane.CONTROL], question)
            check.due = now + self._pause * (1 if chosen else CHECK)

    @property
    def _pause(self) -> float:
        return self._context.limits.dial_back
