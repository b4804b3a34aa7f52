"""What one peer has contributed since it started, and the network's clock as it knows it."""

from __future__ import annotations

from gossipdp.protocol.membership.progress import LARGEST, ProgressBoard

__all__ = ["Contribution"]


class Contribution:
    """Counts steps and samples, and reports them to the progress board."""

    def __init__(self, progress: ProgressBoard) -> None:
        self._progress = progress
        self.own_clock = 0
        """the network's clock without what this peer may count on from others' reports, in steps"""
        self.steps = self.samples = 0
        """of the snapshots submitted since this peer started"""
        self._inherited = 0
        """rounds that others made of the model"""

    @property
    def clock(self) -> int:
        """The network's clock in steps, as far as this peer knows."""
        return min(max(self.own_clock, self._progress.clock()), LARGEST)

    def came(self, clock: int, rounds: int) -> None:
        """A model is here for the first time, at this clock and `rounds` old."""
        self.own_clock = max(self.own_clock, clock, self._progress.clock())
        self._inherited = rounds

    def replaced(self, clock: int, ahead: int) -> None:
        """The model is another peer's now, at this clock. ahead: rounds by which it is older than this peer's.

        Its giver may lie about the clock, so it counts as far as the network's clock is believed.
        """
        self.own_clock = max(self.own_clock, min(clock, self._progress.clock()))
        self._inherited += ahead

    def added(self, clock: int, steps: int, samples: int) -> int:
        """A snapshot of this clock counts. Returns by how many steps the network's clock has moved."""
        before = self.clock
        self.own_clock = max(self.own_clock, clock)
        self.steps += steps
        self.samples += samples
        return self.clock - before

    def note_losses(self, loss: float, eval_loss: float) -> None:
        """The training script's last losses, NaN if unknown. They go out with the next report of larger counts."""
        self._progress.note_losses(loss, eval_loss)

    def report(self, rounds: int) -> None:
        """Tell the progress board. rounds: of the model, with those of others."""
        made = rounds - self._inherited
        self._progress.report(clock=self.own_clock, steps=self.steps, samples=self.samples, rounds=made)
