"""Steps and samples of this process: those since the last snapshot, and those that the network has.

A handed-over snapshot stays on the books until the daemon says whether it took it. Nothing here touches a tensor or the
daemon.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Accounts", "Handed", "Lost"]


class Handed(NamedTuple):
    """A snapshot that the daemon has not yet acknowledged."""

    number: int
    steps: int
    samples: int


class Lost(NamedTuple):
    """Steps that are missing from a model that replaced this process's own."""

    steps: int
    earlier: int
    """those of them from before the last snapshot: the model is older than that"""


class Accounts:
    """Counts in steps and samples of this process; clocks are the network's."""

    def __init__(self) -> None:
        self.steps = self.samples = 0
        """since the last snapshot"""
        self.handed: Handed | None = None
        """the snapshot that the daemon has not yet acknowledged"""
        self.lost_steps = 0
        """steps of this process and the network that are missing from models loaded again"""
        self._clock = self._clock_samples = 0
        """the network's, at the last snapshot"""
        self._wasted = 0
        """steps in the last refused snapshots"""
        self._written = (0, 0)
        """`steps` and `samples` when this process wrote its model for the daemon"""

    @property
    def clock(self) -> int:
        """The network's clock in steps, as known here."""
        return self._clock + self.steps + (self.handed.steps if self.handed else 0)

    @property
    def all_samples(self) -> int:
        """The network's samples, as known here."""
        return self._clock_samples + self.samples + (self.handed.samples if self.handed else 0)

    def stepped(self, steps: int, samples: int) -> None:
        """Count `steps` more optimizer steps; negative if some turn out to have been skipped."""
        self.steps = max(0, self.steps + steps)
        self.samples = max(0, self.samples + samples)

    def paced(self, clock: int, samples: int) -> None:
        """The daemon tells the network's clock and samples."""
        self._clock, self._clock_samples = max(self._clock, clock), max(self._clock_samples, samples)

    # -- snapshots --------------------------------------------------------------------------------------------

    def hand(self, number: int) -> Handed:
        """Snapshot `number` is handed over."""
        self.handed = handed = Handed(number, self.steps, self.samples)
        self.steps = self.samples = 0
        return handed

    def taken(self, *, used: bool = True) -> None:
        """The daemon has read the snapshot; `used`: it uses it."""
        if self.handed is not None:
            self._wasted = 0 if used else self._wasted + self.handed.steps
            self._clock += self.handed.steps
            self._clock_samples += self.handed.samples
            self.handed = None

    def returned(self) -> None:
        """The daemon is gone, or did not read the snapshot. If it did use it, its steps count twice."""
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
        """The daemon made the written parameters its model, at `clock`."""
        steps, samples = self._written
        self.steps, self.samples = max(0, self.steps - steps), max(0, self.samples - samples)
        self._clock = clock

    def loaded(self, clock: int, *, first: bool) -> Lost:
        """A model of `clock` replaced this process's own; `first`: that one was not trained yet."""
        earlier = 0 if first else max(0, self._clock - self._wasted - clock)
        lost = Lost(0 if first else self.steps + self._wasted + earlier, earlier)
        self.lost_steps += lost.steps
        self.steps = self.samples = self._wasted = 0
        self._clock = clock
        return lost
