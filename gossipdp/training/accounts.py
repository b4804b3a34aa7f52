"""What this process has trained, and how much of it the network has: steps and samples, by the network's clock.

Steps are counted since the last snapshot. A snapshot that is handed over stays on the books until the daemon has said
whether it took it. Nothing here may touch a tensor or the daemon.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Accounts", "Lost"]


class _Handed(NamedTuple):
    """A snapshot that the daemon has not said it took."""

    number: int
    steps: int
    samples: int


class Lost(NamedTuple):
    """Steps that are missing from a model that replaced this process's own."""

    steps: int
    earlier: int
    """of these, steps from before the last snapshot: the model is older than that"""


class Accounts:
    def __init__(self) -> None:
        self.steps = self.samples = 0
        """since the last snapshot"""
        self.handed: _Handed | None = None
        self.lost_steps = 0
        """steps, of this process and of the network, that models which were loaded again do not hold"""
        self._clock = self._clock_samples = 0
        """the network's, at the last snapshot"""
        self._wasted = 0
        """steps in the last snapshots, which were refused"""
        self._written = (0, 0)
        """`steps` and `samples` when this process wrote its model for the daemon"""

    @property
    def clock(self) -> int:
        """The network's clock in steps, as far as it is known here."""
        return self._clock + self.steps + (self.handed.steps if self.handed else 0)

    @property
    def all_samples(self) -> int:
        """The network's samples, as far as they are known here."""
        return self._clock_samples + self.samples + (self.handed.samples if self.handed else 0)

    def stepped(self, steps: int, samples: int) -> None:
        """Count `steps` more optimizer steps; fewer, if some turn out to have been skipped."""
        self.steps = max(0, self.steps + steps)
        self.samples = max(0, self.samples + samples)

    def paced(self, clock: int, samples: int) -> None:
        """The daemon tells the network's clock."""
        self._clock, self._clock_samples = max(self._clock, clock), max(self._clock_samples, samples)

    # -- snapshots --------------------------------------------------------------------------------------------

    def hand(self, number: int) -> _Handed:
        """Snapshot `number` is handed over."""
        self.handed = handed = _Handed(number, self.steps, self.samples)
        self.steps = self.samples = 0
        return handed

    def taken(self, *, used: bool = True) -> None:
        """The daemon has done with the snapshot."""
        if self.handed is not None:
            self._wasted = 0 if used else self._wasted + self.handed.steps
            self._clock += self.handed.steps
            self._clock_samples += self.handed.samples
            self.handed = None

    def returned(self) -> None:
        """The daemon is gone, or did not look at the snapshot. If it was used all the same, its steps count twice."""
        if self.handed is not None:
            self.steps += self.handed.steps
            self.samples += self.handed.samples
            self.handed = None

    # -- sessions ---------------------------------------------------------------------------------------------

    def wrote(self) -> tuple[int, int, int]:
        """This process has written its model for the daemon. Returns its clock, steps and samples."""
        self._written = self.steps, self.samples
        return self.clock, *self._written

    def kept(self, clock: int) -> None:
        """The daemon has made what was written its model, at `clock`."""
        steps, samples = self._written
        self.steps, self.samples = max(0, self.steps - steps), max(0, self.samples - samples)
        self._clock = clock

    def loaded(self, clock: int, *, first: bool) -> Lost:
        """A model of `clock` was loaded in the place of this process's own; `first`: that was not trained yet."""
        earlier = 0 if first else max(0, self._clock - self._wasted - clock)
        lost = Lost(0 if first else self.steps + self._wasted + earlier, earlier)
        self.lost_steps += lost.steps
        self.steps = self.samples = self._wasted = 0
        self._clock = clock
        return lost
