"""Peers that can only dial out, such as those behind a NAT: how they stay linked, and which members probe them.

Such a peer advertises no address. It is a full peer over the links that it opened itself, and no member relays payloads
for it. But SWIM has every member probe every other, and most have no link to it. So it keeps links to a few members
that can be dialled, its *relays*. Every member can compute them: they are the members whose ids are nearest to its own
by XOR. A member without a link asks the relays to ping it, as SWIM asks any member when a ping is lost.

There are as many relays as SWIM asks at one time. When one of them is gone, the next nearest takes its place.

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

__all__ = ["PERIODS", "RELAYS", "RelayLinks", "relays"]

RELAYS: Final = 3
"""relays of one outbound-only peer"""
PERIODS: Final = 4.0
"""probe intervals between two messages to each relay: no link is closed as unused, and a lost one opens again before a
suspicion ends"""


def relays(peer: bytes, members: Iterable[Member], count: int = RELAYS) -> list[bytes]:
    """The relays of an outbound-only peer: the nearest members that can be dialled.

    Args:
        peer: id of the outbound-only peer.
        members: the members to choose from.
        count: how many to choose.
    """
    here = int.from_bytes(peer, "big")
    dialable = (member.id for member in members if member.address and member.id != peer)
    return heapq.nsmallest(count, dialable, key=lambda other: here ^ int.from_bytes(other, "big"))


class RelayLinks:
    """Sends this peer's relays a message now and then, while it is outbound-only."""

    def __init__(self, view: View, dissemination: Dissemination, now: float) -> None:
        self._view, self._dissemination = view, dissemination
        self._at = now

    def hurry(self, now: float) -> None:
        """Contact the relays at the next timer."""
        self._at = now

    def timer(self) -> float:
        """When to call `handle_timer` next; infinity while this peer has an address."""
        return math.inf if self._view.me.address else self._at

    def handle_timer(self, now: float) -> None:
        """Send the messages that are due."""
        if now < self.timer():
            return
        self._at = now + PERIODS * self._view.config.probe_interval
        for peer in relays(self._view.me.id, self._view.alive()):
            gossip = Pong(UNASKED, self._dissemination.records(peer, now), self._dissemination.reports(peer, now))
            self._dissemination.send(peer, gossip, now)
