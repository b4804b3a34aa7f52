"""Sends coverage: what this peer knows of its data sets, to other members in turn.

News travels as in a push gossip (Pittel 1987). Each peer keeps to a rate, so the gap between its own messages tells it
how long news takes to reach all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from gossipdp.protocol.data.block_table import BlockTable
from gossipdp.protocol.data.blocks import pack
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.messages import MAX_READERS, Coverage, Reader

__all__ = ["LATEST", "RATE", "SOONEST", "CoverageGossip"]

RATE: Final = 1500.0
"""bytes a second that a peer sends at most, answers not counted"""
SOONEST: Final = 0.25
"""shortest pause in seconds between two messages, while there is news"""
LATEST: Final = 5.0
"""longest pause in seconds between two messages"""
MOST_ANSWERS: Final = 8
"""most messages that tell a newcomer which members read"""
_READERS_BYTES: Final = 200
"""bytes of readers in one message, about"""
_ANSWERS_BYTES: Final = 1000
"""bytes of readers in one message of an answer, about"""


class CoverageGossip:
    """Tells other members which blocks were read, and hears it from them.

    Args:
        data: the tables by digest; owned by the caller.
        me: first bytes of this peer's id.
    """

    def __init__(
        self,
        data: Mapping[bytes, BlockTable],
        me: bytes,
        membership: Membership,
        *,
        random: Random,
        outputs: Outputs,
        now: float,
    ) -> None:
        self._data, self._me = data, me
        self._membership, self._random, self._outputs = membership, random, outputs
        self._gap = SOONEST
        """seconds between two recent messages, smoothed, while there is news"""
        self.at = now
        """when to send the next message"""
        self._free_at = now
        """when the rate allows the next message"""
        self._ring: list[bytes] = []
        self._behind: dict[bytes, bytes] = {}
        """member that knows only an earlier epoch -> digest of the data"""
        self._helped = False
        """the last message went to such a member"""

    def rounds(self) -> int:
        """Messages until news has reached all members, very likely (Pittel 1987: log2 N + ln N rounds of a push)."""
        members = 1 + len(self._membership.alive())
        return 2 + math.ceil(math.log2(members) + math.log(members))

    def spreading(self) -> float:
        """Seconds until news of this peer has reached all members, very likely, if they send as often as it does."""
        # Data sets with news take turns.
        return self.rounds() * self._gap * max(1, sum(data.reads and data.news > 0 for data in self._data.values()))

    def soon(self, now: float) -> None:
        """Send the next message as soon as the rate allows."""
        self.at = min(self.at, max(now, self._free_at))

    def is_behind(self, member: bytes, digest: bytes, now: float) -> None:
        """`member` knows only an earlier epoch of this data set: tell it."""
        self._behind[member] = digest
        self.soon(now)

    def send_next(self, now: float) -> None:
        """Send the message that is due."""
        live = self.reached()
        self._behind = {peer: digest for peer, digest in self._behind.items() if peer in live and digest in self._data}
        # Every other message goes to a member that is behind, so that one that never catches up delays no other.
        self._helped = bool(self._behind) and not self._helped
        if self._helped:
            peer = next(iter(self._behind))
            digest = self._behind.pop(peer)
            self.send(peer, self._data[digest], now, reply=False, finished=self._data[digest].finished)
        elif live:
            data = max(self._data.values(), key=lambda each: (each.news > 0, -each.sent_at))
            data.counted()
            self.send(self._next_in_ring(live), data, now, reply=False)
        busy = live and (self._behind or any(each.news for each in self._data.values()))
        self.at = self._free_at if busy else now + LATEST

    def reached(self) -> set[bytes]:
        """Live members that a message can reach."""
        return {member.id for member in self._membership.alive() if self._membership.reaches(member.id)}

    def _next_in_ring(self, live: set[bytes]) -> bytes:
        """Live members in turn, in an order that changes."""
        while True:
            if not self._ring:
                self._ring = sorted(live)
                self._random.shuffle(self._ring)
            peer = self._ring.pop()
            if peer in live:
                return peer

    def answer(self, to: bytes, data: BlockTable, now: float) -> None:
        """Send all that is known. A newcomer that misses a reader would take its blocks for its own."""
        finished: Sequence[int] = data.finished
        for _ in range(min(MOST_ANSWERS, math.ceil(len(data.readers) / (MAX_READERS - 1))) or 1):
            self.send(to, data, now, reply=False, finished=finished, answer=True)
            finished = 0, 0

    def send(
        self,
        to: bytes,
        data: BlockTable,
        now: float,
        *,
        reply: bool,
        finished: Sequence[int] | None = None,
        answer: bool = False,
    ) -> None:
        """Send one message.

        Args:
            reply: ask what the receiver knows.
            finished: the finished blocks to tell; None: all with `reply`, else recent ones.
            answer: the message answers a newcomer. It holds more readers and does not count for the rate.
        """
        head = self._readers(data, _ANSWERS_BYTES if answer else _READERS_BYTES)
        digest, name, blocks = data.data
        message = Coverage(digest, name, blocks, data.epoch, reply, tuple(head))
        if finished is None:
            finished = data.finished if reply else data.lately()
        buffers = [pack(part, blocks) for part in finished]
        size = self._outputs.send(to, message, buffers, address=self._membership.address_of(to))
        if answer:
            return
        gap = max(SOONEST, size / RATE)
        self._gap += 0.1 * (gap - self._gap)
        self._free_at = max(self._free_at, now) + gap
        data.sent(now)

    def _readers(self, data: BlockTable, room: int) -> list[Reader]:
        """The own report and others that fit `room` bytes, those sent longest ago first."""
        head: list[Reader] = []
        mine = data.readers.get(self._me)
        for reader in [*([mine] if mine else []), *data.readers.values()]:
            size = 20 + 5 * len(reader.leases)
            if (reader is mine and head) or size > room:
                continue
            head.append(reader)
            room -= size
            if len(head) == MAX_READERS:
                break
        for reader in head:
            data.readers.move_to_end(reader.peer)
        return head
