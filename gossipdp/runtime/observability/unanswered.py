"""Addresses at which the last dial failed, with why and what to do. Nothing here may dial or log."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from gossipdp.protocol.events import Notice
from gossipdp.runtime.network.dial_causes import Cause

__all__ = ["FailedDial", "Shown", "Unanswered", "without_passed"]

KEPT: Final = 120.0
"""seconds for which a failed dial counts; lost members and seeds are dialled again far more often"""
MOST: Final = 64
"""addresses kept"""


class FailedDial(NamedTuple):
    at: float
    """when it failed"""
    causes: tuple[Cause, ...]
    """what came of each address tried, as in `DialFailed`"""
    do: str
    """what to do; may be empty"""


class Shown(NamedTuple):
    """A notice that `status` shows."""

    notice: Notice
    at: float
    """when it was given"""
    address: str = ""
    """where the dial failed that it tells of"""


def without_passed(notices: Iterable[Shown], reached: Collection[str]) -> list[Shown]:
    """`notices` without those of dials in vain (GD-101) at addresses of members that are linked now."""
    return [each for each in notices if each.notice.code != "GD-101" or each.address not in reached]


class Unanswered:
    """The last failure of each address, the latest last."""

    def __init__(self) -> None:
        self._failed: dict[str, FailedDial] = {}
        self._since: dict[str, float] = {}
        """when the first dial failed of those in a row"""

    def failed(self, address: str, causes: tuple[Cause, ...], do: str, now: float) -> bool:
        """A dial of `address` failed. Returns whether the one before had failed too."""
        again = self._failed.pop(address, None) is not None
        if len(self._failed) < MOST:
            self._failed[address] = FailedDial(now, causes, do)
            self._since.setdefault(address, now)
        return again

    def answered(self, address: str) -> None:
        """A link is up to `address`."""
        self._failed.pop(address, None)
        self._since.pop(address, None)

    def silent_for(self, address: str, now: float) -> float:
        """Seconds since the first of the failures in a row that still count; 0 without one."""
        return now - self._since.get(address, now)

    def recent(self, now: float) -> dict[str, FailedDial]:
        """The failures that still count, by address."""
        self._failed = {address: dial for address, dial in self._failed.items() if now < dial.at + KEPT}
        self._since = {address: since for address, since in self._since.items() if address in self._failed}
        return dict(self._failed)
