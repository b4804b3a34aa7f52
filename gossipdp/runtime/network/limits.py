"""Limits of a transport: times, queues and numbers of links, with presets by the kind of network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["LIMITS", "TransportLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """Times in seconds."""

    handshake: float = 1.0
    """for CURVE, after the TCP connection; at libzmq's 30 s, 300 idle connections lock honest peers out"""
    connect: float = 4.0
    """for TCP and CURVE, for each IP address; one lost SYN costs 1 s, a second one 2 s more"""
    hello: float = 2.0
    """for the signed hello, after CURVE"""
    heartbeat: float = 1.5
    """between probes on a quiet connection. The dialler closes a link after 4 silent heartbeats on the control lane,
    the listener after 11, and either after 64 on the data lane."""
    redial: float = 0.5
    """after a failed dial until the same address is dialled again"""
    dial_back: float = 10.0
    """between the rounds in which a peer without an inbound link asks members to dial back. A member dials back for one
    asker at most twice in this time."""
    idle: float = 60.0
    """after which the dialler closes an unused link; the listener closes it after twice this time"""
    drain: float = 2.0
    """for which a link is still read after a better one replaced it"""
    links: int = 128
    dials: int = 32
    hellos: int = 128
    """most inbound connections between hello and proof"""
    queue_messages: int = 1024
    """most messages that wait for one lane of one link, or for one dial"""
    queue_bytes: int = 64 << 20
    total_bytes: int = 1 << 30
    """most bytes that wait for all links and dials ([safety] memory). The same bounds hold for unread messages."""
    shun: float = 10.0
    """for which a peer that sent more than these bounds gets no link"""
    turn: int = 64
    """messages passed on in one turn"""

    @property
    def unproven(self) -> float:
        """For a connection until a member is proven on it: after the handshake and the hello have run out of time."""
        return self.handshake + self.hello + 0.5


LIMITS: Final[Mapping[str, TransportLimits]] = {
    "local": TransportLimits(),
    "lan": TransportLimits(),
    "wan": TransportLimits(handshake=4.0, connect=8.0, hello=6.0),  # three round trips, and lost packets
}
"""Presets: values of the operator's setting `[membership] timing`."""
