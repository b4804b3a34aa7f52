"""A link that doctor makes for itself, and what it asks a member on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gossipdp.protocol.wire.messages import Lane
from gossipdp.runtime.network.events import DialFailed, LinkDown, LinkUp, Measured, TransportEvent
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.limits import TransportLimits
from gossipdp.runtime.network.proxy import Proxy
from gossipdp.runtime.network.signed_hello import MAX_FILLER, Probe, pack
from gossipdp.runtime.network.transport import Transport

__all__ = ["ANSWERS", "LIMITS", "Network", "Talk"]

LIMITS: Final = TransportLimits(connect=4.0, handshake=3.0, hello=3.0)
"""patience that covers a round trip of half a second and a lost packet, and leaves time for the rest"""
ANSWERS: Final = 4.0
"""seconds for an answer on a link that is up: two lost packets, or 64 KiB at 0.2 Mbit/s"""
SPEED_SECONDS: Final = 2.0
SPEED_BYTES: Final = 24 << 20
"""bytes each way, at most: less than half of what one asker gets in a minute"""
WINDOW: Final = 8
"""messages on their way during the measurement of throughput"""


@dataclass(frozen=True, slots=True)
class Network:
    """What a stranger needs to be let in."""

    name: str
    secret: NetworkSecret


class Talk:
    """Questions and answers on the link of a transport that only dials. Close it.

    Args:
        identity: the key of this side.
        proxy: through which to dial; None: directly.
    """

    def __init__(self, network: Network, identity: Identity, proxy: Proxy | None = None) -> None:
        self._transport = Transport(
            identity, network.secret, network=network.name, run=b"", incarnation=1, listen=None, proxy=proxy,
            limits=LIMITS,
        )  # fmt: skip
        self._number = 0

    def close(self) -> None:
        self._transport.close()

    @property
    def seen(self) -> str:
        """The IP address that the member sees this host come from."""
        return self._transport.seen

    def dial(self, address: str, seconds: float) -> LinkUp | DialFailed | None:
        """What comes of a dial within this time; None if nothing does."""
        self._transport.send(b"", address, Lane.CONTROL, pack(Probe()))
        event = self.until(lambda event: isinstance(event, LinkUp | DialFailed), seconds)
        return event if isinstance(event, LinkUp | DialFailed) else None

    def until(self, wanted: Callable[[TransportEvent], bool], seconds: float) -> TransportEvent | None:
        """The first event that is wanted; None if the link ends, or none comes in time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0.0:
            for event in self._transport.poll(min(left, 0.1))[0]:
                if wanted(event):
                    return event
                if isinstance(event, LinkDown):
                    return None
        return None

    def ask(
        self, peer: bytes, lane: Lane, *, send: int = 0, back: int = 0, patience: float = ANSWERS
    ) -> Measured | None:
        """One question and its answer; None if none comes within `patience` seconds."""
        number = self._asked(peer, lane, send, back)
        answer = self.until(lambda event: isinstance(event, Measured) and event.number == number, patience)
        return answer if isinstance(answer, Measured) else None

    def speed(self, peer: bytes, *, up: bool) -> float:
        """Bytes a second one way, from the first answer to the last."""
        send, back = (MAX_FILLER, 0) if up else (0, MAX_FILLER)
        waiting, moved, began, last = 0, -MAX_FILLER, 0.0, time.monotonic()
        deadline = last + SPEED_SECONDS
        asked = 0
        while waiting or asked == 0:
            while waiting < WINDOW and asked < SPEED_BYTES and time.monotonic() < deadline:
                self._asked(peer, Lane.DATA, send, back)
                waiting, asked = waiting + 1, asked + MAX_FILLER
            answer = self.until(lambda event: isinstance(event, Measured), ANSWERS)
            if not isinstance(answer, Measured) or max(answer.received, answer.filler) < MAX_FILLER:
                break
            last, waiting, moved = time.monotonic(), waiting - 1, moved + MAX_FILLER
            began = began or last
        return moved / (last - began) if moved > 0 and last > began else 0.0

    def _asked(self, peer: bytes, lane: Lane, send: int, back: int) -> int:
        self._number += 1
        self._transport.measure(peer, lane, self._number, send=send, back=back)
        return self._number
