"""Can others dial this peer? Evidence comes in by itself, or is asked for. No socket and no clock may stand here.

A link that comes in is the proof. A peer to which none has come asks some of those it has dialled to dial it back where
it says it is to be dialled; when two rounds of that brought no link but at least one word that it was in vain, nobody
can, until somebody does. What is asked and how, and what the one asked does about it, is `Peering`'s.

The idea is that of libp2p's AutoNAT (its specification of 2020): an address is believed when somebody else has dialled
it. Here it costs the one asked nothing it would not do anyway, for members dial what other members advertise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

__all__ = ["Reachability"]

OPINIONS: Final = 3
"""peers asked in one round"""
ROUNDS: Final = 2
"""without a link, before the verdict: one dial may fail by chance"""
SETTLE: Final = 0.2
"""of a pause, that others have to dial by themselves, from the first link on"""
SOONEST: Final = 0.6
"""of a pause, after which a round is over if all have answered"""
LONGEST: Final = 64.0
"""pauses between rounds at the most: they double after the verdict"""


class Reachability:
    """Args:

    address: which others are told to dial, or "".
    pause: seconds between rounds.

    dialable: None as long as nothing is known.
    """

    def __init__(self, address: str, pause: float) -> None:
        self.address = address
        self.dialable: bool | None = None
        self.asked: dict[bytes, bool] = {}
        """who was asked in this round, and whether it said that it dialled in vain"""
        self.opinions = 0
        """how many said so in the last rounds, together"""
        self._rounds = 0
        self._pause, self._longest = pause, LONGEST * pause
        self._began, self._due = -math.inf, math.inf

    def link_up(self, inbound: bool, now: float) -> bool:
        """A link came up; True if it changes what is known."""
        if inbound and self.address:
            changed = self.dialable is False
            self.dialable, self._due = True, math.inf
            self.asked.clear()
            return changed
        if self.address and self.dialable is None and self._due == math.inf:
            self._due = now + SETTLE * self._pause
        return False

    def in_vain(self, peer: bytes, address: str, now: float) -> None:
        """`peer` says it did not meet this peer at `address`."""
        if peer in self.asked and address == self.address:
            self.asked[peer] = True
            if self.dialable is None and all(self.asked.values()):
                self._due = max(now, self._began + SOONEST * self._pause)

    def timer(self) -> float:
        return self._due

    def end_round(self, now: float) -> bool:
        """What the round that is over by now has shown; True if that changes what is known."""
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
        """Whom of those linked, the best ones first, to ask now."""
        for peer in linked:
            if len(self.asked) < OPINIONS:
                self.asked[peer] = False
        if self.dialable is False:
            self._pause = min(2.0 * self._pause, self._longest)
        self._began, self._due = now, now + self._pause
        return list(self.asked)
