"""Tells all that count a step of it: the session, the moments and the watch for uncounted changes.

A step that turns out to have been skipped is taken back some steps later.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from gossipdp.training.optimizer_state.adam import AdamMoments
from gossipdp.training.session import Session
from gossipdp.training.uncounted import Uncounted

__all__ = ["Skipped", "SkippedSteps", "StepCounter"]


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

    def partly(self) -> None:
        """One of several optimizers has stepped: what it has changed counts with the next step."""
        self._uncounted.step_counted()

    def close(self) -> None:
        """End the watch."""
        self._uncounted.close()


# -- skipped steps -------------------------------------------------------------------------------------------------


class Skipped(NamedTuple):
    """What was counted and did not happen."""

    steps: int
    samples: int


class SkippedSteps:
    """Flags of the last steps, on their way from the device."""

    def __init__(self) -> None:
        self._flags: deque[tuple[Tensor, torch.cuda.Event | None, int]] = deque()
        """per step: flag, event after which it can be read, samples"""

    def look(self, optimizer: torch.optim.Optimizer | None, samples: int) -> Skipped:
        """After a step of `samples`: the skipped steps that have become known since the last call."""
        found = getattr(optimizer, "found_inf", None)
        if isinstance(found, Tensor):
            if found.is_cuda:
                flag = torch.empty(1, dtype=torch.float32, device="cpu", pin_memory=True)
                flag.copy_(found.detach().reshape(-1)[:1], non_blocking=True)
                self._flags.append((flag, torch.cuda.current_stream(found.device).record_event(), samples))
            else:
                self._flags.append((found.detach().reshape(-1)[:1].clone(), None, samples))
        skipped = Skipped(0, 0)
        while self._flags:
            flag, event, of_step = self._flags[0]
            if event is not None and not event.query():
                break
            self._flags.popleft()
            if flag.item() != 0.0:
                skipped = Skipped(skipped.steps + 1, skipped.samples + of_step)
        return skipped
