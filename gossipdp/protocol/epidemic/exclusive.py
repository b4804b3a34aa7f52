"""One thing at a time is done to the whole state: an increment is applied, a round is stepped, a snapshot is frozen.

Each of them is many jobs, one a chunk, with other work between them; were two under way at once, a snapshot would hold
half of an increment. Nothing here knows what is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

__all__ = ["Turns"]


class Turns:
    """What is `ahead` comes before all else that waits; otherwise, who came first."""

    def __init__(self) -> None:
        self.busy = False
        self._ahead: deque[Callable[[], bool]] = deque()
        self._others: deque[Callable[[], bool]] = deque()

    @property
    def idle(self) -> bool:
        """Nothing is under way, and nothing waits."""
        return not (self.busy or self._ahead or self._others)

    def ask(self, begin: Callable[[], bool], *, ahead: bool = False) -> None:
        """Call `begin` when its turn has come, now or later; it says whether something is under way by that, until
        `over`."""
        (self._ahead if ahead else self._others).append(begin)
        self._next()

    def over(self) -> None:
        """What was under way has ended."""
        self.busy = False
        self._next()

    def _next(self) -> None:
        while not self.busy and (self._ahead or self._others):
            self.busy = True
            self.busy = (self._ahead or self._others).popleft()()
