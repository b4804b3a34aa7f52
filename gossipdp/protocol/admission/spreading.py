"""Spreads the operator's decisions: news by gossip, what gossip missed by comparison with random members.

A peer that learns of a decision tells some members at each gossip interval, as membership does with its news. It also
compares its decisions with one member each push-pull interval, and with the first one that it meets. Equal registers
cost one message of a hundred bytes. A peer whose host knows no operator says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.events import Decided, OperatorUnknown, UpdateRefused
from gossipdp.protocol.membership.dissemination import transmit_limit
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.messages import MAX_DECISIONS, Decision, Decisions
from gossipdp.protocol.wire.table import SINCE

__all__ = ["Spreading"]

_ANSWERED: Final = 256
"""members whose last answer is remembered"""


class Spreading:
    """What this peer tells of the decisions, and when.

    Args:
        now: seconds, on the clock of all later inputs.
    """

    def __init__(
        self, admission: Admission, membership: Membership, *, random: Random, outputs: Outputs, now: float
    ) -> None:
        self._admission, self._membership, self._outputs = admission, membership, outputs
        self._random, self._config = random, membership.config
        self._tellings: dict[bytes, int] = {}
        """subject of a decision that is news -> how often it is still told"""
        self._gossip_at = math.inf
        self._compare_at = now + self._pause() if admission.operator else math.inf
        self._answered: dict[bytes, float] = {}
        """member -> when all decisions were last sent to it"""
        self._strange = b""
        """an operator that other members follow, and this host does not know"""

    # -- inputs -----------------------------------------------------------------------------------------------

    def decide(self, decision: Decision, now: float) -> bool:
        """The operator of this host hands in a decision. Returns whether it stands now."""
        return self._take(decision, now)

    def met(self, peer: bytes, now: float) -> None:
        """`peer` is the first member that this peer has met."""
        if self._admission.operator and self._speaks(peer):
            self._ask(peer)

    def receive(self, message: Decisions, source: bytes, now: float) -> None:
        """A message came from `source`."""
        mine = self._admission
        if message.operator != mine.operator:
            if not mine.operator and message.operator != self._strange:
                self._strange = message.operator
                self._outputs.emit(OperatorUnknown(source, message.operator))
            return
        for decision in message.decisions:
            if mine.news(decision) and not self._take(decision, now):
                self._outputs.emit(UpdateRefused(source, "signature of a decision"))
                return
        if message.digest and message.digest != mine.digest and self._may_answer(source, message.reply, now):
            self._send_all(source, mine.digest if message.reply else b"")

    # -- time -------------------------------------------------------------------------------------------------

    def timer(self) -> float | None:
        """When to call `handle_timer` next; None without an operator."""
        due = min(self._gossip_at, self._compare_at)
        return due if due < math.inf else None

    def handle_timer(self, now: float) -> None:
        """Tell news, and compare with a member, if it is time."""
        if now >= self._gossip_at:
            self._gossip(now)
        if now >= self._compare_at:
            self._compare_at = now + self._pause()
            for peer in self._some(1):
                self._ask(peer)

    # -- inside -----------------------------------------------------------------------------------------------

    def _take(self, decision: Decision, now: float) -> bool:
        if not self._admission.take(decision):
            return False
        subject = decision.subject
        if self._membership.reaches(subject) and self._speaks(subject):
            self._send(subject, (decision,))  # it learns why its links end
        self._tellings[subject] = transmit_limit(self._config.retransmit_multiplier, 1 + len(self._membership.alive()))
        self._gossip_at = min(self._gossip_at, now)
        self._outputs.emit(Decided(decision))
        return True

    def _gossip(self, now: float) -> None:
        told = list(self._tellings)[:MAX_DECISIONS]
        known = [self._admission.about(subject) for subject in told]
        decisions = tuple(decision for decision in known if decision is not None)
        for peer in self._some(self._config.gossip_peers):
            self._send(peer, decisions)
        for subject in told:
            left = self._tellings.pop(subject) - 1
            if left > 0:
                self._tellings[subject] = left
        self._gossip_at = now + self._config.gossip_interval if self._tellings else math.inf

    def _some(self, count: int) -> Sequence[bytes]:
        """Up to `count` random members that can be told."""
        membership, admission = self._membership, self._admission
        live = [
            member.id
            for member in membership.alive()
            if member.version >= SINCE[Decisions] and membership.reaches(member.id) and admission.admits(member.id)
        ]
        return self._random.sample(live, min(count, len(live)))

    def _speaks(self, peer: bytes) -> bool:
        member = self._membership.members.get(peer)
        return member is not None and member.version >= SINCE[Decisions]

    def _ask(self, peer: bytes) -> None:
        self._outputs.send(peer, Decisions(self._admission.operator, self._admission.digest, True))

    def _send(self, peer: bytes, decisions: tuple[Decision, ...], digest: bytes = b"") -> None:
        self._outputs.send(peer, Decisions(self._admission.operator, digest, False, decisions))

    def _send_all(self, peer: bytes, digest: bytes) -> None:
        """Send all decisions. The last message has the `digest`: the receiver answers with what this peer lacks."""
        pages = list(_pages(self._admission.decisions))
        for page in pages[:-1]:
            self._send(peer, page)
        self._send(peer, pages[-1], digest)

    def _may_answer(self, peer: bytes, asked: bool, now: float) -> bool:
        """Whether `peer` gets all decisions: those that ask do so once in a probe interval."""
        if asked and now < self._answered.get(peer, -math.inf) + self._config.probe_interval:
            return False
        if asked:
            self._answered.pop(peer, None)
            self._answered[peer] = now
            if len(self._answered) > _ANSWERED:
                del self._answered[next(iter(self._answered))]
        return True

    def _pause(self) -> float:
        return self._config.push_pull_interval * (0.75 + 0.5 * self._random.random())


def _pages(decisions: Sequence[Decision]) -> Iterator[tuple[Decision, ...]]:
    """Cut `decisions` into messages; at least one."""
    for start in range(0, max(1, len(decisions)), MAX_DECISIONS):
        yield tuple(decisions[start : start + MAX_DECISIONS])
