"""How news of members spreads: every message carries some, and while there is any it is sent for its own sake.

SWIM's dissemination component (section 4.1): updates ride on pings and their answers; between pings they go to a few
members at a short interval, as in memberlist, to each in turn. What counts as news, and what becomes of it at the
receiver, is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, TypeAlias

from gossipdp.protocol.membership.broadcasts import ROOM, Broadcasts, record_size
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.membership.suspicion import MembershipConfig, transmit_limit
from gossipdp.protocol.membership.token_bucket import Budget
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.messages import (
    Member,
    Nack,
    Ping,
    PingRequest,
    Pong,
    Progress,
    PushPull,
    State,
)

__all__ = ["MAX_NEWS", "UNASKED", "Dissemination", "MembershipMessage", "tells"]

MembershipMessage: TypeAlias = Ping | Pong | PingRequest | Nack | PushPull

MAX_NEWS: Final = 12
"""member records piggybacked on one message"""
MAX_REPORTS: Final = 4
"""progress reports piggybacked on one message"""
START_TELLS: Final = 3
"""times that each member tells of another's start"""
BURST: Final = 4.0
"""seconds of the bulk rate, and of the control rate, that can be spent at once"""
UNASKED: Final = 0
"""the sequence of a Pong that answers nothing and only carries gossip"""


class Dissemination:
    """Composes what messages carry, and sends them. `speed`: how fast this peer trains, for pings and their answers."""

    def __init__(
        self,
        view: View,
        *,
        random: Random,
        outputs: Outputs,
        progress: ProgressBoard,
        speed: Callable[[], float],
        now: float,
    ) -> None:
        self._view, self._config = view, view.config
        self._random, self._outputs, self._progress, self.speed = random, outputs, progress, speed
        self.broadcasts = Broadcasts()
        self.budget = Budget(self._config.bulk_rate, self._config.bulk_rate * BURST, now)
        """bytes for what can wait: starts gossiped, and views compared"""
        self.control = Budget(self._config.control_rate, self._config.control_rate * BURST, now)
        """bytes for everything"""
        self._ring: list[bytes] = []
        self._gossip_at = now

    def spread(self, record: Member, now: float) -> None:
        """`record` is news.

        Doubts, refutations and deaths are told lambda log N times, as SWIM says. A start can wait, and is told thrice
        less the times it is heard from others meanwhile; whom it did not reach hears it by anti-entropy. When many
        start at once it is not gossiped at all: most whom one told would know already, and anti-entropy tells everybody
        once.
        """
        if record.id != self._view.me.id and _starts(record) and self.budget.left(now) < self.budget.most / 2:
            self.broadcasts.discard(record.id)
            return
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
        config = self._config
        for peer in self._next_in_ring(config.gossip_peers):
            records = self.records(peer, now, spread=True)
            size = self.send(peer, Pong(UNASKED, records), now)
            if all(map(_starts, records)):
                self.budget.spend(size, now)
        # An overdrawn budget makes news rarer. It stops no news, or a flood of pings could.
        self._gossip_at = now + min(max(config.gossip_interval, self.control.ready(now) - now), config.probe_interval)
        if self._view.count == 1:
            self.broadcasts = Broadcasts()

    def _next_in_ring(self, count: int) -> list[bytes]:
        """Live members in turn: the few transmissions of an update go to different ones."""
        view, chosen, refills = self._view, dict[bytes, None](), 2
        reached = view.count - 1 - view.beyond_reach
        while len(chosen) < min(count, reached):
            if not self._ring:
                if refills == 0:
                    break
                refills -= 1
                self._ring = view.company(self._random)
                self._random.shuffle(self._ring)
            peer = self._ring.pop()
            if view.lives(peer) and view.reaches(peer):
                chosen[peer] = None
        return list(chosen)

    def records(self, to: bytes, now: float, *, about: bytes = b"", spread: bool = False) -> tuple[Member, ...]:
        """What a message to `to` carries: this peer's own record, what is believed of the receiver unless that is
        good, and news. A suspect is so told first of all, by whoever speaks to it, and can refute at once
        (Lifeguard's buddy system, section IV.C). With `spread`, the own record does not go to a receiver that has
        spoken to this peer. Without it, news does not ride on an overdrawn budget."""
        view = self._view
        records = {} if spread and view.heard(to) else {view.me.id: view.me}
        receiver = view.members.get(to)
        if receiver is not None and tells(self._config, receiver):
            records[to] = receiver
        if about in view.members:
            records[about] = view.members[about]
        room = ROOM - sum(record_size(record) for record in records.values())
        count = 0 if self.control.left(now) < 0.0 and not spread else MAX_NEWS - len(records)
        news = self.broadcasts.take(count, room, self._limit) if spread else self.broadcasts.peek(count, room)
        for record in news:
            records[record.id] = record
        return tuple(records.values())

    def reports(self, to: bytes, now: float) -> tuple[Progress, ...]:
        """How far peers have come, to ride along on a message to `to`; on an overdrawn budget only this peer's own."""
        return self._progress.page(MAX_REPORTS if self.control.left(now) >= 0.0 else 1, to)

    def send(self, to: bytes, message: MembershipMessage, now: float, address: str = "") -> int:
        """To `to` if that is known, by `address` if it is not where `to` is known to be. Returns the size in bytes."""
        size = self._outputs.send(to, message, address=address or self._view.address_of(to))
        self.control.spend(size, now)
        return size


def tells(config: MembershipConfig, member: Member) -> bool:
    """Whether `member` is to be told what is believed of it: whenever it is not good; a mere suspicion only under
    Lifeguard."""
    return member.state > State.SUSPECT or (member.state == State.SUSPECT and config.lifeguard)


def _starts(record: Member) -> bool:
    """Whether it is news of a start, or of a member nobody has ever doubted."""
    return record.state == State.ALIVE and record.refutation == 0
