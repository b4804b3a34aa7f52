"""How long exchanges take with this peer's partners, learnt from those there were: a chunk, and an answer.

What is slower than usual is left; what is merely under way is not asked for again, for on a slow link asking again
only lengthens the queue. Answers to what was said twice do not tell which of the two they answer, so only the others
are measured, and patience that was needed is kept until one is (Karn & Partridge, "Improving round-trip time estimates
in reliable transport protocols", SIGCOMM 1987). No message and no clock is here.
"""

from __future__ import annotations

import math
from typing import Final

from gossipdp.protocol.patience import Patience

__all__ = ["Tempo"]

DECAY: Final = 0.8
"""what earlier exchanges count for in the mean of log seconds a chunk: a slow partner among many moves it little, a
network that has slowed down does"""
RATED: Final = 2.0
"""an exchange that takes less than so many times what it owes to its rate is as fast as that lets it be"""
MOST: Final = 8.0
"""Patience is learnt up to this multiple of the least, because a partner may be dead."""


class Tempo:
    """Args: ask: seconds without an answer after which it is asked for again, at the least."""

    def __init__(self, ask: float) -> None:
        self._patience = Patience(ask, MOST * ask)
        self._log_pace = math.nan

    @property
    def patience(self) -> float:
        """Seconds to wait for an answer."""
        return self._patience.seconds

    @property
    def pace(self) -> float:
        """Seconds a chunk takes; infinite while that is not known."""
        return math.inf if math.isnan(self._log_pace) else math.exp(self._log_pace)

    def exchanged(self, chunks: int, duration: float, owed: float = 0.0) -> None:
        """An exchange has mixed so many chunks in so many seconds, of which it owed so many to its agreed rate: mostly
        these tell nothing of the next one, at another rate, and are a measure only as long as there is none."""
        if duration < RATED * owed and not math.isnan(self._log_pace):
            return
        latest = math.log(duration / chunks)
        before = latest if math.isnan(self._log_pace) else self._log_pace
        self._log_pace = DECAY * before + (1.0 - DECAY) * latest

    def answered(self, seconds: float, asked: int) -> None:
        """An answer came `seconds` after the first request, which was repeated `asked` times."""
        if asked:
            self._patience.needed(seconds)
        else:
            self._patience.answered(seconds)
