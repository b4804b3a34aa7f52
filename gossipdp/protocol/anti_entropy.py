"""Views made equal: with one member now and then, compare all that is believed, and exchange what differs.

Push-pull of Demers et al. (1987), for what gossip missed. The asker sends a digest: every known record falls into a
bucket by its member's id, and each bucket is summed up in four bytes. The asked sends its records of those buckets that
differ, and its own digest; the asker, who has learnt from them, sends back what still differs. Views that agree cost
one message, however many members there are. While exchanges teach something they follow each other quickly, and
then become rare. What a record means is not decided here.
"""

from __future__ import annotations

import hashlib
import math
import struct
from random import Random
from typing import Final

from gossipdp.protocol.broadcasts import pages
from gossipdp.protocol.dissemination import Dissemination
from gossipdp.protocol.messages import DIGEST_BYTES, MAX_RECORDS, Member, PushPull, State
from gossipdp.protocol.view import View

__all__ = ["AntiEntropy"]

_MAX_PAGES: Final = 48
"""messages sent at one time; of more the rest waits for another exchange, and which they are is left to chance"""
_MOST: Final = 512
"""buckets of the largest digest, 2 KiB; smaller ones have half as many, or a quarter ..."""
_LEAST: Final = 8


class AntiEntropy:
    """Whom to compare views with, and when."""

    def __init__(self, view: View, dissemination: Dissemination, *, random: Random, now: float) -> None:
        self._view, self._config, self._dissemination, self._random = view, view.config, dissemination, random
        self.buckets = Buckets()
        self.buckets.put(view.me)
        self._asked = b""
        """who owes the digest of its view"""
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
        """A page of another's view, of which all records have been merged."""
        seen = self._view.seen.get(source)
        if not message.reply:
            if message.digest and seen is not None and source == self._asked:
                self._asked = b""
                self._answer(message, source, now)
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
        self._send(to, list(self.buckets.marks))

    def _answer(self, message: PushPull, source: bytes, now: float) -> None:
        """What differs from the digest, and to one that asked, this peer's own digest after it."""
        self._retire(now)
        places = self.buckets.differing(message.digest)
        peers = [peer for place in places for peer in self.buckets.members[place]]
        receiver = self._view.members[source]
        if peers or receiver.state != State.ALIVE:
            self._send(source, peers)
        if places and message.reply:
            self._dissemination.send(source, PushPull(False, (self._view.me,), (), self._digest(now)))

    def _ask(self, member: Member, now: float) -> None:
        records = (self._view.me,) if member.state == State.ALIVE else (self._view.me, member)
        reports = self._dissemination.reports()
        self._asked = member.id
        self._dissemination.send(member.id, PushPull(True, records, reports, self._digest(now)))

    def _send(self, to: bytes, peers: list[bytes]) -> None:
        """Records of `peers`, in pages."""
        members = self._view.members
        receiver = members[to]
        first = [] if receiver.state == State.ALIVE else [receiver]
        most = _MAX_PAGES * (MAX_RECORDS - 1)
        peers = [peer for peer in peers if peer != to and peer != self._view.me.id]
        if len(peers) > most:
            start = self._random.randrange(len(peers))
            peers = (peers[start:] + peers[:start])[:most]
        reports = self._dissemination.reports()
        for page in pages(self._view.me, [*first, *(members[peer] for peer in peers)]):
            self._dissemination.send(to, PushPull(False, page, reports))
            reports = ()

    def _digest(self, now: float) -> tuple[bytes, ...]:
        self._retire(now)
        return self.buckets.digest()

    def _retire(self, now: float) -> None:
        """The long dead are spoken of no more, or they would be handed on for ever."""
        limit = self._config.forget_after / 2
        for peer in self._view.dead:
            if self._view.dead_for(peer, now) < limit:
                break
            self.buckets.drop(peer)


class Buckets:
    """A view summed up: each record is four bytes, a bucket the sum of its records, a digest all buckets in order.

    Kept up to date with every change, so that a digest does not take longer in a large network. Two views with the same
    records have the same digest; two with different ones agree in a bucket with probability 2^-32.
    """

    def __init__(self) -> None:
        self.marks: dict[bytes, int] = {}
        self.members: list[dict[bytes, None]] = [{} for _ in range(_MOST)]
        self._sums = [0] * _MOST

    def put(self, record: Member) -> None:
        place, old = _place(record.id), self.marks.get(record.id, 0)
        mark = self.marks[record.id] = _mark(record)
        self.members[place][record.id] = None
        self._sums[place] = (self._sums[place] + mark - old) & 0xFFFF_FFFF

    def drop(self, peer: bytes) -> None:
        mark = self.marks.pop(peer, None)
        if mark is not None:
            place = _place(peer)
            del self.members[place][peer]
            self._sums[place] = (self._sums[place] - mark) & 0xFFFF_FFFF

    def digest(self) -> tuple[bytes, ...]:
        """As many buckets as there are members, about."""
        count = min(_MOST, max(_LEAST, 1 << (len(self.marks) - 1).bit_length()))
        packed = struct.pack(f"<{count}I", *self._folded(count))
        return tuple(packed[start : start + DIGEST_BYTES] for start in range(0, len(packed), DIGEST_BYTES))

    def differing(self, digest: tuple[bytes, ...]) -> list[int]:
        """Places in `members` that may differ from what another's `digest` stands for; none if it is no digest."""
        packed = b"".join(digest)
        count = len(packed) // 4
        if len(packed) % 4 or count & (count - 1) or not 1 <= count <= _MOST:
            return []
        theirs, ours = struct.unpack(f"<{count}I", packed), self._folded(count)
        return [place for place in range(_MOST) if theirs[place % count] != ours[place % count]]

    def _folded(self, count: int) -> list[int]:
        """The sums of fewer buckets, each of which is several of those kept."""
        return [sum(self._sums[place::count]) & 0xFFFF_FFFF for place in range(count)]


def _place(peer: bytes) -> int:
    return int.from_bytes(peer[:4], "little") % _MOST


def _mark(record: Member) -> int:
    text = b"%b %d %d %d" % (record.id, record.incarnation, record.refutation, record.state)
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")
