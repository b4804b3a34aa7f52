"""When the optimizer's moments go to the daemon: between two snapshots of some rounds.

They use the buffer of snapshots, so no snapshot can be taken until the daemon has them. Nothing here touches a tensor.
"""

from __future__ import annotations

__all__ = ["MomentsSchedule"]


class MomentsSchedule:
    """Numbers the transfers of both moments from 1."""

    def __init__(self) -> None:
        self._every = self._rounds = 0
        self._number = 0
        """number of the last transfer"""
        self.due = False
        """moments are to be sent now"""
        self.open = False
        """the shared memory holds moments that the daemon has not read"""

    def begin(self, every: int) -> None:
        """A session begins. Moments are sent after one round and then every `every` rounds; 0: never."""
        self._every, self._rounds, self.due, self.open = every, every - 1, False, False

    def round_done(self) -> None:
        """The daemon has read a snapshot."""
        if not self._every or self.due or self.open:
            return
        self._rounds += 1
        if self._rounds >= self._every:
            self._rounds, self.due = 0, True

    def next(self) -> int:
        """The number of the transfer that is due, or 0. From then on the memory is in use."""
        if not self.due:
            return 0
        self._number += 1
        self.due, self.open = False, True
        return self._number

    def undo(self) -> None:
        """The transfer that `next` gave last is not made."""
        self.due, self.open = True, False

    def taken(self, number: int) -> None:
        """The daemon has read this transfer."""
        if number == self._number:
            self.open = False
