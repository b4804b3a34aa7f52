"""The relays of a peer that no other peer can dial: other members' messages reach it through them.

A member with an address may offer to carry (`Member.carries`). A peer without one asks a few of them, keeps links with
those that agree, and advertises addresses that lead through them (`messages.through`). From then on others reach it as
they reach any member, and hardly anything else in the protocol knows of relays. A relay near this peer comes first. Of
relays at about the same distance a hash of both ids decides. A relay that was lost or said no is replaced at once, and
asked again later. No message is sent here: the driver asks the relays, and tells their answers.

Hidden peers share the relays. Every record names the relays of its member, so each peer can count what every relay has.
One that has its share comes after those that have less. If a relay has more than its share, because few were known when
its members came, some of them go elsewhere. A hash tells all members which ones go. Each asks its new relay before it
leaves the old one, and where it goes depends on room, distance and a hash, so that not all go to the same one. Where
there is no room for two relays of each hidden peer, each has one.

References: Thaler, Ravishankar, "Using name-based mappings to increase hit rates" (IEEE/ACM ToN 1998) for the hash;
Mirrokni, Thorup, Zadimoghaddam, "Consistent hashing with bounded loads" (SODA 2018) for the share.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, deque
from collections.abc import Collection, Sequence
from typing import Final

from gossipdp.protocol.events import Event, RelaysChosen
from gossipdp.protocol.membership.own_record import OwnRecord
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.wire.messages import State, through

__all__ = ["MOST_CARRIED", "RELAYS", "RelayChoice"]

MOST_CARRIED: Final = 64
"""members that one relay carries to"""
RELAYS: Final = 2
"""relays of one hidden peer: if one is lost, the other still carries"""
NEAREST: Final = 0.01
"""seconds of round-trip time up to which relays count as equally near; each further class reaches twice as far"""
UNKNOWN: Final = 0.1
"""seconds assumed for a member that has not answered a ping yet"""
ANSWER: Final = 4.0
"""probe intervals within which a relay must have answered"""
SOON: Final = 2.0
"""probe intervals after which a relay that was lost, or gave no answer, is asked again once it is alive"""
AGAIN: Final = 60.0
"""seconds after which a relay that said no is asked again, and twice as many after each further time"""
LATEST: Final = 4
"""most doublings of `AGAIN`"""
SHARE: Final = 1.25
"""members that are a relay's share, as a multiple of the mean of all relays"""
BALANCE: Final = 8.0
"""probe intervals between two looks at whether a relay of this peer has more than its share"""
ROOM: Final = 0.75
"""share of the places of all relays up to which a hidden peer asks a second one"""


