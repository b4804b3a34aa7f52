"""How long a chunk and an answer take, learnt from this peer's exchanges.

On a slow link a second request only lengthens the queue, so a peer waits as long as answers usually take. An answer to
a repeated request is ambiguous: only answers to single requests are measured (Karn & Partridge, "Improving round-trip
time estimates in reliable transport protocols", SIGCOMM 1987). No message and no clock is used here.
"""

from __future__ import annotations

import math
from typing import Final

from gossipdp.protocol.patience import Patience

__all__ = ["Timing"]

DECAY: Final = 0.8
"""weight of earlier exchanges in the mean of log seconds a chunk: one slow partner moves it little, a slower network
does"""
RATED: Final = 2.0
"""an exchange that takes less than this multiple of what its rate requires is as fast as the rate allows"""
MOST: Final = 8.0
"""Patience is learnt up to this multiple of the least, because a partner may be dead."""


class Timing:
    """The learnt times of one peer.

    Args:
        ask: seconds without an answer after which a request is repeated, at least.
    """

    def __init__(self, ask: float) -> None:
        self._patience = Patience(ask, MOST * ask)
        self._log_pace = math.nan

    @property
    def patience(self) -> float:
        """Seconds to wait for an answer."""
        return self._patience.seconds

    @property
    def pace(self) -> float:
        """Seconds a chunk takes; infinite while unknown."""
        return math.inf if math.isnan(self._log_pace) else math.exp(self._log_pace)

    def exchanged(self, chunks: int, duration: float, owed: float = 0.0) -> None:
        """An exchange has mixed `chunks` in `duration` seconds.

        Args:
            owed: seconds that its agreed rate requires. An exchange at its rate says little about one at another rate,
                so it counts only while nothing is known.
        """
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
