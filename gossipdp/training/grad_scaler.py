"""Finds the steps that a fused optimizer skipped because GradScaler found Inf. They do not count.

GradScaler calls `step` of an unfused optimizer only when all gradients are finite. It always calls a fused one, which
skips on the device by a flag (torch.amp.GradScaler.step, `found_inf`). Reading the flag at once would wait for the
device, so it is read some steps later.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Skipped", "SkippedSteps"]


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
