"""The suspected members: how long each suspicion lasts, and which accusers shorten it (Lifeguard section IV.B).

A suspect fails when its suspicion has lasted its time, and its silence too. The formulas are pure functions, those of
hashicorp/memberlist, so tests can check them as tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from gossipdp.protocol.membership.config import MembershipConfig
from gossipdp.protocol.membership.contacts import Contacts
from gossipdp.protocol.wire.messages import Member, State

__all__ = ["Suspects", "suspicion_bounds", "suspicion_timeout"]


def suspicion_bounds(multiplier: float, longest: float, members: int, probe_interval: float) -> tuple[float, float]:
    """Shortest and longest suspicion in seconds: multiplier * max(1, log10(N + 1)) * probe_interval, and `longest`
    times that. `members` counts the live ones, this peer included.
    """
    least = multiplier * max(1.0, math.log10(members + 1)) * probe_interval
    return least, longest * least


def suspicion_timeout(confirmations: int, expected: int, bounds: tuple[float, float]) -> float:
    """max(least, most - (most - least) log(C + 1) / log(K + 1)) seconds (Lifeguard section IV.B).

    C independent confirmations have been seen of the K at which the timeout is shortest.
    """
    least, most = bounds
    if expected < 1:
        return least
    return max(least, most - (most - least) * math.log(confirmations + 1) / math.log(expected + 1))


@dataclass(slots=True)
class _Suspicion:
    since: float
    bounds: tuple[float, float]
    """shortest and longest duration in seconds"""


class Suspects:
    """When each suspect fails.

    Args:
        members: the table of records; only read.
    """

    def __init__(self, config: MembershipConfig, members: Mapping[bytes, Member], contacts: Contacts) -> None:
        self._config, self._members, self._contacts = config, members, contacts
        self._live = 1
        """live members, this peer included"""
        self._suspicions: dict[bytes, _Suspicion] = {}
        self._verdict_at: float | None = math.inf
        """the first deadline or an earlier time; None when it must be computed again"""

    def __len__(self) -> int:
        return len(self._suspicions)

    def __contains__(self, peer: bytes) -> bool:
        return peer in self._suspicions

    def bounds(self) -> tuple[float, float]:
        """Shortest and longest duration, in seconds, of a suspicion that begins now."""
        config = self._config
        longest = config.suspicion_longest if config.lifeguard else 1.0
        return suspicion_bounds(config.suspicion_multiplier, longest, self._live, config.probe_interval)

    def accused(self, suspect: Member, accusers: Iterable[bytes]) -> Member:
        """`suspect` with `accusers` added to its own: up to K + 1, each once, and only this peer and members that are
        not suspected themselves."""
        if not self._config.lifeguard:
            return replace(suspect, accusers=())
        merged = dict.fromkeys(suspect.accusers)
        for peer in accusers:
            known = self._members.get(peer)
            if known is not None and known.state == State.ALIVE:
                merged[peer] = None
        return replace(suspect, accusers=tuple(merged)[: self._config.confirmations + 1])

    def update(self, record: Member, live: int, now: float) -> None:
        """`record` has entered the table: begin a suspicion of its member, or end one.

        Args:
            live: the number of live members now, this peer included.
        """
        self._live = live
        self._suspicions.pop(record.id, None)
        if record.state == State.SUSPECT:
            self._suspicions[record.id] = _Suspicion(now, self.bounds())
            self.confirmed(record.id)
        if self._witnesses < self._config.confirmations:
            # With so few witnesses, each that comes or goes changes the duration of all suspicions.
            self._verdict_at = None

    def confirmed(self, peer: bytes) -> None:
        """The suspect has new accusers, so it may fail sooner."""
        if self._verdict_at is not None:
            self._verdict_at = min(self._verdict_at, self._deadline(peer))

    def next_verdict(self) -> float:
        """When to call `overdue` next."""
        if self._verdict_at is None:
            self._verdict_at = min(map(self._deadline, self._suspicions), default=math.inf)
        return self._verdict_at

    def overdue(self, now: float) -> list[bytes]:
        """The suspects that fail now."""
        if now < self.next_verdict():
            return []
        self._verdict_at = None
        return [peer for peer in self._suspicions if now >= self._deadline(peer)]

    def postpone(self, late: float, now: float) -> None:
        """This peer did not run for `late` seconds: no suspicion counts them, and each suspect gets one more chance."""
        for peer, suspicion in self._suspicions.items():
            least = now + self._config.probe_interval - self._timeout(peer)
            suspicion.since = max(suspicion.since + late, least)
        self._verdict_at = None

    @property
    def _witnesses(self) -> int:
        """Other members that are not suspected, and could accuse."""
        return self._live - 1 - len(self._suspicions)

    def _deadline(self, peer: bytes) -> float:
        seen = self._contacts.seen.get(peer)
        silent_since = -math.inf if seen is None else seen.heard
        return max(self._suspicions[peer].since, silent_since) + self._timeout(peer)

    def _timeout(self, peer: bytes) -> float:
        """Seconds. The first accuser suspects, all others confirm."""
        confirmations = max(0, len(self._members[peer].accusers) - 1)
        expected = min(self._config.confirmations, self._witnesses)
        return suspicion_timeout(confirmations, expected, self._suspicions[peer].bounds)
