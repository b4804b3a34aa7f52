"""When a training process that gives NaN or Inf loads the network's model anew, and when it is given up.

The daemon refuses a snapshot that is not finite. Only a new model can make the next one finite. Nothing here touches a
tensor or the daemon.
"""

from __future__ import annotations

from typing import Final

from gossipdp.errors import DataError

__all__ = ["AGAIN", "Healing", "hopeless"]

AGAIN: Final = 100
"""snapshots after a new model within which NaN must not return; training that gives it sooner is given up"""


class Healing:
    """Counts refused snapshots in a row."""

    def __init__(self) -> None:
        self._after = 0
        """refused snapshots in a row that call for a new model; 0: never"""
        self.due = False
        """the model is to be loaded anew, and the optimizer's state with it"""
        self.hopeless = False
        """a new model has not helped"""
        self.refused = 0
        """refused snapshots in a row"""
        self._taken = AGAIN
        """snapshots since the last new model"""

    def terms(self, after: int) -> None:
        """The daemon offers a session in which `after` refused snapshots in a row call for a new model; 0: never."""
        self._after = after

    def judged(self, *, finite: bool) -> None:
        """The daemon has read a snapshot."""
        self._taken += 1
        self.refused = 0 if finite else self.refused + 1
        if self._after and self.refused >= self._after:
            self.hopeless = self._taken <= AGAIN
            self.due = not self.hopeless

    def loaded(self) -> None:
        """A model was loaded."""
        if self.due:
            self._taken = 0
        self.due, self.refused = False, 0


def hopeless() -> DataError:
    """The error that ends training which a new model has not helped."""
    return DataError(
        "GD-403",
        "training gave NaN or Inf again, soon after the network's model was loaded and the optimizer's state reset",
        seen=f"less than {AGAIN} rounds later",
        do="look for bad samples, lower the learning rate or clip gradients; `[safety] heal = false` trains on",
    )
