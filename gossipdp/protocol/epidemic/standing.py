"""The standing of a peer's state: its clock, its founding, and whether another peer may have it."""

from __future__ import annotations

import hashlib
from typing import Final

from gossipdp.protocol.epidemic.epochs import GRACE, SETTLE
from gossipdp.protocol.membership.membership import Membership

__all__ = ["LONELY", "Standing"]

LONELY: Final = GRACE + SETTLE + 1
"""epochs without another live member after which a peer is alone again: its increments would come too late"""


class Standing:
    """What one peer's state is worth to other peers.

    Args:
        span: steps of the network's clock in an epoch.
    """

    def __init__(self, membership: Membership, span: int) -> None:
        self._membership, self._span = membership, span
        self.clock = 0
        """the network's clock, in steps"""
        self.held = False
        """the state is being replaced"""
        self.foundings = 0
        """foundings of this life"""
        self._shared_at: int | None = None
        """clock when another peer that may have the state was last alive; None if no other peer has it"""

    @property
    def shared(self) -> bool:
        """Whether another peer may have the state."""
        return self._shared_at is not None

    @property
    def alone(self) -> bool:
        """Whether this peer steps without publishing: no other peer has the state, or none was alive for LONELY
        epochs."""
        return self._shared_at is None or self.clock > self._shared_at + LONELY * self._span

    def advance(self, clock: int) -> None:
        """Take the network's clock."""
        self.clock = max(self.clock, clock)

    def hold(self, held: bool) -> None:
        """The state is being replaced, or no longer."""
        self.held = held

    def share(self) -> None:
        """Another peer may have the state now."""
        self._shared_at = self.clock

    def found(self) -> bytes:
        """Begin a founding of this peer alone. Returns its name; later foundings have greater names, mostly."""
        self.foundings += 1
        self._shared_at = None
        me = self._membership.me
        name = b"%s%d,%d" % (me.id, me.incarnation, self.foundings)
        return self.clock.to_bytes(8, "big") + hashlib.blake2b(name, digest_size=8).digest()
