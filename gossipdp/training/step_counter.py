"""Tells all that count a step of it: the session, the moments and the watch for uncounted changes.

A step that turns out to have been skipped is taken back some steps later.
"""

from __future__ import annotations

import torch

from gossipdp.training.grad_scaler import SkippedSteps
from gossipdp.training.optimizer_state.adam import AdamMoments
from gossipdp.training.session import Session
from gossipdp.training.uncounted import Uncounted

__all__ = ["StepCounter"]


class StepCounter:
    """For the process that talks to the daemon.

    Args:
        session: the dialogue with the daemon.
        moments: of the optimizers, if they have some.
        uncounted: the watch for changes without a counted step.
    """

    def __init__(self, session: Session, moments: AdamMoments | None, uncounted: Uncounted) -> None:
        self._session, self._moments, self._uncounted = session, moments, uncounted
        self._skipped = SkippedSteps()

    def step(self, optimizer: torch.optim.Optimizer | None, samples: int) -> None:
        """A step of `samples`, of all ranks, is over. None: the loop itself said so."""
        self._uncounted.step_counted()
        self._count(1, samples)
        skipped = self._skipped.look(optimizer, samples)
        if skipped.steps:
            self._count(-skipped.steps, -skipped.samples)

    def _count(self, steps: int, samples: int) -> None:
        self._session.stepped(steps, samples)
        if self._moments is not None:
            self._moments.stepped(steps)

    def close(self) -> None:
        """End the watch."""
        self._uncounted.close()
