"""SWIM's dissemination component (section 4.1): every message carries news of members.

Updates ride on pings and their answers. Between pings they go to a few members at a short interval, to each in turn, as
in memberlist.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final, TypeAlias

from gossipdp.protocol.budgets import TokenBucket
from gossipdp.protocol.membership.broadcasts import ROOM, Broadcasts, record_size
from gossipdp.protocol.membership.config import MembershipConfig
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.rounds.speed import Speed
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

__all__ = ["MAX_NEWS", "UNASKED", "Dissemination", "MembershipMessage", "can_wait", "should_tell", "transmit_limit"]

MembershipMessage: TypeAlias = Ping | Pong | PingRequest | Nack | PushPull

MAX_NEWS: Final = 12
"""member records piggybacked on one message"""
MAX_REPORTS: Final = 4
"""progress reports piggybacked on one message"""
PATIENT_TELLS: Final = 3
"""times that each member spreads the start or the new addresses of another"""
BURST: Final = 4.0
"""seconds of the bulk rate, and of the control rate, that one burst may spend"""
UNASKED: Final = 0
"""sequence of a Pong that answers no ping and only carries gossip"""


class Dissemination:
    """Composes what messages carry, and sends them.

    Args:
        speed: of this peer's training, for pings and their answers.
    """

    def __init__(
        self,
        view: View,
        *,
        random: Random,
        outputs: Outputs,
        progress: ProgressBoard,
        speed: Speed,
        now: float,
    ) -> None:
        self._view, self._config = view, view.config
        self._random, self._outputs, self._progress, self._speed = random, outputs, progress, speed
        self.broadcasts = Broadcasts()
        self.budget = TokenBucket(self._config.bulk_rate, self._config.bulk_rate * BURST, now)
        """bytes for messages that can wait: gossip of starts and of addresses, and comparisons of views"""
        self.control = TokenBucket(self._config.control_rate, self._config.control_rate * BURST, now)
        """bytes for all messages"""
        self._ring: list[bytes] = []
        self._gossip_at = now

    @property
    def speed(self) -> float:
        """Steps a second that this peer trains; 0 for none."""
        return self._speed.own

    def spread(self, record: Member, before: Member | None, now: float) -> None:
        """Spread `record` as news.

        Doubts, refutations and deaths are sent lambda log N times (SWIM). Starts and new addresses can wait. They are
        sent three times, less the times that other members gossip them meanwhile, and anti-entropy reaches the rest.
        When there are many at once, they are not gossiped: most receivers would know them already, and anti-entropy
        tells each once.

        Args:
            before: what this peer believed of the member; None for nothing.
        """
        patient = can_wait(record, before)
        if record.id != self._view.me.id and patient and self.budget.left(now) < self.budget.most / 2:
            self.broadcasts.discard(record.id)
            return
        if not self.broadcasts:
            self._gossip_at = max(self._gossip_at, now)
        self.broadcasts.put(record, max(0, self._limit - PATIENT_TELLS) if patient else 0, patient=patient)

    def echo(self, record: Member) -> None:
        """Another member gossips `record`, which this peer believes already."""
        if self.broadcasts.patient(record.id):
            self.broadcasts.count(record.id, 1, self._limit)

    @property
    def _limit(self) -> int:
        return transmit_limit(self._config.retransmit_multiplier, self._view.count)

    def timer(self) -> float | None:
        """When to call `handle_timer` next; None without news."""
        return self._gossip_at if self.broadcasts else None

    def handle_timer(self, now: float) -> None:
        """Send the gossip that is due."""
        if not self.broadcasts or now < self._gossip_at:
            return
        config = self._config
        for peer in self._next_in_ring(config.gossip_peers):
            records = self.records(peer, now, spread=True)
            size = self.send(peer, Pong(UNASKED, records), now)
            if all(self.broadcasts.patient(record.id) for record in records if record is not self._view.me):
                self.budget.spend(size, now)
        # An overdrawn budget delays news. It stops none, or a flood of pings could stop all.
        self._gossip_at = now + min(max(config.gossip_interval, self.control.ready(now) - now), config.probe_interval)
        if self._view.count == 1:
            self.broadcasts = Broadcasts()

    def _next_in_ring(self, count: int) -> list[bytes]:
        """Live members in turn, so that the few transmissions of an update go to different ones."""
        view, chosen, refills = self._view, dict[bytes, None](), 2
        reached = view.count - 1 - view.beyond_reach
        while len(chosen) < min(count, reached):
            if not self._ring:
                if refills == 0:
                    break
                refills -= 1
                self._ring = view.candidates(self._random)
                self._random.shuffle(self._ring)
            peer = self._ring.pop()
            if view.is_live(peer) and view.reaches(peer):
                chosen[peer] = None
        return list(chosen)

    def records(self, to: bytes, now: float, *, about: bytes = b"", spread: bool = False) -> tuple[Member, ...]:
        """The records that a message to `to` carries: this peer's own, the receiver's if it is in doubt, and news.

        So every message to a suspect tells it first, and it can refute at once (Lifeguard's buddy system, section
        IV.C).

        Args:
            about: a member whose record goes along.
            spread: the message is sent for the sake of the news. It then carries news even on an overdrawn budget, and
                not the own record, if the receiver has sent this peer a message before.
        """
        view = self._view
        records = {} if spread and view.contacts.heard(to) else {view.me.id: view.me}
        receiver = view.members.get(to)
        if receiver is not None and should_tell(self._config, receiver):
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
        """Progress reports for a message to `to`; only this peer's own on an overdrawn budget."""
        return self._progress.page(MAX_REPORTS if self.control.left(now) >= 0.0 else 1, to)

    def send(self, to: bytes, message: MembershipMessage, now: float, address: str = "") -> int:
        """Send `message`. Returns its size in bytes.

        Args:
            to: id of the receiver.
            address: where to dial it; "" for its known address.
        """
        size = self._outputs.send(to, message, address=address or self._view.address_of(to))
        self.control.spend(size, now)
        return size


def transmit_limit(multiplier: int, members: int) -> int:
    """Transmissions of one update: multiplier * ceil(log10(N + 1)) (SWIM section 4.1: lambda log N)."""
    return multiplier * math.ceil(math.log10(members + 1))


def should_tell(config: MembershipConfig, member: Member) -> bool:
    """Whether `member` is told what is believed of it: if it failed or left, and under Lifeguard if it is suspected."""
    return member.state > State.SUSPECT or (member.state == State.SUSPECT and config.lifeguard)


def can_wait(record: Member, before: Member | None) -> bool:
    """Whether news of a member can wait. So can a start and new addresses of a member that nobody doubts.

    Args:
        before: what this peer believed of the member; None for nothing.
    """
    if record.state != State.ALIVE:
        return False
    if record.refutation == 0 or before is None:
        return True
    return before.state == State.ALIVE and before.addresses != record.addresses
