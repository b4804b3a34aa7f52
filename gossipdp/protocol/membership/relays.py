"""The relays of a peer that no other peer can dial: other members' messages reach it through them.

A member with an address may offer to carry (`Member.carries`). A peer without one asks a few of them, keeps links with
those that agree, and advertises addresses that lead through them (`messages.through`). From then on others reach it as
they reach any member, and hardly anything else in the protocol knows of relays. A relay near this peer comes first. Of
relays at about the same distance a hash of both ids decides, so that hidden peers share them. A relay that was lost or
said no is replaced at once, and asked again later. No message is sent here: the driver asks the relays, and tells their
answers.

Reference: Thaler, Ravishankar, "Using name-based mappings to increase hit rates" (IEEE/ACM ToN 1998) for the hash.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from gossipdp.protocol.events import Event, RelaysChosen
from gossipdp.protocol.membership.own_record import OwnRecord
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.wire.messages import State, through

__all__ = ["RELAYS", "RelayChoice"]

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
"""seconds after which a relay that said no is asked again"""


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
        else:
            self._put_off(relay, now + AGAIN)
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
        free = {member.id for member in self._view.alive() if member.id in there and member.state is State.ALIVE}
        free -= self._not_before.keys() | self._carrying | self._asked.keys()
        for relay in sorted(free, key=self._distance)[: max(0, RELAYS - len(self.chosen))]:
            self._asked[relay] = now + ANSWER * self._view.config.probe_interval
        self._tell()
        addresses = tuple(through(relay, self._view.me.id) for relay in sorted(self._carrying, key=self._distance))
        if addresses != self._view.me.addresses:
            self._own_record.move(addresses, now)

    def _distance(self, relay: bytes) -> tuple[int, bytes]:
        seen = self._view.contacts.seen.get(relay)
        rtt = UNKNOWN if seen is None or seen.rtt is None else seen.rtt
        near = max(0, math.ceil(math.log2(max(rtt, NEAREST) / NEAREST)))
        return near, hashlib.blake2b(relay + self._view.me.id, digest_size=8).digest()
