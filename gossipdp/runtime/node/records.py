"""What a node asks its home to keep for the next start. The daemon's builder knows the files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gossipdp.protocol.wire.messages import Decision, Member, Receipt
from gossipdp.runtime.network.identity import NetworkSecret

__all__ = ["Records"]


class Records(Protocol):
    """Files of the home. Every method raises DataError GD-602 if the disk refuses them."""

    def found_run(self) -> bytes:
        """This peer has founded the network. Returns the id of its new run."""

    def learn_run(self, run: bytes) -> None:
        """This peer, which had no run, belongs to `run`."""

    def remember(self, members: Sequence[tuple[Member, float]]) -> None:
        """Save the members to dial after a restart, and the seconds for which each is known."""

    def keep_decisions(self, decisions: Sequence[Decision], receipts: Sequence[Receipt]) -> None:
        """Save all decisions of the operator that stand, and their receipts."""

    def keep_secret(self, secret: NetworkSecret) -> None:
        """Save the network's new secret."""
