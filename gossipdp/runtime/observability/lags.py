"""How far the network's clock has gone on since each member last told of its progress."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gossipdp.protocol.wire.messages import Progress

__all__ = ["Lags"]


class _Told(NamedTuple):
    """The steps in a member's last report, and the network's clock when they came."""

    steps: int
    clock: int


class Lags:
    """Feed it all reports at least twice a round.

    A report has a clock too, which tells no lag: it is of the member's own steps, so it stays behind for good after a
    pause, and falls back ever further on a slow host.
    """

    def __init__(self) -> None:
        self._told: dict[bytes, _Told] = {}

    def look(self, reports: Iterable[Progress], clock: int) -> None:
        """Take over all reports. Members without one are forgotten. clock: of the network, in steps."""
        before, self._told = self._told, {}
        for report in reports:
            told = before.get(report.id)
            if told is None or told.steps != report.steps:
                told = _Told(report.steps, clock)
            self._told[report.id] = told

    def of(self, peer: bytes, clock: int) -> int | None:
        """Steps of the network's clock since the last report of `peer`; None without one."""
        told = self._told.get(peer)
        return None if told is None else max(0, clock - told.clock)
