"""The end of a run with `epidemic`: peers whose training is over compare what they hold until all hold the same.

The network's clock stands by then, so the last epochs would never settle. Each peer asks those with which it has not
agreed yet for the digests of their epochs. What is missing follows as always (`epoch_digests`). With a robust rule,
increments count only in settled epochs. Once a peer agrees with all, it therefore lets the last epochs settle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from gossipdp.protocol.events import Closeness

__all__ = ["Closing"]

ASKED: Final = 32
"""members asked at a time, at most"""
TIMES: Final = 60
"""times that members are asked in vain before a peer gives up"""


class Closing:
    """Compares one peer's state with those of others.

    Args:
        every: seconds between two questions.
        agrees: whether the digest that a member sent last, since `begin`, shows this peer's own set of increments.
        ask: asks members for their digests.
        idle: whether all that has been received is applied.
        settle: lets the last epochs settle; called once, when all agree.
    """

    def __init__(
        self,
        every: float,
        *,
        agrees: Callable[[bytes], bool],
        ask: Callable[[Sequence[bytes]], None],
        idle: Callable[[], bool],
        settle: Callable[[], None],
    ) -> None:
        self._every, self._agrees, self._ask, self._idle, self._settle = every, agrees, ask, idle, settle
        self._others: Sequence[bytes] = ()
        self._asked = 0
        self._at = math.inf
        """when to ask next; infinity before the training is over"""
        self._settled = False

    def meet(self, others: Sequence[bytes], now: float) -> None:
        """These are the others whose training is over."""
        self._others, self._asked = others, 0
        self._at = now
        self.handle_timer(now)

    @property
    def closeness(self) -> Closeness:
        """Whether the states are equal."""
        agrees = self._at < math.inf and self._settled and self._idle() and not self._differ()
        over = agrees or (self._asked >= TIMES and self._idle())
        return Closeness(over, agrees, math.nan, 0.0 if agrees else math.nan, self._asked)

    def _differ(self) -> list[bytes]:
        return [peer for peer in self._others if not self._agrees(peer)]

    def timer(self) -> float | None:
        """When `handle_timer` is due, or None."""
        return None if self._at == math.inf or self._asked >= TIMES else self._at

    def handle_timer(self, now: float) -> None:
        """Ask the members that do not agree yet."""
        due = self.timer()
        if due is None or now < due:
            return
        self._at = now + self._every
        differ = self._differ()
        if differ:
            self._asked += 1
            self._ask(differ[:ASKED])
        elif not self._settled and self._idle():
            self._settled = True
            self._settle()
