"""Steps that a fused optimizer skipped because GradScaler found Inf: they do not count.

GradScaler calls `step` of any other optimizer only when all gradients are finite. A fused one is called always, and
skips on the device by a flag that is there (torch.amp.GradScaler.step, `found_inf`). To read it at once would wait for
the device, so it is read a few steps later.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Skipped", "SkippedSteps"]


class Skipped(NamedTuple):
    steps: int
    samples: int


class SkippedSteps:
    def __init__(self) -> None:
        self._flags: deque[tuple[Tensor, torch.cuda.Event | None, int]] = deque()

    def look(self, optimizer: torch.optim.Optimizer | None, samples: int) -> Skipped:
        """After a step of `samples`: which steps so far are known by now, and only by now, to have been skipped."""
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
            flag, event, of = self._flags[0]
            if event is not None and not event.query():
                break
            self._flags.popleft()
            if flag.item() != 0.0:
                skipped = Skipped(skipped.steps + 1, skipped.samples + of)
        return skipped
