"""Hosts that die, pause, slow down and are replaced: when a computation or a transfer that begins now will end.

Events belong to the setting. Every method asks `Hosts` for its times, and none knows the events. This module trains
nothing and knows no method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from peers.plan.timeline import Link
from simulations.lab.core import Setting

__all__ = ["Absence", "Event", "FailureSetting", "Hosts"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """What happens to one host."""

    host: int
    kind: Literal["gone", "paused", "slow"]
    """gone: the host dies with all it holds. If `end` is finite, another host is ready in its place then, without a
    model. Paused: it stops, and goes on where it was. Slow: its link has a share of its bandwidth
    """
    begin: float
    """seconds"""
    end: float = math.inf
    share: float = 0.1
    """of the bandwidth, if the host is slow"""


@dataclass(frozen=True, kw_only=True)
class FailureSetting(Setting):
    """A setting with events, for a given time. `rounds` counts those of a run without events."""

    seconds: float
    """simulated seconds of the run"""
    events: tuple[Event, ...] = ()


class Absence(NamedTuple):
    """A time in which a host is not there."""

    begin: float
    end: float
    dies: bool


class Hosts:
    """What every host can do at every moment.

    Args:
        count: number of hosts.
        link: of a host that is not slow.
        events: absences of one host must not overlap.

    Raises:
        ValueError: an event of an unknown host, an event that ends before it begins, or absences that overlap.
    """

    def __init__(self, count: int, link: Link, events: Collection[Event]) -> None:
        self.count = count
        self._link, self._events = link, events
        for event in events:
            if not (0 <= event.host < count and event.begin < event.end):
                raise ValueError(f"{event} with {count} hosts")
        self._absences = [
            sorted(
                Absence(event.begin, event.end, event.kind == "gone")
                for event in events
                if event.host == host and event.kind != "slow"
            )
            for host in range(count)
        ]
        for host, absences in enumerate(self._absences):
            if any(one.end > other.begin for one, other in pairwise(absences)):
                raise ValueError(f"absences of host {host} overlap")
        self._edges = sorted({moment for event in events for moment in (event.begin, event.end)} - {math.inf})

    # -- presence -------------------------------------------------------------------------------------------------

    @property
    def afflicted(self) -> set[int]:
        """Hosts that have an event."""
        return {event.host for event in self._events}

    def is_there(self, host: int, at: float) -> bool:
        return not any(absence.begin <= at < absence.end for absence in self._absences[host])

    def there(self, at: float) -> list[int]:
        """All hosts that are there."""
        return [host for host in range(self.count) if self.is_there(host, at)]

    def back(self, host: int, at: float) -> float:
        """The first moment from `at` on at which the host, or the one that replaces it, is there."""
        for absence in self._absences[host]:
            if absence.begin <= at < absence.end:
                return self.back(host, absence.end) if absence.end < math.inf else math.inf
        return at

    def death(self, host: int, at: float) -> float:
        """When the host dies, if it dies at `at` or later; the begin of its absence if it is dead at `at`."""
        return min((one.begin for one in self._absences[host] if one.dies and one.end > at), default=math.inf)

    def silence(self, host: int, at: float, longest: float) -> float:
        """Begin of the first absence, among those that end after `at`, that is a death or longer than `longest`."""
        found = (one for one in self._absences[host] if one.end > at and (one.dies or one.end - one.begin > longest))
        return min((one.begin for one in found), default=math.inf)

    def present_seconds(self, host: int, begin: float, end: float) -> float:
        """Seconds between `begin` and `end` in which the host is there."""
        away = sum(max(0.0, min(one.end, end) - max(one.begin, begin)) for one in self._absences[host])
        return max(0.0, end - begin) - away

    # -- work -----------------------------------------------------------------------------------------------------

    def compute(self, host: int, begin: float, seconds: float) -> float:
        """When a computation of `seconds` ends; infinite if the host dies before."""
        end = self._end(lambda at: float(self.is_there(host, at)), begin, seconds)
        return end if end <= self.death(host, begin) else math.inf

    def transfer(self, among: Iterable[int], begin: float, size: float, turns: int = 1) -> float:
        """When a transfer of `size` bytes a host, in `turns` messages, ends; infinite if one of the hosts dies before.

        The slowest link bounds it. It stands still while a host is paused.
        """
        hosts = tuple(among)
        began = begin + turns * self._link.latency
        end = self._end(lambda at: min(self._bandwidth(host, at) for host in hosts), began, size)
        return end if end <= min(self.death(host, begin) for host in hosts) else math.inf

    def _bandwidth(self, host: int, at: float) -> float:
        if not self.is_there(host, at):
            return 0.0
        shares = [
            event.share
            for event in self._events
            if event.host == host and event.kind == "slow" and event.begin <= at < event.end
        ]
        return self._link.bandwidth * min(shares, default=1.0)

    def _end(self, rate: Callable[[float], float], begin: float, amount: float) -> float:
        """When `amount` is done at a rate that changes only at the events."""
        at = begin
        for edge in (*(edge for edge in self._edges if edge > begin), math.inf):
            speed = rate(at)
            end = at + amount / speed if speed else math.inf
            if end <= edge:
                return end
            amount -= speed * (edge - at)
            at = edge
        return math.inf
