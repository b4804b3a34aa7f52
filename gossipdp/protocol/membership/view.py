"""The table of members: what this peer believes of each.

A record overrides another by its pair (incarnation, refutation), at equal pairs by its state: left, failed, suspect,
alive (SWIM section 4.2). Only a member itself raises its pair and signs it, so old gossip resurrects no member. A peer
whose home was restored from a backup has an earlier pair than the table. Its own answer to a later question then
stands, and such forged records are no longer accepted from other members. The table is bounded: the longest dead make
room for the living, and the dead are forgotten in time. No message and no timer is here.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable
from random import Random
from typing import Final

from msgspec.structs import replace

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.membership.config import MembershipConfig
from gossipdp.protocol.membership.contacts import Contacts
from gossipdp.protocol.membership.digests import Digests
from gossipdp.protocol.membership.suspects import Suspects
from gossipdp.protocol.wire.messages import Member, State

__all__ = ["LEAP", "LIVE", "MAX_MEMBERS", "View", "overrides"]

MAX_MEMBERS: Final = 16_384
"""members known, this peer included; past it new ones replace the longest dead, or are refused and counted"""
LEAP: Final = 8
"""refutations past the last one that a member told itself, up to which another member may know of a later one"""
_TRIES: Final = 8
"""random picks of a member before all members are looked at"""
LIVE: Final = (State.ALIVE, State.SUSPECT)


class View:
    """`members` holds every record, this peer's own included; all other tables are of the other members alone."""

    def __init__(self, config: MembershipConfig, me: Member, admission: Admission) -> None:
        self.config, self.me = config, me
        self.members: dict[bytes, Member] = {me.id: me}
        self._ids = [me.id]
        """sorted"""
        self.digests = Digests(self._ids)
        self.digests.put(me)
        self.contacts = Contacts(config.proven_after, admission)
        self.suspects = Suspects(config, self.members, self.contacts)
        self.count = 1
        """N: live members, this peer included"""
        self.changed = -math.inf
        """when a record of another member last changed"""
        self.lost: dict[bytes, None] = {}
        """suspected or failed members"""
        self.dead: dict[bytes, float] = {}
        """failed or left members -> since when, the longest dead first"""
        self.outbound: dict[bytes, None] = {}
        """live members that can only dial out"""
        self._raised: dict[bytes, float] = {}
        """member -> when its pair last changed"""
        self._forged: dict[bytes, tuple[int, int]] = {}
        """member -> the latest pair that it has disproved itself"""
        self.remembered: dict[bytes, Member] = {}
        """members of an earlier life, and failed members that were forgotten; only their addresses count"""
        self.refused = 0
        """records refused, because the table was full or their sender introduced too many members"""
        self._alive: list[Member] | None = None
        self._models: list[Member] | None = None

    # -- live members -------------------------------------------------------------------------------------------

    def is_live(self, peer: bytes) -> bool:
        """Whether this is another member, alive or suspected."""
        member = self.members.get(peer)
        return member is not None and member.state in LIVE and peer != self.me.id

    def alive(self) -> list[Member]:
        """Records of the other live members, sorted by id."""
        if self._alive is None:
            members, me = self.members, self.me.id
            self._alive = [members[peer] for peer in self._ids if members[peer].state in LIVE and peer != me]
            self._models = [member for member in self._alive if not member.only_carries]
        return list(self._alive)

    def with_model(self) -> list[Member]:
        """The same without relays that have no model."""
        self.alive()
        return list(self._models or ())

    def candidates(self, random: Random) -> list[bytes]:
        """Live members worth a message: each that this peer has heard, and a bounded random sample of the rest."""
        heard = [member.id for member in self.alive() if member.id not in self.contacts.hearsay]
        others, limit = list(self.contacts.hearsay), self.contacts.hearsay_limit
        return heard + (others if len(others) == limit else random.sample(others, limit))

    def pick(self, random: Random) -> Member | None:
        """One of the candidates that a message can reach, each as likely as the next; None if there is none."""
        ids, all_count = self._ids, self.contacts.hearsay_limit == len(self.contacts.hearsay)
        # Most often a random member will do, and the whole table need not be looked at.
        for _ in range(_TRIES if all_count else 0):
            peer = ids[int(random.random() * len(ids))]
            if self.is_live(peer) and self.reaches(peer):
                return self.members[peer]
        live = [peer for peer in self.candidates(random) if self.reaches(peer)]
        return self.members[random.choice(live)] if live else None

    def hear(self, peer: bytes, now: float) -> bool:
        """A message of `peer` came. Returns whether it is another known member."""
        if peer not in self.members or peer == self.me.id:
            return False
        self.contacts.hear(peer, now)
        return True

    def reaches(self, peer: bytes) -> bool:
        """Whether a message can reach this member: it can be dialled, or there is a link."""
        return peer not in self.outbound or self.contacts.linked(peer)

    @property
    def beyond_reach(self) -> int:
        """Live members that no message can reach."""
        return sum(not self.contacts.linked(peer) for peer in self.outbound)

    @property
    def alone(self) -> bool:
        """Whether no message can reach any live member. Behind a NAT, others behind one may be known all the same."""
        return self.count - 1 <= len(self.outbound) and not any(map(self.contacts.linked, self.outbound))

    # -- addresses ----------------------------------------------------------------------------------------------

    def address_of(self, peer: bytes) -> str:
        """Where to dial `peer`, or "". A member that left is not dialled: it dials when it comes back."""
        member = self.members.get(peer)
        return "" if member is not None and member.state == State.LEFT else (*self._addresses_of(peer), "")[0]

    def others_of(self, peer: bytes) -> tuple[str, ...]:
        """Where else to dial `peer`."""
        return self._addresses_of(peer)[1:]

    def _addresses_of(self, peer: bytes) -> tuple[str, ...]:
        """The addresses of `peer`. Half of all members begin with its last relay, so that all its relays carry."""
        member = self.members.get(peer) or self.remembered.get(peer)
        addresses = () if member is None else member.addresses
        last_first = len(addresses) > 1 and addresses[0].startswith("@") and (peer[-1] ^ self.me.id[-1]) & 1
        return addresses[::-1] if last_first else addresses

    def left(self, address: str) -> bool:
        """Whether the member at `address` left, and no live member has that address."""
        states = [self.members[peer].state for peer in self.dead if address in self.members[peer].addresses]
        return State.LEFT in states and not any(address in member.addresses for member in self.alive())

    def remember(self, members: Iterable[Member]) -> None:
        """Keep the addresses of `members`. The table is bounded; the oldest entry goes first."""
        for member in members:
            if member.id != self.me.id and member.dialable:
                self.remembered.pop(member.id, None)
                self.remembered[member.id] = member
                if len(self.remembered) > MAX_MEMBERS:
                    del self.remembered[next(iter(self.remembered))]

    def restart_contacts(self) -> list[Member]:
        """Members that sent this peer a message, in this life or an earlier one, and have not left; the live first."""
        heard = self.contacts.heard
        lost = [self.members[peer] for peer in self.dead if self.members[peer].state == State.FAILED]
        met = [member for member in [*self.alive(), *lost] if heard(member.id)]
        left = {self.members[peer].address for peer in self.dead if self.members[peer].state == State.LEFT}
        earlier = [member for peer, member in self.remembered.items() if not heard(peer)]
        return met + [member for member in earlier if member.address not in left]

    def lost_elsewhere(self) -> list[bytes]:
        """The lost members, without failed ones at an address that a live member has now.

        The host of such a failed member was rebuilt under a new identity.
        """
        if not self.lost:
            return []
        taken = {member.address for member in (self.me, *self.alive())} - {""}
        lost = [self.members[peer] for peer in self.lost]
        return [member.id for member in lost if member.state != State.FAILED or member.address not in taken]

    # -- records ------------------------------------------------------------------------------------------------

    def change_me(self, me: Member) -> None:
        """Replace this peer's own record."""
        self.digests.put(me)
        self.me = self.members[me.id] = me

    def put(self, record: Member, now: float) -> Member | None:
        """Believe `record` of another member. Returns the record believed before."""
        peer, before = record.id, self.members.get(record.id)
        if record.state == State.SUSPECT:
            record = self.suspects.accused(replace(record, accusers=()), record.accusers)
        elif record.accusers:
            record = replace(record, accusers=())
        self.members[peer], self._alive, self.changed = record, None, now
        self.digests.put(record)
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
        _put(self.lost, peer, record.state in (State.SUSPECT, State.FAILED))
        self.contacts.update(peer, live=live)
        self.suspects.update(record, self.count, now)
        return before

    def confirm(self, record: Member) -> Member | None:
        """Add the accusers of `record` to its suspect. Returns its new record, or None if none of them is new."""
        known = self.members[record.id]
        merged = self.suspects.accused(known, record.accusers)
        if merged.accusers == known.accusers:
            return None
        self.members[record.id], self._alive = merged, None
        self.suspects.confirmed(record.id)
        return merged

    def disproves(self, record: Member, asked: float) -> bool:
        """Whether a member's own answer shows that the record believed of it was forged.

        Args:
            record: the member's own record, with an earlier pair than the one believed.
            asked: when the question was sent. The believed pair must be older than that.
        """
        known = self.members.get(record.id)
        if known is None or _pair(record) >= _pair(known) or asked <= self._raised[record.id]:
            return False
        self._forged[record.id] = max(_pair(known), self._forged.get(record.id, _pair(known)))
        return True

    def disproved(self, record: Member) -> bool:
        """Whether the member itself has shown that `record`, told by another member, is forged."""
        known, forged = self.members.get(record.id), self._forged.get(record.id)
        if known is None or forged is None or _pair(record) > forged:
            return False
        # A slightly later pair may be an honest suspicion, or its refutation.
        return record.incarnation > known.incarnation or record.refutation > known.refutation + LEAP

    def room_for(self, record: Member) -> bytes | None:
        """Make room for a new member. Returns the dead member that was removed, b"" if none had to be, or None if
        there is no room; that is counted."""
        if len(self.members) < MAX_MEMBERS:
            return b""
        if not self.dead or record.state not in LIVE:
            self.refused += 1
            return None
        oldest = next(iter(self.dead))
        self._remove(oldest)
        return oldest

    def forget(self, now: float) -> list[bytes]:
        """Remove the members that have been dead for `forget_after`. Returns their ids."""
        gone = []
        for peer in self.dead:
            if self.dead_for(peer, now) < self.config.forget_after:
                break
            gone.append(peer)
        for peer in gone:
            self._remove(peer)
        return gone

    def dead_for(self, peer: bytes, now: float) -> float:
        """Seconds since `peer` failed or left."""
        return now - self.dead.get(peer, now)

    def refuse(self) -> None:
        """Count a record that was not accepted."""
        self.refused += 1

    def _remove(self, peer: bytes) -> None:
        if self.members[peer].state == State.FAILED and self.contacts.heard(peer):
            # Beyond a partition it may be well.
            self.remember([self.members[peer]])
        self.contacts.forget(peer)
        self.digests.drop(peer)
        del self.members[peer], self.dead[peer], self._ids[bisect_left(self._ids, peer)], self._raised[peer]
        self.lost.pop(peer, None)
        self._forged.pop(peer, None)


def overrides(new: Member, old: Member) -> bool:
    """Whether `new` replaces `old`: a later pair; at equal pairs left > failed > suspect > alive (SWIM section 4.2).

    A peer has one list of addresses per pair. Two lists belong to two daemons with one identity; the order by address
    makes all members believe the same one.
    """
    return (*_pair(new), new.state, new.addresses) > (*_pair(old), old.state, old.addresses)


def _pair(member: Member) -> tuple[int, int]:
    return member.incarnation, member.refutation


def _put(members: dict[bytes, None], peer: bytes, inside: bool) -> None:
    if inside:
        members[peer] = None
    else:
        members.pop(peer, None)
