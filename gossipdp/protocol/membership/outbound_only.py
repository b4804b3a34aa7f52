"""Peers that can only dial out, such as those behind a NAT: how they stay linked, and which members probe them.

Such a peer advertises relays (`relays`). Where no member carries for it, it advertises no address, and is a full peer
over the links that it opened itself. But SWIM has every member probe every other, and most have no link to it. So it
keeps links to a few members that can be dialled, its *probers*. Every member can compute them: they are the members
whose ids are nearest to its own by XOR. A member without a link asks the probers to ping it, as SWIM asks any member
when a ping is lost.

There are as many probers as SWIM asks at one time. When one of them is gone, the next nearest takes its place. The
probers of a peer with relays are the relays.

Reference: Maymounkov, Mazieres, "Kademlia" (IPTPS 2002), section 2.1, for the distance.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from typing import Final

from gossipdp.protocol.membership.dissemination import UNASKED, Dissemination
from gossipdp.protocol.membership.relays import RelayChoice
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.wire.messages import Member, Pong

__all__ = ["PERIODS", "PROBERS", "ProberLinks", "probers"]

PROBERS: Final = 3
"""probers of one outbound-only peer"""
PERIODS: Final = 4.0
"""probe intervals between two messages to each prober: no link is closed as unused, and a lost one opens again before a
suspicion ends"""


def probers(peer: bytes, members: Iterable[Member], count: int = PROBERS) -> list[bytes]:
    """The probers of an outbound-only peer: the nearest members that can be dialled.

    Args:
        peer: id of the outbound-only peer.
        members: the members to choose from.
        count: how many to choose.
    """
    here = int.from_bytes(peer, "big")
    dialable = (member.id for member in members if member.dialable and member.id != peer)
    return heapq.nsmallest(count, dialable, key=lambda other: here ^ int.from_bytes(other, "big"))


class ProberLinks:
    """Sends this peer's relays and probers a message now and then, while it is outbound-only.

    Args:
        choice: the relays of this peer.
    """

    def __init__(self, view: View, dissemination: Dissemination, choice: RelayChoice, now: float) -> None:
        self._view, self._dissemination, self._choice = view, dissemination, choice
        self._at = now
        self._contacted: list[bytes] = []
        """the relays as they were when they were contacted last"""

    def hurry(self, now: float) -> None:
        """Contact them at the next timer."""
        self._at = now

    def timer(self) -> float:
        """When to call `handle_timer` next; infinity while members can dial this peer."""
        return math.inf if self._view.me.dialable else self._at

    def handle_timer(self, now: float) -> None:
        """Send the messages that are due."""
        if now < self.timer() and self._choice.chosen == self._contacted:
            return
        self._contacted = self._choice.chosen
        self._at = now + PERIODS * self._view.config.probe_interval
        others = [] if self._view.me.address else probers(self._view.me.id, self._view.alive())
        for peer in dict.fromkeys([*self._choice.chosen, *others]):
            gossip = Pong(UNASKED, self._dissemination.records(peer, now), self._dissemination.reports(peer, now))
            self._dissemination.send(peer, gossip, now)
