"""At which of its addresses other peers can dial this one. No socket or clock may stand here.

An inbound link proves that one address works. A peer without one, and a peer with several addresses, asks some linked
peers to dial one address after the other. An address is settled once a peer was met there, or after two rounds in vain.
If all are in vain and no link came in, the peer cannot be dialled, until a link does come in. `DialBacks` sends the
questions.

A public address that was tried in vain is dropped while another one works. A private one stays: hosts of its own
network may reach it, and none of them was asked.

The idea is that of libp2p's AutoNAT (specification of 2020): an address is believed once another peer has dialled it.
Here it costs the asked peers little, because members dial what members advertise anyway.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from gossipdp.runtime.network.reach import is_public

__all__ = ["Reachability"]

OPINIONS: Final = 3
"""peers asked in one round"""
ROUNDS: Final = 2
"""rounds in vain before the verdict on an address: one dial may fail by chance"""
SETTLE: Final = 0.2
"""share of a pause, from the first link on, in which other peers may dial by themselves"""
SOONEST: Final = 0.6
"""share of a pause after which a round is over if all have answered"""
MAX_CONSIDERED: Final = 2
"""addresses asked about because members see this peer come from there"""
LONGEST: Final = 64.0
"""longest time between rounds, in pauses: it doubles once each address has had its rounds"""


class Reachability:
    """Finds out at which addresses other peers can dial this one.

    Args:
        addresses: what other peers are told to dial; empty for a peer that only dials out.
        pause: seconds between rounds.
    """

    def __init__(self, addresses: Sequence[str], pause: float) -> None:
        self.addresses = tuple(addresses)
        self.address = ""
        """the address that this round is about"""
        self.dialable: bool | None = None
        """None while nothing is known"""
        self.asked: dict[bytes, bool | None] = {}
        """peers asked in this round. False: no way leads there from that peer. True: it tried in vain."""
        self.opinions: Counter[str] = Counter()
        """failed dials, by address"""
        self._considered: list[str] = []
        """addresses that are advertised only once a peer was met there"""
        self._met: set[str] = set()
        self._vain: Counter[str] = Counter()
        """rounds in vain, by address"""
        self._tried: Counter[str] = Counter()
        """those of them in which a peer had a way there"""
        self._rounds = 0
        self._pause, self._longest = pause, LONGEST * pause
        self._began, self._due = -math.inf, math.inf

    @property
    def usable(self) -> tuple[str, ...]:
        """The addresses that other peers should go on dialling."""
        if self.dialable is False:
            return ()
        dropped = self.dropped
        found = (address for address in self._considered if address in self._met)
        return (*found, *(address for address in self.addresses if address not in dropped))

    @property
    def dropped(self) -> tuple[str, ...]:
        """The addresses that other peers should not dial."""
        if not self.dialable:
            return self.addresses if self.dialable is False else ()
        failed = [address for address in self.addresses if self._tried[address] >= ROUNDS and is_public(address)]
        failed = [address for address in failed if address not in self._met]
        return tuple(failed) if len(failed) < len(self.addresses) else ()

    def link_up(self, inbound: bool, now: float) -> None:
        """A link came up."""
        if not self.addresses:
            return
        if inbound:
            self.dialable = True
            if len(self.addresses) == 1:
                self._met.add(self.addresses[0])
                self.asked.clear()
        if not self._open():
            self._due = math.inf
        elif self._due == math.inf:
            self._due = now + SETTLE * self._pause

    def consider(self, address: str, now: float) -> None:
        """Ask about `address`, too. A member named it, and may lie, so only few are worth a question."""
        if address not in self._all() and len(self._considered) < MAX_CONSIDERED:
            self._considered.append(address)
            if self._due == math.inf:
                self._due = now + SETTLE * self._pause

    def met(self, peer: bytes, address: str, now: float) -> None:
        """`peer` answers that it met this peer at `address`."""
        if peer in self.asked and address == self.address:
            self.dialable = True
            self._met.add(address)
            self.asked.clear()
            self._due = max(now, self._began + SOONEST * self._pause) if self._open() else math.inf

    def in_vain(self, peer: bytes, address: str, now: float, *, tried: bool) -> None:
        """`peer` answers that it did not meet this peer at `address`. tried: a way leads there from `peer`."""
        if peer in self.asked and address == self.address:
            self.asked[peer] = tried
            if self.dialable is not False and None not in self.asked.values():
                self._due = max(now, self._began + SOONEST * self._pause)

    def timer(self) -> float:
        return self._due

    def end_round(self) -> None:
        """Count the answers of the round that is over."""
        said = [answer for answer in self.asked.values() if answer is not None]
        self.asked.clear()
        if said:
            self._vain[self.address] += 1
            self._tried[self.address] += any(said)
            self.opinions[self.address] += len(said)
        if self.dialable is None and not self._open():
            self.dialable = False

    def begin_round(self, linked: Iterable[bytes], now: float) -> list[bytes]:
        """The peers to ask about `address` now, out of `linked`, best first."""
        candidates = self._all() if self.dialable is False else self._open()
        if not candidates:
            self._due = math.inf
            return []
        self.address = candidates[self._rounds % len(candidates)]
        self._rounds += 1
        for peer in linked:
            if len(self.asked) < OPINIONS:
                self.asked[peer] = None
        if self.dialable is False or self._rounds > 2 * ROUNDS * len(self._all()):
            self._pause = min(2.0 * self._pause, self._longest)
        self._began, self._due = now, now + self._pause
        return list(self.asked)

    def _open(self) -> tuple[str, ...]:
        """The addresses that are not settled."""
        return tuple(address for address in self._all() if address not in self._met and self._vain[address] < ROUNDS)

    def _all(self) -> tuple[str, ...]:
        return (*self._considered, *self.addresses)
