"""Whether other peers can dial this one. No socket or clock may stand here.

An inbound link is the proof. A peer without one asks some linked peers to dial the address it advertises. If two rounds
bring no link and at least one failed attempt, the peer cannot be dialled, until a link does come in. `DialBacks` sends
the questions.

The idea is that of libp2p's AutoNAT (specification of 2020): an address is believed once another peer has dialled it.
Here it costs the asked peers little, because members dial what members advertise anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

__all__ = ["Reachability"]

OPINIONS: Final = 3
"""peers asked in one round"""
ROUNDS: Final = 2
"""rounds without a link before the verdict: one dial may fail by chance"""
SETTLE: Final = 0.2
"""share of a pause, from the first link on, in which other peers may dial by themselves"""
SOONEST: Final = 0.6
"""share of a pause after which a round is over if all have answered"""
LONGEST: Final = 64.0
"""longest time between rounds, in pauses: it doubles after the verdict"""


class Reachability:
    """Finds out whether other peers can dial this one.

    Args:
        address: the address that other peers are told to dial, or "".
        pause: seconds between rounds.
    """

    def __init__(self, address: str, pause: float) -> None:
        self.address = address
        self.dialable: bool | None = None
        """None while nothing is known"""
        self.asked: dict[bytes, bool] = {}
        """peers asked in this round, and whether each answered that its dial failed"""
        self.opinions = 0
        """failed dials in all rounds so far"""
        self._rounds = 0
        self._pause, self._longest = pause, LONGEST * pause
        self._began, self._due = -math.inf, math.inf

    def link_up(self, inbound: bool, now: float) -> bool:
        """A link came up. Returns whether `dialable` changed from False to True."""
        if inbound and self.address:
            changed = self.dialable is False
            self.dialable, self._due = True, math.inf
            self.asked.clear()
            return changed
        if self.address and self.dialable is None and self._due == math.inf:
            self._due = now + SETTLE * self._pause
        return False

    def in_vain(self, peer: bytes, address: str, now: float) -> None:
        """`peer` answers that it did not meet this peer at `address`."""
        if peer in self.asked and address == self.address:
            self.asked[peer] = True
            if self.dialable is None and all(self.asked.values()):
                self._due = max(now, self._began + SOONEST * self._pause)

    def timer(self) -> float:
        return self._due

    def end_round(self, now: float) -> bool:
        """Count the answers of the round that is over. Returns whether the verdict fell now."""
        said = sum(self.asked.values())
        self.asked.clear()
        if said:
            self._rounds += 1
            self.opinions += said
        if self.dialable is None and self._rounds >= ROUNDS:
            self.dialable = False
            return True
        return False

    def begin_round(self, linked: Iterable[bytes], now: float) -> list[bytes]:
        """The peers to ask now, out of `linked`, best first."""
        for peer in linked:
            if len(self.asked) < OPINIONS:
                self.asked[peer] = False
        if self.dialable is False:
            self._pause = min(2.0 * self._pause, self._longest)
        self._began, self._due = now, now + self._pause
        return list(self.asked)