class RelayChoice:
    """The relays of this peer.

    Args:
        own_record: publishes the addresses.
        events: takes `RelaysChosen`.
        hidden: this peer has no address yet.
    """

    def __init__(self, view: View, own_record: OwnRecord, events: deque[Event], *, hidden: bool, now: float) -> None:
        self._view, self._own_record, self._events = view, own_record, events
        self._hidden = hidden
        self._at = now
        self._asked: dict[bytes, float] = {}
        """relays that have not answered yet, and until when they may"""
        self._carrying: set[bytes] = set()
        """those that have agreed"""
        self._told: list[bytes] = []
        """those that the driver was told last"""
        self._not_before: dict[bytes, float] = {}
        """relays that said no, or were lost, and when each may be asked again"""
        self._refusals: Counter[bytes] = Counter()
        """how often each relay has said no"""
        self._leaving = b""
        """a relay with more than its share, which this peer leaves once another has agreed"""
        self._balance_at = now + BALANCE * view.config.probe_interval

    @property
    def chosen(self) -> list[bytes]:
        """Relays that carry to this peer, or were asked to."""
        return sorted(self._carrying | self._asked.keys())

    def advertise(self, addresses: Sequence[str], now: float) -> None:
        """Members can dial this peer at `addresses`; without any it needs relays."""
        self._hidden = not addresses
        if self._hidden:
            self._choose(now)
        else:
            self._asked.clear()
            self._carrying.clear()
            self._tell()
            self._own_record.move(addresses, now)

    def answered(self, relay: bytes, taken: bool, now: float) -> None:
        """A relay agrees to carry to this peer, or says no."""
        if relay not in self._asked and relay not in self._carrying:
            return
        self._asked.pop(relay, None)
        if taken:
            self._carrying.add(relay)
            self._carrying.discard(self._leaving)
            self._leaving = b""
        else:
            self._put_off(relay, now + AGAIN * 2 ** min(self._refusals[relay], LATEST))
            self._refusals[relay] += 1
        self._choose(now)

    def lost(self, relay: bytes, now: float) -> None:
        """There is no link with `relay` any more."""
        if relay in self._carrying:
            self._put_off(relay, now + SOON * self._view.config.probe_interval)
            self._choose(now)

    def handle_timer(self, now: float) -> None:
        """Replace relays that gave no answer, are gone, or carry no more. Call it at least once a probe interval."""
        if self._hidden and now >= self._at:
            self._choose(now)

    def _put_off(self, relay: bytes, until: float) -> None:
        self._carrying.discard(relay)
        self._not_before[relay] = until

    def _tell(self) -> None:
        if self.chosen != self._told:
            self._told = self.chosen
            self._events.append(RelaysChosen(tuple(self._told)))

    def _choose(self, now: float) -> None:
        self._at = now + self._view.config.probe_interval
        if not self._hidden or self._view.me.state == State.LEFT:
            return
        there = {member.id for member in self._view.alive() if member.carries and member.dialable}
        for relay in [relay for relay, until in self._asked.items() if now >= until or relay not in there]:
            del self._asked[relay]
            self._put_off(relay, now + SOON * self._view.config.probe_interval)
        self._carrying &= there
        self._tell()
        self._not_before = {relay: at for relay, at in self._not_before.items() if at > now}
        due = now >= self._balance_at
        if there and (due or len(self.chosen) < RELAYS):
            self._ask(there, due, now)
        if due:
            self._balance_at = now + BALANCE * self._view.config.probe_interval
        self._tell()
        # Each change of an address is news to the whole network. So an address that is added waits for the others that
        # are asked, and the order stays while relays stay.
        soon = now + (ANSWER - 1.0) * self._view.config.probe_interval
        if self._carrying.issuperset(self._view.me.relays) and any(until > soon for until in self._asked.values()):
            return
        order = [relay for relay in self._view.me.relays if relay in self._carrying]
        order += sorted(self._carrying - {*order}, key=self._distance)
        addresses = tuple(through(relay, self._view.me.id) for relay in order)
        if addresses != self._view.me.addresses:
            self._own_record.move(addresses, now)

    def _ask(self, there: set[bytes], due: bool, now: float) -> None:
        """Ask relays that are missing. If `due`, leave one that has more than its share."""
        me = self._view.me.id
        carried = {relay: [me] if relay in self._carrying else [] for relay in there}
        hidden = 1
        for member in self._view.alive():
            hidden += not member.dialable
            for relay in there.intersection(member.relays):
                carried[relay].append(member.id)
        places = MOST_CARRIED * len(there)
        if due and RELAYS * hidden > places and len(self._carrying) > 1:
            self._carrying = {next(relay for relay in self._view.me.relays if relay in self._carrying)}
        missing = max(0, (RELAYS if RELAYS * hidden <= ROOM * places else 1) - len(self.chosen))
        share = math.ceil(SHARE * (missing + sum(map(len, carried.values()))) / len(there))
        room = {relay: share - len(members) for relay, members in carried.items()}
        free = {member.id for member in self._view.alive() if member.id in there and member.state is State.ALIVE}
        free -= self._not_before.keys() | self._carrying | self._asked.keys()
        asked = sorted(free, key=lambda relay: (room[relay] <= 0, *self._distance(relay)))[:missing]
        if due and not asked and not self._asked:
            crowded = [relay for relay in sorted(self._carrying) if _goes(me, relay, carried[relay], share)]
            roomy = [relay for relay in free if room[relay] > 0]
            if crowded and roomy:
                self._leaving = crowded[0]
                asked = [min(roomy, key=lambda relay: self._far(relay) / room[relay])]
        for relay in asked:
            self._asked[relay] = now + ANSWER * self._view.config.probe_interval

    def _distance(self, relay: bytes) -> tuple[int, bytes]:
        seen = self._view.contacts.seen.get(relay)
        rtt = UNKNOWN if seen is None or seen.rtt is None else seen.rtt
        near = max(0, math.ceil(math.log2(max(rtt, NEAREST) / NEAREST)))
        return near, _hash(relay, self._view.me.id)

    def _far(self, relay: bytes) -> float:
        """A random distance, the same at each call. Of several relays each is the least with a chance of 1 / 2^near."""
        near, drawn = self._distance(relay)
        return -math.log((int.from_bytes(drawn, "big") + 1) / 2.0**64) * 2.0**near


def _goes(me: bytes, relay: bytes, members: Collection[bytes], share: int) -> bool:
    """Whether this peer is one of the members that are beyond the relay's share."""
    return len(members) > share and me in sorted(members, key=lambda member: _hash(relay, member))[share:]


def _hash(relay: bytes, member: bytes) -> bytes:
    return hashlib.blake2b(relay + member, digest_size=8).digest()
