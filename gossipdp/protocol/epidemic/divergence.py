"""Whose state is the network's: the members from which a peer in the minority fetches the state anew.

States differ if they go back to different foundings, or if peers settled different sets. The larger group keeps its
state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from gossipdp.protocol.epidemic.epochs import QUORUM
from gossipdp.protocol.wire.epidemic_messages import NO_BASE

__all__ = ["Divergence"]

AGAIN: Final = 16
"""wait before the next try to fetch a state, in join intervals"""


class Divergence:
    """The members that hold the network's state, while this peer's state is another.

    Args:
        join_interval: seconds, see `MembershipConfig`.
    """

    def __init__(self, join_interval: float) -> None:
        self._pause = AGAIN * join_interval
        self._holders: tuple[bytes, ...] = ()
        self._from = 0.0
        """when the state is fetched at the earliest"""

    def diverged(self, holders: Iterable[bytes]) -> None:
        """This peer's state is not the network's, but that of `holders` is."""
        self._holders = tuple(holders)

    def lost(self, live: Iterable[bytes]) -> None:
        """This peer's state lacks something that only another state has. Any live member may give one."""
        if not self._holders:
            self.diverged(live)

    def agreed(self) -> None:
        """This peer has a state of the network again."""
        self._holders = ()

    def compare(self, own: bytes, others: Mapping[bytes, bytes], heard: int) -> None:
        """Compare foundings: the one of most peers counts, and of two equally frequent ones the later.

        Args:
            own: founding of this peer's state.
            others: founding of each member's state, as it stated.
            heard: number of live members that are not set aside.
        """
        if len(others) < min(QUORUM, heard):
            return
        counts = Counter([own, *(base for base in others.values() if base != NO_BASE)])
        greatest = max(counts, key=lambda base: (counts[base], base))
        if greatest != own:
            self.diverged(peer for peer, base in others.items() if base == greatest)

    def pause(self, now: float) -> None:
        """A fetch has ended without another state: try again later."""
        if self._holders:
            self._from = now + self._pause

    def holders(self, live: Collection[bytes], now: float) -> tuple[bytes, ...]:
        """Live members whose state is to be fetched now."""
        return tuple(peer for peer in self._holders if peer in live) if now >= self._from else ()

    def timer(self, now: float) -> float | None:
        """When to look at `holders` again, or None."""
        return self._from if self._holders and self._from > now else None
