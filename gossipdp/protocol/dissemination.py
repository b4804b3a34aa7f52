"""How news of members spreads: every message carries some, and while there is any it is sent for its own sake.

SWIM's dissemination component (section 4.1): updates ride on pings and their answers; between pings they go to a few
members at a short interval, as in memberlist, to each in turn. What counts as news, and what becomes of it at the
receiver, is not decided here.
"""

from __future__ import annotations

from random import Random
from typing import Final, TypeAlias

from gossipdp.protocol.broadcasts import ROOM, Broadcasts, record_size
from gossipdp.protocol.messages import (
    MAX_RECORDS,
    Member,
    Nack,
    Ping,
    PingRequest,
    Pong,
    Progress,
    PushPull,
    State,
)
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.progress import ProgressBoard
from gossipdp.protocol.suspicion import MembershipConfig, transmit_limit
from gossipdp.protocol.view import View

__all__ = ["UNASKED", "Dissemination", "MembershipMessage", "tells"]

MembershipMessage: TypeAlias = Ping | Pong | PingRequest | Nack | PushPull

MAX_REPORTS: Final = 8
"""progress reports piggybacked on one message"""
START_TELLS: Final = 3
"""times that each member tells of another's start"""
UNASKED: Final = 0
"""the sequence of a Pong that answers nothing and only carries gossip"""


class Dissemination:
    """Composes what messages carry, and sends them."""

    def __init__(self, view: View, *, random: Random, outputs: Outputs, progress: ProgressBoard, now: float) -> None:
        self._view, self._config = view, view.config
        self._random, self._outputs, self._progress = random, outputs, progress
        self.broadcasts = Broadcasts()
        self._ring: list[bytes] = []
        self._gossip_at = now

    def spread(self, record: Member, now: float) -> None:
        """`record` is news.

        Doubts, refutations and deaths are told lambda log N times, as SWIM says. A start can wait, and is told thrice
        less the times it is heard from others meanwhile, or everybody would tell everybody of a thousand joiners;
        whom it did not reach hears it by anti-entropy.
        """
        if not self.broadcasts:
            self._gossip_at = max(self._gossip_at, now)
        self.broadcasts.put(record, max(0, self._limit - START_TELLS) if _starts(record) else 0)

    def echo(self, record: Member) -> None:
        """Somebody gossips what is believed here already."""
        if _starts(record):
            self.broadcasts.count(record.id, 1, self._limit)

    @property
    def _limit(self) -> int:
        return transmit_limit(self._config.retransmit_multiplier, self._view.count)

    def timer(self) -> float | None:
        return self._gossip_at if self.broadcasts else None

    def handle_timer(self, now: float) -> None:
        if not self.broadcasts or now < self._gossip_at:
            return
        self._gossip_at = now + self._config.gossip_interval
        for peer in self._next_in_ring(self._config.gossip_peers):
            self.send(peer, Pong(UNASKED, self.records(peer, spread=True), self.reports()))
        if not self._view.live:
            self.broadcasts = Broadcasts()

    def _next_in_ring(self, count: int) -> list[bytes]:
        """Live members in turn: the few transmissions of an update go to different ones."""
        live, chosen = self._view.live, dict[bytes, None]()
        reached = len(live) - self._view.beyond_reach
        while len(chosen) < min(count, reached):
            if not self._ring:
                self._ring = sorted(live)
                self._random.shuffle(self._ring)
            peer = self._ring.pop()
            if peer in live and self._view.reaches(peer):
                chosen[peer] = None
        return list(chosen)

    def records(self, to: bytes, *, about: bytes = b"", spread: bool = False) -> tuple[Member, ...]:
        """What a message to `to` carries: this peer's own record, what is believed of the receiver unless that is
        good, and news. A suspect is so told first of all, by whoever speaks to it, and can refute at once
        (Lifeguard's buddy system, section IV.C)."""
        view = self._view
        records = {view.me.id: view.me}
        receiver = view.members.get(to)
        if receiver is not None and tells(self._config, receiver):
            records[to] = receiver
        if about in view.members:
            records[about] = view.members[about]
        room = ROOM - sum(record_size(record) for record in records.values())
        count = MAX_RECORDS - len(records)
        news = self.broadcasts.take(count, room, self._limit) if spread else self.broadcasts.peek(count, room)
        for record in news:
            records[record.id] = record
        return tuple(records.values())

    def reports(self) -> tuple[Progress, ...]:
        """How far peers have come, to ride along."""
        return self._progress.page(MAX_REPORTS)

    def send(self, to: bytes, message: MembershipMessage, address: str = "") -> None:
        """To `to` if that is known, by `address` if it is not where `to` is known to be."""
        self._outputs.send(to, message, address=address or self._view.address_of(to))


def tells(config: MembershipConfig, member: Member) -> bool:
    """Whether `member` is to be told what is believed of it: whenever it is not good; a mere suspicion only under
    Lifeguard."""
    return member.state > State.SUSPECT or (member.state == State.SUSPECT and config.lifeguard)


def _starts(record: Member) -> bool:
    """Whether it is news of a start, or of a member nobody has ever doubted."""
    return record.state == State.ALIVE and record.refutation == 0
