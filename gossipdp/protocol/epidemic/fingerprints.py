"""Whether replicas were equal at the end of an epoch, although they have applied more since.

Additions to an anchor are integers, and a fingerprint is linear in them (see `jobs.Fingerprint`). The fingerprint of
the anchor now, minus those of the increments of later epochs, is that of the anchor with everything up to this epoch.
Peers that settled an epoch with the same set must get the same number.

A peer does not know the fingerprints of increments inside a state that it took over. It skips the epochs whose later
increments may be among them. No message and no vector is handled here.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

__all__ = ["Fingerprints"]

MODULUS: Final = 1 << 64


class Fingerprints:
    """The fingerprints of the increments that one peer has applied."""

    def __init__(self) -> None:
        self._added: Counter[int] = Counter()
        """by epoch, the sum of the fingerprints of its increments"""
        self._known_after = -1

    def begin(self, epoch: int) -> None:
        """The state is a new one, with increments up to `epoch` at the latest."""
        self._added.clear()
        self._known_after = epoch

    def added(self, epoch: int, fingerprint: int) -> None:
        """An increment of this epoch was applied or taken back."""
        self._added[epoch] += fingerprint

    def tells(self, epoch: int) -> bool:
        """Whether the fingerprints of all increments after `epoch` are known."""
        return epoch >= self._known_after

    def at(self, epoch: int, anchor: int) -> int:
        """The fingerprint at the end of a settled epoch.

        Args:
            anchor: the fingerprint of the anchor now.
        """
        self._added = Counter({later: sum_ for later, sum_ in self._added.items() if later > epoch})
        return (anchor - sum(self._added.values())) % MODULUS
