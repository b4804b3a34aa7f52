"""Views made equal: with one member now and then, compare all that is believed, and exchange what differs.

Push-pull of Demers et al. (1987), for what gossip missed. The asker sends a digest of its view. The asked answers with
the marks of its records, four bytes each, in those buckets that differ; the asker sends back the records that are
missing there, and names those that it lacks itself, which the asked then sends. So views that agree cost one message,
however many members there are, and of views that differ each record travels at most once. While exchanges teach
something they follow each other quickly, and then become rare. What a record means is not decided here.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final

from gossipdp.protocol.broadcasts import pages
from gossipdp.protocol.buckets import Buckets, Marks, pack, unpack
from gossipdp.protocol.dissemination import Dissemination
from gossipdp.protocol.messages import MAX_RECORDS, Member, Progress, PushPull, State
from gossipdp.protocol.view import View

__all__ = ["AntiEntropy"]

_MOST_RECORDS: Final = 48 * (MAX_RECORDS - 1)
"""records sent to one member at one time, 48 pages; of more the rest waits for another exchange"""
_MAX_LISTS: Final = 24
"""messages with marks sent at one time; of more the rest waits, and which they are is left to chance"""


class AntiEntropy:
    """Whom to compare views with, and when."""

    def __init__(self, view: View, dissemination: Dissemination, *, random: Random, now: float) -> None:
        self._view, self._config, self._dissemination, self._random = view, view.config, dissemination, random
        self.buckets = Buckets()
        self.buckets.put(view.me)
        self._asked = b""
        """who owes the marks of its records"""
        self._gives = self._wants = 0
        """records that may still be sent to it, and asked of it"""
        self._owed: dict[bytes, int] = {}
        """records that those who were sent marks may still ask for"""
        self._learnt = False
        self._wait = self._shortest
        self._at = now + self._wait * (0.5 + random.random())

    @property
    def _shortest(self) -> float:
        """Gossip is given the time it takes, or views would differ by what is under way."""
        config = self._config
        return min(config.probe_interval * max(1.0, math.log10(self._view.count + 1)), config.push_pull_interval)

    def learnt(self) -> None:
        """A view of another held something new: there may be more."""
        self._learnt = True

    def timer(self) -> float:
        return self._at

    def handle_timer(self, now: float) -> bool:
        """Whether it was time."""
        if now < self._at:
            return False
        self._wait = self._shortest if self._learnt else min(2.0 * self._wait, self._config.push_pull_interval)
        self._at, self._learnt = now + self._wait * (0.75 + 0.5 * self._random.random()), False
        live = [member for member in self._view.alive() if self._view.reaches(member.id)]
        if live:
            self._ask(self._random.choice(live), now)
        return True

    def receive(self, message: PushPull, source: bytes, now: float) -> None:
        """A page of another's view, of which all records have been merged, or what it says of the rest."""
        seen = self._view.seen.get(source)
        if seen is not None and message.marks:
            if message.reply:
                self._give(message, source)
            elif source == self._asked:
                self._compare(message, source)
        elif not message.reply:
            return
        elif seen is not None and now >= seen.viewed + self._config.probe_interval / 2:
            seen.viewed = now
            if message.digest:
                self._answer(message, source, now)
            else:
                self.send_view(source, now)
        else:
            # One page is enough for a stranger, and for whoever asks again and again.
            self._dissemination.send(source, PushPull(False, self._dissemination.records(source)))

    def send_view(self, to: bytes, now: float) -> None:
        """Everything, to a member that knows nothing or is back after long."""
        self._retire(now)
        self._send(to, list(self.buckets), self._dissemination.reports())

    # -- an exchange, step by step ------------------------------------------------------------------------------

    def _ask(self, member: Member, now: float) -> None:
        records = (self._view.me,) if member.state == State.ALIVE else (self._view.me, member)
        self._asked, self._gives, self._wants = member.id, _MOST_RECORDS, _MOST_RECORDS
        self._retire(now)
        reports = self._dissemination.reports()
        self._dissemination.send(member.id, PushPull(True, records, reports, self.buckets.digest()))

    def _answer(self, message: PushPull, source: bytes, now: float) -> None:
        """The marks in those buckets that differ from the digest."""
        self._retire(now)
        places = self.buckets.differing(message.digest)
        receiver = self._view.members[source]
        if receiver.state != State.ALIVE:
            self._send(source, [])
        if not places:
            return
        start = self._random.randrange(len(places))
        self._owed[source] = _MOST_RECORDS
        for count, part in enumerate(pack(self.buckets.listed(places[start:] + places[:start]))):
            if count == _MAX_LISTS:
                break
            self._dissemination.send(source, PushPull(False, marks=part))

    def _compare(self, message: PushPull, source: bytes) -> None:
        """What the asked has of some buckets: tell it what it lacks, and ask for what is lacking here."""
        listed = unpack(message.marks)
        gives = self.buckets.beyond(listed)[: self._gives]
        self._gives -= len(gives)
        if gives:
            self._send(source, gives)
        wants, self._wants = _first(self.buckets.lacking(listed), self._wants)
        for part in pack(wants):
            self._dissemination.send(source, PushPull(True, marks=part))

    def _give(self, message: PushPull, source: bytes) -> None:
        """The records that one which was sent marks asks for."""
        owed = self._owed.pop(source, 0)
        peers = self.buckets.named(unpack(message.marks))[:owed]
        if owed > len(peers):
            self._owed[source] = owed - len(peers)
        if peers:
            self._send(source, peers)

    def _send(self, to: bytes, peers: list[bytes], reports: tuple[Progress, ...] = ()) -> None:
        """Records of `peers`, in pages."""
        members = self._view.members
        receiver = members[to]
        first = [] if receiver.state == State.ALIVE else [receiver]
        peers = [peer for peer in peers if peer != to and peer != self._view.me.id]
        if len(peers) > _MOST_RECORDS:
            start = self._random.randrange(len(peers))
            peers = (peers[start:] + peers[:start])[:_MOST_RECORDS]
        for page in pages(self._view.me, [*first, *(members[peer] for peer in peers)]):
            self._dissemination.send(to, PushPull(False, page, reports))
            reports = ()

    def _retire(self, now: float) -> None:
        """The long dead are spoken of no more, or they would be handed on for ever."""
        limit = self._config.forget_after / 2
        for peer in self._view.dead:
            if self._view.dead_for(peer, now) < limit:
                break
            self.buckets.drop(peer)


def _first(listed: Marks, count: int) -> tuple[Marks, int]:
    """As many of the marks as `count` allows, and how many more it would."""
    some: Marks = []
    for place, marks in listed:
        if count > 0:
            some.append((place, marks[:count]))
            count -= len(some[-1][1])
    return some, count
