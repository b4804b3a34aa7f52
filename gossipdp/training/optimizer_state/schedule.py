"""When the optimizer's moments go to the daemon: both, one after the other, between two snapshots of some rounds.

They use the buffer of snapshots, so no snapshot can be taken until the daemon has the moment. Nothing here touches a
tensor.
"""

from __future__ import annotations

__all__ = ["MomentsSchedule"]


class MomentsSchedule:
    """Numbers of moments: odd ones are second moments, even ones first moments."""

    def __init__(self) -> None:
        self._every = self._rounds = 0
        self._number = 0
        """number of the last moment that was sent"""
        self._last = 0
        """number after which both moments have been sent"""
        self.open = False
        """the shared memory holds a moment that the daemon has not read"""

    def begin(self, every: int) -> None:
        """A session begins. Moments are sent after one round and then every `every` rounds; 0: never."""
        # A pair of which only the second moment was sent is sent anew: second moments have odd numbers.
        self._number += self._number % 2
        self._last = self._number
        self._every, self._rounds, self.open = every, every - 1, False

    def round_done(self) -> None:
        """The daemon has read a snapshot."""
        if not self._every or self._last > self._number:
            return
        self._rounds += 1
        if self._rounds >= self._every:
            self._rounds, self._last = 0, self._number + 2

    @property
    def due(self) -> bool:
        """A moment is to be sent now."""
        return not self.open and self._number < self._last

    def next(self) -> int:
        """The number of the moment that is due, or 0. From then on the memory is in use."""
        if not self.due:
            return 0
        self._number += 1
        self.open = True
        return self._number

    def undo(self) -> None:
        """The moment that `next` gave last is not sent."""
        self._number, self.open = self._number - 1, False

    def taken(self, number: int) -> None:
        """The daemon has read this moment."""
        if number == self._number:
            self.open = False
