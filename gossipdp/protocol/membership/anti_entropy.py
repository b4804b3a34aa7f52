"""Views made equal: with one member now and then, compare all that is believed, and exchange what differs.

Push-pull of Demers et al. (1987), for what gossip missed, and for the crowd that gossip would take too many words to
tell of. The asker sends a digest of its view. The asked answers with a list, the marks of its records in what differs,
as many as one message holds; the asker sends back the records that are missing there, and names those that it lacks
itself, which the asked then sends. So views that agree cost one message, however many members there are, and of views
that differ each record travels once. While exchanges teach something they follow each other quickly, and then become
rare.

All this is paid from a budget. Whoever has overdrawn it asks nobody, and answers with a few words, so that a thousand
that start at once take longer, and not more bytes a second. What a record means is not decided here.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final

from gossipdp.protocol.membership.answers import Answers
from gossipdp.protocol.membership.broadcasts import pages, record_size
from gossipdp.protocol.membership.digests import first_of, pack, unpack
from gossipdp.protocol.membership.dissemination import Dissemination
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.wire.messages import Member, PushPull, State

__all__ = ["AntiEntropy"]

_LEAST: Final = 96
"""records sent each way in one exchange though they overdraw the budget; more of them if they do not"""
_MOST: Final = 2 * _LEAST
_FEW: Final = 4
"""members named to a newcomer by whoever has nothing left to tell it of all; the next exchange is with one of them"""
_PATIENCE: Final = 1.1
"""times as long until the next exchange, after a refusal"""
_MAX_OWED: Final = 64
"""members whose request for listed records is awaited at one time"""
_UNLIKE: Final = 0.25
"""share of what was compared; if more of it differs, fine digests are of no use"""


class AntiEntropy:
    """Whom to compare views with, and when."""

    def __init__(
        self, view: View, dissemination: Dissemination, answers: Answers, *, random: Random, now: float
    ) -> None:
        self._view, self._config, self._dissemination, self._random = view, view.config, dissemination, random
        self._answers = answers
        self._asked = b""
        """who owes a list"""
        self._owed: dict[bytes, int] = {}
        """records that those who were sent a list may still ask for"""
        self._learnt = self._refused = self._unlike = False
        self._wait = self._shortest
        self._at = now + self._wait * (0.5 + random.random())

    @property
    def _shortest(self) -> float:
        """Gossip is given the time it takes, or views would differ by what is under way; but unlike views differ
        by more than that."""
        config = self._config
        if self._unlike:
            return config.probe_interval
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
        self._at = self._dissemination.budget.ready(now)
        if self._at > now:
            return False
        longer = self._wait * (_PATIENCE if self._refused else 2.0)
        self._wait = self._shortest if self._learnt else min(longer, self._config.push_pull_interval)
        self._at = now + self._wait * (0.75 + 0.5 * self._random.random())
        member = self._view.pick(self._random)
        if member is not None:
            self._ask(member, now)
        return True

    def receive(self, message: PushPull, source: bytes, now: float) -> None:
        """A page of another's view, of which all records have been merged, or what it says of the rest."""
        known = source in self._view.seen
        if message.listed:
            if message.reply:
                self._give(message, source, now)
            elif known and source == self._asked:
                self._asked = b""
                self._compare(message, source, now)
        elif not message.reply:
            # No list: the asked has nothing left to spend. Where few are asked by many, to say so takes all they have,
            # unless these ask ever less often.
            self._refused = self._refused or source == self._asked
        else:
            # A stranger gets no more than a page, nor does whoever asks again and again.
            last = self._view.seen[source].viewed if known else math.inf
            if now < last + self._config.probe_interval / 2 or self._dissemination.budget.left(now) < 0.0:
                self._welcome(source, now, few=not message.digest)
                return
            self._view.seen[source].viewed = now
            if message.digest:
                self._answer(message, source, now)
            else:
                self.send_view(source, now)

    def send_view(self, to: bytes, now: float) -> None:
        """Everything, as far as the budget goes, to a member that knows nothing or is back after long."""
        self._leave_out(now)
        self._send(to, self._view.buckets.spoken_of(), max(_FEW, self._affords(now)), now)

    # -- an exchange, step by step ------------------------------------------------------------------------------

    def _ask(self, member: Member, now: float) -> None:
        self._leave_out(now)
        if self._asked and not self._learnt and not self._refused:
            # Silence: that view was the same.
            self._unlike = False
        self._learnt, self._refused, self._asked = False, False, member.id
        records = (self._view.me,) if member.state == State.ALIVE else (self._view.me, member)
        digest = self._view.buckets.digest(coarse=self._unlike)
        self._pay(member.id, PushPull(True, records, self._dissemination.reports(member.id, now), digest), now)

    def _answer(self, message: PushPull, source: bytes, now: float) -> None:
        """The marks in what differs from the digest."""
        self._leave_out(now)
        if self._view.members[source].state != State.ALIVE:
            self._send(source, [], 0, now)
        buckets = self._view.buckets
        runs = buckets.differing(message.digest)
        if not runs:
            return
        start = self._random.randrange(sum(end - first for first, end in runs))
        self._owed.pop(source, None)
        if len(self._owed) >= _MAX_OWED:
            del self._owed[next(iter(self._owed))]
        self._owed[source] = max(_LEAST, min(self._affords(now), _MOST))
        self._pay(source, PushPull(False, digest=pack(buckets.listed(runs, start)), listed=True), now)

    def _compare(self, message: PushPull, source: bytes, now: float) -> None:
        """What the asked has in some places: tell it what it lacks, and ask for what is lacking here."""
        listed = unpack(message.digest)
        gives, wants = self._view.buckets.compare(listed)
        differ = len(gives) + sum(len(run.marks) for run in wants)
        self._unlike = differ > _UNLIKE * (len(gives) + sum(len(run.marks) for run in listed))
        if gives:
            self._send(source, gives, max(_LEAST, min(self._affords(now), _MOST)), now)
        if wants:
            self._pay(source, PushPull(True, digest=pack(first_of(wants, _MOST)), listed=True), now)

    def _give(self, message: PushPull, source: bytes, now: float) -> None:
        """The records that one which was sent a list asks for."""
        most = self._owed.pop(source, 0)
        peers = self._view.buckets.named(unpack(message.digest)) if most else []
        if peers:
            self._send(source, peers, most, now)

    def _welcome(self, source: bytes, now: float, *, few: bool) -> None:
        """A page with hardly anything on it. A newcomer is named a few members to ask instead, once in an answer."""
        few = few and not self._answers.owes(source)
        self._answers.owe(source, self._view.me, now)
        for member in (self._view.pick(self._random) for _ in range(_FEW * few)):
            if member is not None and member.id != source:
                self._answers.owe(source, member, now)
        self._answers.handle_timer(now)

    def _send(self, to: bytes, peers: list[bytes], most: int, now: float) -> None:
        """Records of up to `most` of `peers`, in pages; of more the rest waits for another exchange, and which they are
        is left to chance."""
        members = self._view.members
        receiver = members.get(to)
        first = [] if receiver is None or receiver.state == State.ALIVE else [receiver]
        peers = [peer for peer in peers if peer != to and peer != self._view.me.id]
        if len(peers) > most:
            start = self._random.randrange(len(peers))
            peers = (peers[start:] + peers[:start])[:most]
        for page in pages(self._view.me, [*first, *(members[peer] for peer in peers)]):
            self._pay(to, PushPull(False, page), now)

    def _pay(self, to: bytes, message: PushPull, now: float) -> None:
        self._dissemination.budget.spend(self._dissemination.send(to, message, now), now)

    def _affords(self, now: float) -> int:
        """How many records the budget has left."""
        return int(self._dissemination.budget.left(now) / record_size(self._view.me))

    def _leave_out(self, now: float) -> None:
        """The long dead are spoken of no more, or they would be handed on for ever."""
        limit = self._config.forget_after / 2
        for peer in self._view.dead:
            if self._view.dead_for(peer, now) < limit:
                break
            self._view.buckets.drop(peer)
