"""When to say what is waited for: after five seconds, and then every half minute. Pure, for every process of a host."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["AFTER", "EVERY", "WaitLines"]

AFTER: Final = 5.0
"""seconds of a wait before the first line"""
EVERY: Final = 30.0
"""seconds between further lines"""


class WaitLines:
    """The lines about one place where a process waits."""

    def __init__(self) -> None:
        self._for = ""
        self._since = math.inf
        self.due = math.inf
        """time of the next line; infinite while nothing is waited for"""

    def look(self, what: str, now: float) -> str:
        """The line that is due now, or "".

        Args:
            what: what is waited for; "" for nothing. A change of it begins a new wait.
        """
        if what != self._for:
            self._for, self._since = what, now
            self.due = now + AFTER if what else math.inf
        if now < self.due:
            return ""
        self.due = now + EVERY
        return f"waiting for {what} ({now - self._since:.0f} s so far)"
