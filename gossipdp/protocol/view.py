"""The table of members: what this peer believes of each, and what it saw of each itself.

A record overrides another by its pair (incarnation, refutation), at equal pairs by its state: left, failed, suspect,
alive (SWIM section 4.2). Only a member itself raises its pair, so old gossip resurrects nobody. The table is bounded:
the longest dead make room for the living, and the dead are forgotten in time. No message and no timer is here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from gossipdp.protocol.messages import Member, State
from gossipdp.protocol.suspicion import MembershipConfig, suspicion_bounds, suspicion_timeout

__all__ = ["LIVE", "MAX_MEMBERS", "Seen", "View", "overrides"]

MAX_MEMBERS: Final = 4096
"""members known, this one included; past it new ones take the place of the longest dead, or are refused and counted"""
LIVE: Final = (State.ALIVE, State.SUSPECT)


@dataclass(slots=True)
class Seen:
    """What this peer itself saw of another."""

    since: float
    """when its record last changed state or pair here"""
    heard: float = -math.inf
    told: float = -math.inf
    """when it was last told directly what is believed of it"""
    viewed: float = -math.inf
    """when it was last sent the whole view in reply"""
    rtt: float | None = None
    linked: bool = False
    """it has spoken, and the transport has not lost it since"""


@dataclass(slots=True)
class Suspicion:
    """Since when, and how long in seconds at least and at most."""

    since: float
    bounds: tuple[float, float]


class View:
    """`members` holds every record, this peer's own among them; all else is kept of the others alone.

    live: alive or suspected. outbound: those of them that only dial out. lost: suspected or failed. dead: failed or
    left, the longest dead first.
    """

    def __init__(self, config: MembershipConfig, me: Member) -> None:
        self.config, self.me = config, me
        self.members: dict[bytes, Member] = {me.id: me}
        self.seen: dict[bytes, Seen] = {}
        self.live: dict[bytes, None] = {}
        self.lost: dict[bytes, None] = {}
        self.dead: dict[bytes, None] = {}
        self.outbound: dict[bytes, None] = {}
        self.suspected: dict[bytes, Suspicion] = {}
        self.remembered: dict[bytes, str] = {}
        """where members of an earlier life were to be dialled"""
        self.refused = 0
        self._alive: list[Member] | None = None
        self._verdict_at: float | None = math.inf
        """the first deadline or an earlier time; None when it must be looked for"""

    @property
    def count(self) -> int:
        """N: live members, this one included."""
        return len(self.live) + 1

    def alive(self) -> list[Member]:
        """Records of the live, sorted by id."""
        if self._alive is None:
            self._alive = [self.members[peer] for peer in sorted(self.live)]
        return list(self._alive)

    def address_of(self, peer: bytes) -> str:
        member = self.members.get(peer)
        return self.remembered.get(peer, "") if member is None else member.address

    def remember(self, members: Iterable[Member]) -> None:
        for member in members:
            if member.id != self.me.id and member.address and len(self.remembered) < MAX_MEMBERS:
                self.remembered[member.id] = member.address

    def hear(self, peer: bytes, now: float) -> Seen | None:
        """`peer` spoke; None if it is nobody known."""
        seen = self.seen.get(peer)
        if seen is not None:
            seen.heard, seen.linked = now, True
        return seen

    def reaches(self, peer: bytes) -> bool:
        """Can a message get to this member: can it be dialled, or is there a link?"""
        return peer not in self.outbound or self.seen[peer].linked

    @property
    def beyond_reach(self) -> int:
        """How many of the live no message can get to."""
        return sum(not self.seen[peer].linked for peer in self.outbound)

    # -- records ------------------------------------------------------------------------------------------------

    def change_me(self, me: Member) -> None:
        self.me = self.members[me.id] = me

    def put(self, record: Member, now: float) -> Member | None:
        """Believe `record` of another; returns what was believed before."""
        peer, before = record.id, self.members.get(record.id)
        if record.state == State.SUSPECT:
            record = self._accused(replace(record, accusers=()), record.accusers)
        elif record.accusers:
            record = replace(record, accusers=())
        self.members[peer], self._alive = record, None
        self.seen.setdefault(peer, Seen(now)).since = now
        self.dead.pop(peer, None)
        _put(self.live, peer, record.state in LIVE)
        _put(self.outbound, peer, record.state in LIVE and not record.address)
        _put(self.dead, peer, record.state not in LIVE)
        _put(self.lost, peer, record.state in (State.SUSPECT, State.FAILED))
        self.suspected.pop(peer, None)
        if record.state == State.SUSPECT:
            config = self.config
            longest = config.suspicion_longest if config.lifeguard else 1.0
            bounds = suspicion_bounds(config.suspicion_multiplier, longest, self.count, config.probe_interval)
            self.suspected[peer] = Suspicion(now, bounds)
            self._sooner(peer)
        if self._witnesses < self.config.confirmations:
            # With so few left, each that comes or goes changes how long all suspicions last.
            self._verdict_at = None
        return before

    def room_for(self, record: Member) -> bytes | None:
        """Who had to go for a member not known so far: b"" if nobody; None if there is no room, which is counted."""
        if len(self.members) < MAX_MEMBERS:
            return b""
        if not self.dead or record.state not in LIVE:
            self.refused += 1
            return None
        oldest = next(iter(self.dead))
        self._remove(oldest)
        return oldest

    def forget(self, now: float) -> list[bytes]:
        """Remove, and return, those dead for longer than `forget_after`."""
        gone = []
        for peer in self.dead:
            if self.dead_for(peer, now) < self.config.forget_after:
                break
            gone.append(peer)
        for peer in gone:
            self._remove(peer)
        return gone

    def dead_for(self, peer: bytes, now: float) -> float:
        return now - self.seen[peer].since if peer in self.dead else 0.0

    def _remove(self, peer: bytes) -> None:
        del self.members[peer], self.seen[peer], self.dead[peer]
        self.lost.pop(peer, None)

    # -- suspicion ----------------------------------------------------------------------------------------------

    def confirm(self, record: Member) -> Member | None:
        """What is believed of a suspect, with the accusers of `record` added; None if none of them is new."""
        known = self.members[record.id]
        merged = self._accused(known, record.accusers)
        if merged.accusers == known.accusers:
            return None
        self.members[record.id], self._alive = merged, None
        self._sooner(record.id)
        return merged

    def next_verdict(self) -> float:
        """When to ask who is `overdue`."""
        if self._verdict_at is None:
            self._verdict_at = min(map(self._deadline, self.suspected), default=math.inf)
        return self._verdict_at

    def overdue(self, now: float) -> list[bytes]:
        """The suspects to be failed."""
        if now < self.next_verdict():
            return []
        self._verdict_at = None
        return [peer for peer in self.suspected if now >= self._deadline(peer)]

    def postpone(self, late: float, now: float) -> None:
        """This peer was deaf for `late` seconds: they count against nobody, and each suspect may speak once more."""
        for peer, suspicion in self.suspected.items():
            least = now + self.config.probe_interval - self._timeout(peer)
            suspicion.since = max(suspicion.since + late, least)
        self._verdict_at = None

    @property
    def _witnesses(self) -> int:
        """Others that are in no doubt, and could accuse."""
        return len(self.live) - len(self.suspected)

    @property
    def _expected(self) -> int:
        """K."""
        return min(self.config.confirmations, self._witnesses)

    def _accused(self, suspect: Member, accusers: Iterable[bytes]) -> Member:
        """`suspect` with `accusers` added to its own, as far as they count: up to K + 1, each once, and only this peer
        and members in no doubt themselves."""
        if not self.config.lifeguard:
            return replace(suspect, accusers=())
        merged = dict.fromkeys(suspect.accusers)
        for peer in accusers:
            known = self.members.get(peer)
            if known is not None and known.state == State.ALIVE:
                merged[peer] = None
        return replace(suspect, accusers=tuple(merged)[: self.config.confirmations + 1])

    def _deadline(self, peer: bytes) -> float:
        """A suspect is failed when its suspicion has lasted, and so has its silence."""
        suspicion = self.suspected[peer]
        return max(suspicion.since, self.seen[peer].heard) + self._timeout(peer)

    def _timeout(self, peer: bytes) -> float:
        """Seconds; the first accuser suspects, all others confirm."""
        confirmations = max(0, len(self.members[peer].accusers) - 1)
        return suspicion_timeout(confirmations, self._expected, self.suspected[peer].bounds)

    def _sooner(self, peer: bytes) -> None:
        if self._verdict_at is not None:
            self._verdict_at = min(self._verdict_at, self._deadline(peer))


def overrides(new: Member, old: Member) -> bool:
    """Later pair first; at equal pairs left > failed > suspect > alive (SWIM section 4.2)."""
    return (new.incarnation, new.refutation, new.state) > (old.incarnation, old.refutation, old.state)


def _put(members: dict[bytes, None], peer: bytes, inside: bool) -> None:
    if inside:
        members[peer] = None
    else:
        members.pop(peer, None)
