"""The table of members: what this peer believes of each, and what it saw of each itself.

A record overrides another by its pair (incarnation, refutation), at equal pairs by its state: left, failed, suspect,
alive (SWIM section 4.2). Only a member itself raises its pair and signs it, so old gossip resurrects no member.
A member whose home was restored from a backup has an earlier pair than the table. Its own answer, later than the
record, then stands, and such records are no longer heard from others. The table is bounded: the longest dead make room
for the living, and the dead are forgotten in time. No message and no timer is here.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

from msgspec.structs import replace

from gossipdp.protocol.membership.digests import Buckets
from gossipdp.protocol.membership.introductions import most_hearsay, most_live
from gossipdp.protocol.membership.suspicion import MembershipConfig, suspicion_bounds, suspicion_timeout
from gossipdp.protocol.wire.messages import Member, State

__all__ = ["LIVE", "MAX_MEMBERS", "Seen", "View", "overrides"]

MAX_MEMBERS: Final = 16_384
"""members known, this one included; past it new ones take the place of the longest dead, or are refused and counted"""
LEAP: Final = 8
"""refutations beyond those that a member itself told, up to which another may know of a later one"""
_GHOSTS: Final = 4
"""members never heard that may be silent one after another before only some of their kind are spoken to"""
_TRIES: Final = 8
"""to pick a member blindly, before all are looked at"""
LIVE: Final = (State.ALIVE, State.SUSPECT)


@dataclass(slots=True)
class Seen:
    """What this peer itself saw of another."""

    heard: float = -math.inf
    told: float = -math.inf
    """when it was last told directly what is believed of it"""
    viewed: float = -math.inf
    """when it was last sent the whole view in reply"""
    rtt: float | None = None
    linked: bool = False
    """it has spoken, and the transport has not lost it since"""
    speed: float = 0.0
    """steps a second, by its own word, when it last said that it trains"""
    rests: float = math.inf
    """when it first said that it does not, since"""
    rested: float = 0.0
    """seconds from then until it last said so"""


@dataclass(slots=True)
class Suspicion:
    """Since when, and how long in seconds at least and at most."""

    since: float
    bounds: tuple[float, float]


class View:
    """`members` holds every record, this peer's own among them; all else is kept of the others alone.

    outbound: those alive or suspected that only dial out. lost: suspected or failed. dead: failed or left, and since
    when, the longest dead first. seen: those that this peer has had to do with itself.
    """

    def __init__(self, config: MembershipConfig, me: Member) -> None:
        self.config, self.me = config, me
        self.members: dict[bytes, Member] = {me.id: me}
        self._ids = [me.id]
        """sorted"""
        self.buckets = Buckets(self._ids)
        self.buckets.put(me)
        self.count = 1
        """N: live members, this one included"""
        self.changed = -math.inf
        """when a record of another last changed state or pair"""
        self.seen: dict[bytes, Seen] = {}
        self.lost: dict[bytes, None] = {}
        self.dead: dict[bytes, float] = {}
        self.outbound: dict[bytes, None] = {}
        self.suspected: dict[bytes, Suspicion] = {}
        self._raised: dict[bytes, float] = {}
        """when the pair of each became what it is"""
        self._forged: dict[bytes, tuple[int, int]] = {}
        """the latest pair that a member itself has disproved"""
        self.remembered: dict[bytes, str] = {}
        """where those were to be dialled who were members in an earlier life, or failed and have been forgotten"""
        self.refused = 0
        self.heard_from = 0
        """members known that have spoken to this peer itself"""
        self.hearsay: dict[bytes, None] = {}
        """live members that have not"""
        self._silent = 0
        """members never heard that were probed in vain, one after another"""
        self._alive: list[Member] | None = None
        self._verdict_at: float | None = math.inf
        """the first deadline or an earlier time; None when it must be looked for"""

    def lives(self, peer: bytes) -> bool:
        """Is it another, alive or suspected?"""
        member = self.members.get(peer)
        return member is not None and member.state in LIVE and peer != self.me.id

    def alive(self) -> list[Member]:
        """Records of the live, sorted by id."""
        if self._alive is None:
            members, me = self.members, self.me.id
            self._alive = [members[peer] for peer in self._ids if members[peer].state in LIVE and peer != me]
        return list(self._alive)

    def pick(self, random: Random) -> Member | None:
        """One of this peer's company that a message can get to, each as likely. As a rule it takes no look at all."""
        ids, all_count = self._ids, self.room == len(self.hearsay)
        for _ in range(_TRIES if all_count else 0):
            peer = ids[int(random.random() * len(ids))]
            if self.lives(peer) and self.reaches(peer):
                return self.members[peer]
        live = [peer for peer in self.company(random) if self.reaches(peer)]
        return self.members[random.choice(live)] if live else None

    def address_of(self, peer: bytes) -> str:
        """Where `peer` is to be dialled, or "". A member that left is not: it dials when it comes back."""
        member = self.members.get(peer)
        if member is None:
            return self.remembered.get(peer, "")
        return "" if member.state == State.LEFT else member.address

    def left(self, address: str) -> bool:
        """Whether the member at `address` said goodbye, and no other member is there."""
        states = [self.members[peer].state for peer in self.dead if self.members[peer].address == address]
        return State.LEFT in states and not any(member.address == address for member in self.alive())

    def remember(self, members: Iterable[Member]) -> None:
        """Keep where `members` were to be dialled; the first remembered make room."""
        for member in members:
            if member.id != self.me.id and member.address:
                self.remembered.pop(member.id, None)
                self.remembered[member.id] = member.address
                if len(self.remembered) > MAX_MEMBERS:
                    del self.remembered[next(iter(self.remembered))]

    def acquainted(self) -> list[Member]:
        """Members that spoke to this peer, in this life or in an earlier one, and have not left; the live first."""
        lost = [self.members[peer] for peer in self.dead if self.members[peer].state == State.FAILED]
        met = [member for member in [*self.alive(), *lost] if self.heard(member.id)]
        left = {self.members[peer].address for peer in self.dead if self.members[peer].state == State.LEFT}
        earlier = [(peer, address) for peer, address in self.remembered.items() if not self.heard(peer)]
        return met + [Member(peer, "", at, 0, 0, State.FAILED) for peer, at in earlier if at not in left]

    def hear(self, peer: bytes, now: float) -> Seen | None:
        """`peer` spoke; None if it is nobody known."""
        if peer not in self.members or peer == self.me.id:
            return None
        seen = self.sight(peer)
        self.heard_from += seen.heard == -math.inf
        self.hearsay.pop(peer, None)
        seen.heard, seen.linked = now, True
        return seen

    def heard(self, peer: bytes) -> bool:
        """Whether this member has ever spoken to this peer itself."""
        seen = self.seen.get(peer)
        return seen is not None and seen.heard > -math.inf

    @property
    def crowded(self) -> bool:
        """Whether this peer takes no more live members on hearsay. It takes few once those probed last were silent."""
        most = most_live if self._doubtful else most_hearsay
        return len(self.hearsay) >= most(self.heard_from)

    @property
    def _doubtful(self) -> bool:
        return self._silent >= _GHOSTS

    def probed_unheard(self, *, answered: bool) -> bool:
        """A member that this peer never heard was probed. True if from now on fewer of its kind count as company."""
        before, self._silent = self._doubtful, 0 if answered else self._silent + 1
        return self._doubtful and not before

    @property
    def room(self) -> int:
        """Members never heard that count as company. If those probed last do not exist, others may not either."""
        return min(len(self.hearsay), max(8, self.heard_from)) if self._doubtful else len(self.hearsay)

    def company(self, random: Random) -> list[bytes]:
        """Live members worth a message: each that this peer has heard, and `room` of the others, drawn anew."""
        heard = [member.id for member in self.alive() if member.id not in self.hearsay]
        others = list(self.hearsay)
        return heard + (others if len(others) == self.room else random.sample(others, self.room))

    def sight(self, peer: bytes) -> Seen:
        """What was seen of this other member."""
        seen = self.seen.get(peer)
        if seen is None:
            seen = self.seen[peer] = Seen()
        return seen

    def trains(self, peer: bytes, speed: float, now: float) -> None:
        """`peer` says that it makes so many steps a second; 0: none."""
        seen = self.seen.get(peer)
        if seen is not None and 0.0 < speed < math.inf:
            seen.speed, seen.rests, seen.rested = speed, math.inf, 0.0
        elif seen is not None:
            seen.rests = min(seen.rests, now)
            seen.rested = now - seen.rests

    def training(self) -> list[bytes]:
        """Live members whose last word was that they train."""
        seen = ((member.id, self.seen.get(member.id)) for member in self.alive())
        return [peer for peer, sight in seen if sight is not None and sight.speed and sight.rests == math.inf]

    def linked(self, peer: bytes) -> bool:
        """It has spoken, and the transport has not lost it since."""
        seen = self.seen.get(peer)
        return seen is not None and seen.linked

    def reaches(self, peer: bytes) -> bool:
        """Can a message get to this member: can it be dialled, or is there a link?"""
        return peer not in self.outbound or self.linked(peer)

    @property
    def beyond_reach(self) -> int:
        """How many of the live no message can get to."""
        return sum(not self.linked(peer) for peer in self.outbound)

    @property
    def alone(self) -> bool:
        """Is nobody there to whom a message can get? Behind a NAT, others behind one are known, and no company."""
        return self.count - 1 <= len(self.outbound) and not any(map(self.linked, self.outbound))

    # -- records ------------------------------------------------------------------------------------------------

    def change_me(self, me: Member) -> None:
        self.buckets.put(me)
        self.me = self.members[me.id] = me

    def put(self, record: Member, now: float) -> Member | None:
        """Believe `record` of another; returns what was believed before."""
        peer, before = record.id, self.members.get(record.id)
        if record.state == State.SUSPECT:
            record = self._accused(replace(record, accusers=()), record.accusers)
        elif record.accusers:
            record = replace(record, accusers=())
        self.members[peer], self._alive, self.changed = record, None, now
        self.buckets.put(record)
        if before is None or _pair(before) != _pair(record):
            self._raised[peer] = now
        live = record.state in LIVE
        if before is None:
            insort(self._ids, peer)
            self.count += live
        else:
            self.count += live - (before.state in LIVE)
            self.dead.pop(peer, None)
        if not live:
            self.dead[peer] = now
        _put(self.outbound, peer, live and not record.address)
        _put(self.hearsay, peer, live and not self.heard(peer))
        _put(self.lost, peer, record.state in (State.SUSPECT, State.FAILED))
        self.suspected.pop(peer, None)
        if record.state == State.SUSPECT:
            self.suspected[peer] = Suspicion(now, self.suspicion_bounds())
            self._sooner(peer)
        if self._witnesses < self.config.confirmations:
            # With so few left, each that comes or goes changes how long all suspicions last.
            self._verdict_at = None
        return before

    def lost_elsewhere(self) -> list[bytes]:
        """The lost members, but not the failed ones at whose address a live member answers now: their host was rebuilt
        under a new identity."""
        if not self.lost:
            return []
        taken = {member.address for member in (self.me, *self.alive())} - {""}
        lost = [self.members[peer] for peer in self.lost]
        return [member.id for member in lost if member.state != State.FAILED or member.address not in taken]

    def disproves(self, record: Member, asked: float) -> bool:
        """Does a member's own word, in answer to what was `asked` then, show that what is believed of it was forged?"""
        known = self.members.get(record.id)
        if known is None or _pair(record) >= _pair(known) or asked <= self._raised[record.id]:
            return False
        self._forged[record.id] = max(_pair(known), self._forged.get(record.id, _pair(known)))
        return True

    def disproved(self, record: Member) -> bool:
        """Has the member itself shown that this, which another says of it, is forged?"""
        known, forged = self.members.get(record.id), self._forged.get(record.id)
        if known is None or forged is None or _pair(record) > forged:
            return False
        # What is but a little later may be an honest suspicion, or the answer to one.
        return record.incarnation > known.incarnation or record.refutation > known.refutation + LEAP

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
        return now - self.dead.get(peer, now)

    def _remove(self, peer: bytes) -> None:
        if self.members[peer].state == State.FAILED and self.heard(peer):
            self.remember([self.members[peer]])  # across a cut it may be well
        self.heard_from -= self.heard(peer)
        self.buckets.drop(peer)
        del self.members[peer], self.dead[peer], self._ids[bisect_left(self._ids, peer)]
        del self._raised[peer]
        for table in (self.seen, self.lost, self._forged):
            table.pop(peer, None)

    # -- suspicion ----------------------------------------------------------------------------------------------

    def suspicion_bounds(self) -> tuple[float, float]:
        """Seconds that a suspicion lasts, at least and at most, that begins now."""
        config = self.config
        longest = config.suspicion_longest if config.lifeguard else 1.0
        return suspicion_bounds(config.suspicion_multiplier, longest, self.count, config.probe_interval)

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
        return self.count - 1 - len(self.suspected)

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
        return max(suspicion.since, self.seen[peer].heard if peer in self.seen else -math.inf) + self._timeout(peer)

    def _timeout(self, peer: bytes) -> float:
        """Seconds; the first accuser suspects, all others confirm."""
        confirmations = max(0, len(self.members[peer].accusers) - 1)
        return suspicion_timeout(confirmations, self._expected, self.suspected[peer].bounds)

    def _sooner(self, peer: bytes) -> None:
        if self._verdict_at is not None:
            self._verdict_at = min(self._verdict_at, self._deadline(peer))


def overrides(new: Member, old: Member) -> bool:
    """Later pair first; at equal pairs left > failed > suspect > alive (SWIM section 4.2).

    Of one pair a peer has but one address: two are of two daemons with one identity, and who gossips hears of the same.
    """
    return (*_pair(new), new.state, new.address) > (*_pair(old), old.state, old.address)


def _pair(member: Member) -> tuple[int, int]:
    return member.incarnation, member.refutation


def _put(members: dict[bytes, None], peer: bytes, inside: bool) -> None:
    if inside:
        members[peer] = None
    else:
        members.pop(peer, None)
