"""Whether replicas were the same at the end of an epoch, though by the time it has settled more has been added.

What is added to an anchor is integers, and a fingerprint is linear in them (see `jobs.Fingerprint`): that of the anchor
as it stands, less those of the increments of later epochs, is that of the anchor with all up to this epoch inside and
nothing else. Peers that settled an epoch alike must get the same number, whatever each has applied since.

Nothing is known of increments that were inside a state when it was taken over, so epochs that might have had some of
them among the later ones are passed over. No message and no vector is here.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

__all__ = ["Fingerprints"]

MODULUS: Final = 1 << 64


class Fingerprints:
    """Of one peer's anchor and what was added to it."""

    def __init__(self) -> None:
        self._added: Counter[int] = Counter()
        """by epoch, of increments that this peer has applied"""
        self._known_after = -1

    def begin(self, epoch: int) -> None:
        """The state is a new one; what is inside it may be of `epoch` at the latest."""
        self._added.clear()
        self._known_after = epoch

    def added(self, epoch: int, fingerprint: int) -> None:
        """An increment of this epoch has been applied, or taken back."""
        self._added[epoch] += fingerprint

    def tells(self, epoch: int) -> bool:
        """Is all known that was added after `epoch`?"""
        return epoch >= self._known_after

    def at(self, epoch: int, anchor: int) -> int:
        """The fingerprint at the end of an epoch, which has settled; `anchor` is that of the anchor now."""
        self._added = Counter({later: sum_ for later, sum_ in self._added.items() if later > epoch})
        return (anchor - sum(self._added.values())) % MODULUS
