"""When a training process whose snapshots have NaN or Inf is given the network's model anew, and when it is given up.

The daemon refuses such a snapshot, and nothing but a new model can make the next one finite. Nothing here may touch a
tensor or the daemon.
"""

from __future__ import annotations

from typing import Final

from gossipdp.errors import DataError

__all__ = ["AGAIN", "Healing", "hopeless"]

AGAIN: Final = 100
"""snapshots after a new model within which NaN may not come back: it would come back for ever"""


class Healing:
    def __init__(self) -> None:
        self.after = 0
        """snapshots refused in a row that call for a new model; 0: never"""
        self.due = False
        """the model is to be loaded anew, and the optimizer's state with it"""
        self.hopeless = False
        """a new model has not helped"""
        self.refused = 0
        """snapshots, in a row"""
        self._taken = AGAIN
        """snapshots since the last new model"""

    def judged(self, *, finite: bool) -> None:
        """The daemon has looked at a snapshot."""
        self._taken += 1
        self.refused = 0 if finite else self.refused + 1
        if self.after and self.refused >= self.after:
            self.hopeless = self._taken <= AGAIN
            self.due = not self.hopeless

    def loaded(self) -> None:
        """A model has been loaded."""
        if self.due:
            self._taken = 0
        self.due, self.refused = False, 0


def hopeless() -> DataError:
    """What ends a training process that a new model has not helped."""
    return DataError(
        "GD-403",
        "training gave NaN or Inf again, soon after the network's model was loaded and the optimizer's state reset",
        seen=f"less than {AGAIN} rounds later",
        do="look for bad samples, lower the learning rate or clip gradients; `[safety] heal = false` trains on",
    )
