"""When the optimizer's moments are told to the daemon: both, one after the other, between two snapshots now and then.

They stand where snapshots do, so that no memory is needed for them; from the word that one of them is there until the
daemon has it, no snapshot can be taken. Nothing here may touch a tensor.
"""

from __future__ import annotations

__all__ = ["Handover"]


class Handover:
    def __init__(self) -> None:
        self._every = self._rounds = 0
        self._number = 0
        self._last = 0
        """the number at which both are told"""
        self.open = False
        """the shared memory is in use for this"""

    def begin(self, every: int) -> None:
        """A session begins, in which moments are told every so many rounds, first after one round; 0: never."""
        # One that was told half is told anew: second moments have the odd numbers.
        self._number += self._number % 2
        self._last = self._number
        self._every, self._rounds, self.open = every, every - 1, False

    def round_done(self) -> None:
        """The daemon has taken a snapshot."""
        if not self._every or self._last > self._number:
            return
        self._rounds += 1
        if self._rounds >= self._every:
            self._rounds, self._last = 0, self._number + 2

    def next(self) -> int:
        """The number to tell under, now; 0 if it is not time. The memory is in use from then on."""
        if self.open or self._number >= self._last:
            return 0
        self._number += 1
        self.open = True
        return self._number

    def undo(self) -> None:
        """What `next` gave last is not told after all."""
        self._number, self.open = self._number - 1, False

    def taken(self, number: int) -> None:
        """The daemon has it."""
        if number == self._number:
            self.open = False
