"""Peers that can only dial out, behind a NAT or a firewall say: by whom they are watched, and how they stay in touch.

Such a peer advertises no address. It is a full peer over the links that it opened itself, and nobody relays anything
for it; but SWIM has every member probed by every other, and most have no link to it. So it keeps links to some members
that can be dialled, its moorings, and everybody can tell which they are: those whose ids are nearest to its own by
XOR. Whoever has no link to it asks them to ping it, as SWIM asks any member when a ping of its own is lost.

There are as many moorings as SWIM asks at one time. When one of them is gone the next nearest takes its place, in the
eyes of everybody who knows.

Reference: Maymounkov, Mazieres, "Kademlia" (IPTPS 2002), section 2.1, for the distance.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from typing import Final

from gossipdp.protocol.membership.dissemination import UNASKED, Dissemination
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.wire.messages import Member, Pong

__all__ = ["MOORINGS", "Mooring", "moorings"]

MOORINGS: Final = 3
PERIODS: Final = 4.0
"""probe intervals between two messages to each mooring: often enough that no link is closed for want of use, and that
a lost one is open again before a suspicion ends"""


def moorings(peer: bytes, members: Iterable[Member], count: int = MOORINGS) -> list[bytes]:
    """Of `members`, those that keep a link with the outbound-only `peer`: the nearest that can be dialled."""
    here = int.from_bytes(peer, "big")
    dialable = (member.id for member in members if member.address and member.id != peer)
    return heapq.nsmallest(count, dialable, key=lambda other: here ^ int.from_bytes(other, "big"))


class Mooring:
    """Keeps the links of this peer while it is outbound-only. `at` is when to see to them next."""

    def __init__(self, view: View, dissemination: Dissemination, now: float) -> None:
        self._view, self._dissemination = view, dissemination
        self.at = now

    def timer(self) -> float:
        return math.inf if self._view.me.address else self.at

    def handle_timer(self, now: float) -> None:
        if now < self.timer():
            return
        self.at = now + PERIODS * self._view.config.probe_interval
        for peer in moorings(self._view.me.id, self._view.alive()):
            gossip = Pong(UNASKED, self._dissemination.records(peer, now), self._dissemination.reports(peer, now))
            self._dissemination.send(peer, gossip, now)
