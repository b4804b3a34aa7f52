"""One operation at a time on the whole state: apply an increment, step a round, or freeze a snapshot.

An operation is many jobs, one for each chunk, with other work between them. If two were under way at once, a snapshot
could hold half of an increment. Nothing here knows the operations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

__all__ = ["Exclusive"]


class Exclusive:
    """A queue of operations. Those asked for with `ahead` go before all others; each kind keeps its order."""

    def __init__(self) -> None:
        self.busy = False
        """an operation is under way"""
        self._ahead: deque[Callable[[], bool]] = deque()
        self._others: deque[Callable[[], bool]] = deque()

    @property
    def idle(self) -> bool:
        """No operation is under way or waits."""
        return not (self.busy or self._ahead or self._others)

    def ask(self, begin: Callable[[], bool], *, ahead: bool = False) -> None:
        """Call `begin` when no operation is under way, now or later.

        Args:
            begin: starts the operation. Returns whether it is under way, until `over` is called.
            ahead: go before the operations that wait without `ahead`.
        """
        (self._ahead if ahead else self._others).append(begin)
        self._next()

    def over(self) -> None:
        """The operation under way has ended."""
        self.busy = False
        self._next()

    def _next(self) -> None:
        while not self.busy and (self._ahead or self._others):
            self.busy = True
            self.busy = (self._ahead or self._others).popleft()()
