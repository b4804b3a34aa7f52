"""Lines about work of known size that lasts: how much is done, at which rate, and the time left. For every process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from gossipdp.runtime.link.wait_lines import AFTER, EVERY

__all__ = ["Progress", "Say", "silent"]

Say: TypeAlias = Callable[[str], object]
"""takes a line for the user"""


def silent(_: str) -> None:
    """Say nothing."""


class Progress:
    """The progress of one piece of work. It says nothing of work that ends within five seconds.

    Args:
        what: the work, such as "writing checkpoint-00000003".
        total: bytes of it.
        say: gets each line.
        clock: seconds.
    """

    def __init__(self, what: str, total: int, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._total, self._say, self._clock = what, total, say, clock
        self._done, self._since = 0, clock()
        self._due = self._since + AFTER

    def advance(self, count: int) -> None:
        """`count` more bytes are done."""
        self._done += count
        now = self._clock()
        if now < self._due or self._done >= self._total:
            return
        self._due = now + EVERY
        rate = self._done / (now - self._since)
        left = (self._total - self._done) / max(rate, 1.0)
        amount = f"{self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB"
        self._say(f"{self._what}: {amount}, {rate / 1e6:.0f} MB/s, {left:.0f} s left")
