"""Anti-entropy: now and then this peer compares its whole view with that of one member, and they exchange differences.

Push-pull of Demers et al. (1987), for news that gossip missed, and for large numbers of new members. The asker sends a
digest of its view. The asked member answers with a list: the marks of its records where the digests differ, as many as
one message holds. The asker sends the records that the list lacks, and names those that it lacks itself; the asked
member sends these. So equal views cost one message, whatever their size, and each differing record travels once. While
comparisons teach something they follow each other quickly; later they become rare.

A budget pays for all this. A peer that has overdrawn it asks no member, and answers with a few records. So a thousand
peers that start at once take longer, but not more bytes a second.
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
"""records sent each way in one comparison even if they overdraw the budget"""
_MOST: Final = 2 * _LEAST
"""records sent each way in one comparison if the budget allows"""
_FEW: Final = 4
"""members named to a newcomer by a peer with an overdrawn budget; the newcomer asks one of them next"""
_PATIENCE: Final = 1.1
"""factor of the pause before the next comparison, after a refusal"""
_MAX_OWED: Final = 64
"""members that may ask for listed records at one time"""
_UNLIKE: Final = 0.25
"""share of differing records above which fine digests are of no use"""


class AntiEntropy:
    """Which members to compare views with, and when."""

    def __init__(
        self, view: View, dissemination: Dissemination, answers: Answers, *, random: Random, now: float
    ) -> None:
        self._view, self._config, self._dissemination, self._random = view, view.config, dissemination, random
        self._answers = answers
        self._asked = b""
        """the member that owes a list"""
        self._owed: dict[bytes, int] = {}
        """member that was sent a list -> records that it may still ask for"""
        self._learnt = self._refused = self._unlike = False
        self._wait = self._shortest
        self._at = now + self._wait * (0.5 + random.random())

    @property
    def _shortest(self) -> float:
        """Shortest pause: gossip gets time to spread, or views would differ by what is under way. Very different views
        are compared sooner."""
        config = self._config
        if self._unlike:
            return config.probe_interval
        return min(config.probe_interval * max(1.0, math.log10(self._view.count + 1)), config.push_pull_interval)

    def learnt(self) -> None:
        """The view of another member held something new: there may be more."""
        self._learnt = True

    def timer(self) -> float:
        """When to call `handle_timer` next."""
        return self._at

    def handle_timer(self, now: float) -> bool:
        """Compare views, if it is time and the budget allows. Returns whether it did."""
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
        """A page of another view came, and its records have been merged."""
        known = source in self._view.contacts.seen
        if message.listed:
            if message.reply:
                self._give(message, source, now)
            elif known and source == self._asked:
                self._asked = b""
                self._compare(message, source, now)
        elif not message.reply:
            # No list: the asked member has nothing left to spend. It would spend all on such answers if the many that
            # ask few members did not ask ever less often.
            self._refused = self._refused or source == self._asked
        else:
            # A stranger gets one page at most, and so does a member that asks again and again.
            overdrawn = self._dissemination.budget.left(now) < 0.0
            if overdrawn or not self._view.contacts.may_view(source, self._config.probe_interval / 2, now):
                self._welcome(source, now, few=not message.digest)
                return
            if message.digest:
                self._answer(message, source, now)
            else:
                self.send_view(source, now)

    def send_view(self, to: bytes, now: float) -> None:
        """Send the whole view, as far as the budget goes, to a member that knows nothing or comes back."""
        self._leave_out(now)
        self._send(to, self._view.digests.members(), max(_FEW, self._affords(now)), now)

    # -- an exchange, step by step ------------------------------------------------------------------------------

    def _ask(self, member: Member, now: float) -> None:
        self._leave_out(now)
        if self._asked and not self._learnt and not self._refused:
            # No answer came: that view was the same.
            self._unlike = False
        self._learnt, self._refused, self._asked = False, False, member.id
        digest = self._view.digests.digest(coarse=self._unlike)
        if member.state == State.ALIVE:
            asks = PushPull(True, (self._view.me,), self._dissemination.reports(member.id, now), digest)
        else:
            asks = PushPull(True, (self._view.me, member), digest=digest)  # with reports it might be too long
        self._pay(member.id, asks, now)

    def _answer(self, message: PushPull, source: bytes, now: float) -> None:
        """Send the marks of the records in buckets that differ from the digest."""
        self._leave_out(now)
        if self._view.members[source].state != State.ALIVE:
            self._send(source, [], 0, now)
        digests = self._view.digests
        runs = digests.differing(message.digest)
        if not runs:
            return
        start = self._random.randrange(sum(end - first for first, end in runs))
        self._owed.pop(source, None)
        if len(self._owed) >= _MAX_OWED:
            del self._owed[next(iter(self._owed))]
        self._owed[source] = max(_LEAST, min(self._affords(now), _MOST))
        self._pay(source, PushPull(False, digest=pack(digests.listed(runs, start)), listed=True), now)

    def _compare(self, message: PushPull, source: bytes, now: float) -> None:
        """A list came: send the records that it lacks, and ask for those that this peer lacks."""
        listed = unpack(message.digest)
        gives, wants = self._view.digests.compare(listed)
        differ = len(gives) + sum(len(run.marks) for run in wants)
        self._unlike = differ > _UNLIKE * (len(gives) + sum(len(run.marks) for run in listed))
        if gives:
            self._send(source, gives, max(_LEAST, min(self._affords(now), _MOST)), now)
        if wants:
            self._pay(source, PushPull(True, digest=pack(first_of(wants, _MOST)), listed=True), now)

    def _give(self, message: PushPull, source: bytes, now: float) -> None:
        """Send the records that a member asks for after a list."""
        most = self._owed.pop(source, 0)
        peers = self._view.digests.named(unpack(message.digest)) if most else []
        if peers:
            self._send(source, peers, most, now)

    def _welcome(self, source: bytes, now: float, *, few: bool) -> None:
        """Answer with a page of a few records. With `few`, it names members that a newcomer can ask instead."""
        few = few and not self._answers.owes(source)
        self._answers.owe(source, self._view.me, now)
        for member in (self._view.pick(self._random) for _ in range(_FEW * few)):
            if member is not None and member.id != source:
                self._answers.owe(source, member, now)
        self._answers.handle_timer(now)

    def _send(self, to: bytes, peers: list[bytes], most: int, now: float) -> None:
        """Send records of up to `most` of `peers`, in pages; a random part if there are more."""
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
        """Records that the budget can still pay for."""
        return int(self._dissemination.budget.left(now) / record_size(self._view.me))

    def _leave_out(self, now: float) -> None:
        """Leave members that died long ago out of comparisons, or peers would pass them on for ever."""
        limit = self._config.forget_after / 2
        for peer in self._view.dead:
            if self._view.dead_for(peer, now) < limit:
                break
            self._view.digests.drop(peer)
