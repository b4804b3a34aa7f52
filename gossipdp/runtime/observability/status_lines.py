"""The daemon's log lines on how it is doing: one a minute, and one when the verdict changes.

They also say what the peer waits for, because a verdict such as "joining" lasts as long as that wait. Nothing here may
log.
"""

from __future__ import annotations

import logging
import math
from typing import Final, NamedTuple

from gossipdp.runtime.observability.health import STATES, Signs, Verdict, facts

__all__ = ["Line", "StatusLines", "Totals"]

EVERY: Final = 60.0
"""seconds between two lines"""
SETTLED: Final = 5.0
"""seconds for which a new verdict holds before it is told"""
LEVELS: Final = {kind.name: logging.WARNING if kind.colour == "red" else logging.INFO for kind in STATES}


class Line(NamedTuple):
    level: int
    text: str


class Totals(NamedTuple):
    """What a peer that trains has reached."""

    round: int
    clock: int
    """the network's, in steps"""
    loss: float
    """of this host's training; NaN if it is unknown"""
    received: int
    sent: int
    """bytes so far"""


class StatusLines:
    """Ask `look` about twice a second.

    Args:
        now: when the daemon began.
    """

    def __init__(self, now: float) -> None:
        self._at = now
        """time of the last line"""
        self._state = self._told = ""
        """the verdict's state, and the one last told"""
        self._since = now
        self._received = self._sent = 0

    def look(self, signs: Signs, verdict: Verdict, totals: Totals, now: float) -> Line | None:
        """The line that is due now, or None."""
        if verdict.state != self._state:
            self._state, self._since = verdict.state, now
        changed = verdict.state != self._told and now >= self._since + SETTLED
        if not changed and now < self._at + EVERY:
            return None
        self._at, self._told = now, verdict.state
        healthy = not verdict.causes
        texts = [self._progress(signs, totals)] if signs.training and not (changed and not healthy) else []
        return Line(LEVELS[verdict.state], "; ".join(texts + ([] if healthy else [verdict.text])))

    def _progress(self, signs: Signs, totals: Totals) -> str:
        received, sent = totals.received - self._received, totals.sent - self._sent
        self._received, self._sent = totals.received, totals.sent
        loss = [] if math.isnan(totals.loss) else [f"loss {totals.loss:.4f}"]
        parts = [f"round {totals.round}", f"step {totals.clock}", *loss, *facts(signs)]
        return ", ".join([*parts, f"{received / 1e6:.1f} MB in", f"{sent / 1e6:.1f} MB out"])
