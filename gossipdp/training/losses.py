"""The losses that a script reports. One on a device is copied beside the training and read when it has come."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Losses"]


class _Copy:
    """One number on its way from a device."""

    def __init__(self, value: Tensor) -> None:
        self._number = torch.empty((), dtype=torch.float64, device="cpu", pin_memory=True)
        self._number.copy_(value.to(torch.float64), non_blocking=True)
        self._event = torch.cuda.current_stream(value.device).record_event()

    def ready(self) -> bool:
        """True once it has come; never waits."""
        done: bool = self._event.query()
        return done

    def read(self) -> float:
        """The number. Waits for it."""
        self._event.synchronize()
        return float(self._number)


class Losses:
    """The last known value of each loss, by name.

    At most one copy of a loss is under way. Of those reported meanwhile the last one follows it.
    """

    def __init__(self) -> None:
        self.known: dict[str, float] = {}
        self._copies: dict[str, _Copy] = {}
        self._next: dict[str, Tensor] = {}

    @torch.no_grad()
    def take(self, name: str, value: float | Tensor | None) -> None:
        """Take in a number, or a tensor of one element; None changes nothing. Never waits for a device."""
        if value is None:
            return
        if isinstance(value, Tensor) and value.is_cuda:
            self._next[name] = value.detach().reshape(())
            self.poll()
            return
        self._copies.pop(name, None)
        self._next.pop(name, None)
        self.known[name] = float(value)

    @torch.no_grad()
    def poll(self) -> None:
        """Read what has come, and begin the copies of what was reported since. Never waits."""
        for name in [name for name, copy in self._copies.items() if copy.ready()]:
            self.known[name] = self._copies.pop(name).read()
        for name in [name for name in self._next if name not in self._copies]:
            self._copies[name] = _Copy(self._next.pop(name))

    def finish(self) -> dict[str, float]:
        """Wait for all that was reported, and return what is known."""
        while self._copies:
            for name in [*self._copies]:
                self.known[name] = self._copies.pop(name).read()
            self.poll()
        return self.known
