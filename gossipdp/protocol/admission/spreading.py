"""Spreads the operator's decisions and receipts: news by gossip, what gossip missed by comparison with random members.

A peer that learns of a decision tells some members at each gossip interval, as membership does with its news. It also
compares its decisions with one member each push-pull interval, and soon after it has joined. Equal registers cost one
message of a hundred bytes. A register travels whole, in one message. A peer whose host knows no operator says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from gossipdp.errors import RemoteProtocolError
from gossipdp.protocol.admission.packing import pack, unpack
from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.budgets import Budgets, Checks
from gossipdp.protocol.causes import Fault
from gossipdp.protocol.events import Decided, MessageDropped, OperatorDiffers, ReceiptsTaken, UpdateRefused
from gossipdp.protocol.membership.dissemination import transmit_limit
from gossipdp.protocol.membership.membership import Membership
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.protocol.wire.messages import Decision, Decisions, Receipt
from gossipdp.protocol.wire.table import SINCE

__all__ = ["Spreading"]

SOON: Final = 3
"""comparisons that a peer makes at the probe interval once it has joined"""
_ANSWERED: Final = 256
"""members whose last answer is remembered"""
_OPERATORS: Final = 8
"""other operators that are told; a member could name any number"""


class Spreading:
    """What this peer tells of the decisions, and when.

    Args:
        now: seconds, on the clock of all later inputs.
    """

    def __init__(
        self,
        admission: Admission,
        membership: Membership,
        budgets: Budgets,
        *,
        random: Random,
        outputs: Outputs,
        now: float,
    ) -> None:
        self._admission, self._membership, self._outputs = admission, membership, outputs
        self._budgets = budgets
        self._random, self._config = random, membership.config
        self._tellings: dict[bytes, int] = {}
        """subject of a decision that is news -> how often it is still told"""
        self._receipts: dict[Receipt, int] = {}
        """the same for receipts"""
        self._gossip_at = math.inf
        self._soon = 0
        self._compare_at = now + self._pause() if admission.operator else math.inf
        self._asked = b""
        """the member that may answer with its decisions"""
        self._answered: dict[bytes, float] = {}
        """member -> when all decisions were last sent to it"""
        self._others: set[bytes] = set()
        """operators that other members follow"""

    # -- inputs -----------------------------------------------------------------------------------------------

    def decide(self, decision: Decision, now: float) -> bool:
        """The operator of this host hands in a decision. Returns whether it stands now."""
        return bool(self._take((decision,), (), now))

    def redeem(self, decision: Decision, receipt: Receipt, time: float, now: float) -> str:
        """A host shows an invite. Returns why it may not come in; "" if it may. time: seconds since 1970."""
        known, used = self._admission.about(decision.subject), self._admission.holders(decision.subject)
        why_not = self._admission.redeem(decision, receipt, time)
        decisions = (decision,) if self._admission.about(decision.subject) is not known else ()
        receipts = (receipt,) if self._admission.holders(decision.subject) != used else ()
        self._spread(decisions, receipts, now)
        return why_not

    def received(self, receipt: Receipt, now: float) -> None:
        """This peer holds what a decision gives."""
        self._take((), (receipt,), now)

    def joined(self, now: float) -> None:
        """This peer has met its first member."""
        if self._admission.operator:
            self._soon, self._compare_at = SOON, now

    def receive(self, message: Decisions, buffers: Sequence[Buffer], source: bytes, now: float) -> None:
        """A message came from `source`."""
        mine = self._admission
        if message.operator != mine.operator:
            self._tell_operator(source, message.operator)
            return
        try:
            told, receipts = unpack(buffers[0]) if buffers else ((), ())
        except RemoteProtocolError as error:
            self._outputs.emit(MessageDropped(source, str(error)))
            return
        checks = Checks(self._budgets, source, now)
        self._take(told, receipts, now, checks)
        if checks.spent:
            return  # A later comparison brings the rest.
        if mine.unproven(told, receipts):
            self._outputs.emit(UpdateRefused(source, Fault.DECISION_SIGNATURE))
        elif message.digest and message.digest != mine.digest:
            self._answer(source, message, now)

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
            self._compare(now)

    # -- inside -----------------------------------------------------------------------------------------------

    def _take(
        self,
        decisions: Sequence[Decision],
        receipts: Sequence[Receipt],
        now: float,
        checks: Callable[[], bool] = lambda: True,
    ) -> list[Decision]:
        taken = self._admission.take(decisions, checks)
        self._spread(taken, self._admission.take_receipts(receipts, checks), now)
        return taken

    def _spread(self, decisions: Sequence[Decision], receipts: Sequence[Receipt], now: float) -> None:
        """Tell of what has just been taken."""
        told = transmit_limit(self._config.retransmit_multiplier, 1 + len(self._membership.alive()))
        for decision in decisions:
            if self._membership.reaches(decision.subject) and self._speaks(decision.subject):
                self._send(decision.subject, (decision,))  # it learns why its links end
            self._tellings[decision.subject] = told
        self._receipts.update(dict.fromkeys(receipts, told))
        if decisions or receipts:
            self._gossip_at = min(self._gossip_at, now)
        if decisions:
            self._outputs.emit(Decided(tuple(decisions)))
        if receipts:
            self._outputs.emit(ReceiptsTaken(tuple(receipts)))

    def _gossip(self, now: float) -> None:
        self._receipts = {receipt: left for receipt, left in self._receipts.items() if self._admission.keeps(receipt)}
        known = [self._admission.about(subject) for subject in self._tellings]
        for peer in self._some(self._config.gossip_peers):
            self._send(peer, tuple(decision for decision in known if decision is not None), tuple(self._receipts))
        self._tellings = {subject: left - 1 for subject, left in self._tellings.items() if left > 1}
        self._receipts = {receipt: left - 1 for receipt, left in self._receipts.items() if left > 1}
        news = self._tellings or self._receipts
        self._gossip_at = now + self._config.gossip_interval if news else math.inf

    def _compare(self, now: float) -> None:
        self._soon = max(0, self._soon - 1)
        self._compare_at = now + (self._config.probe_interval if self._soon else self._pause())
        for peer in self._some(1):
            self._asked = peer
            self._outputs.send(peer, Decisions(self._admission.operator, self._admission.digest, True))

    def _answer(self, peer: bytes, message: Decisions, now: float) -> None:
        """Send all decisions: once in a probe interval to a member that asks, and once to the member that was asked."""
        if message.reply:
            if now < self._answered.get(peer, -math.inf) + self._config.probe_interval:
                return
            self._answered.pop(peer, None)
            self._answered[peer] = now
            if len(self._answered) > _ANSWERED:
                del self._answered[next(iter(self._answered))]
        elif peer != self._asked:
            return
        else:
            self._asked = b""
        mine = self._admission
        self._send(peer, mine.decisions, mine.receipts, mine.digest if message.reply else b"")

    def _some(self, count: int) -> Sequence[bytes]:
        """Up to `count` random members that can be told."""
        membership, admission = self._membership, self._admission
        live = [
            member.id
            for member in membership.all_alive()
            if member.version >= SINCE[Decisions] and membership.reaches(member.id) and admission.admits(member.id)
        ]
        return self._random.sample(live, min(count, len(live)))

    def _speaks(self, peer: bytes) -> bool:
        member = self._membership.members.get(peer)
        return member is not None and member.version >= SINCE[Decisions]

    def _send(
        self, peer: bytes, decisions: Sequence[Decision], receipts: Sequence[Receipt] = (), digest: bytes = b""
    ) -> None:
        self._outputs.send(peer, Decisions(self._admission.operator, digest), (pack(decisions, receipts),))

    def _tell_operator(self, source: bytes, operator: bytes) -> None:
        if operator not in self._others and len(self._others) < _OPERATORS:
            self._others.add(operator)
            self._outputs.emit(OperatorDiffers(source, operator))

    def _pause(self) -> float:
        return self._config.push_pull_interval * (0.75 + 0.5 * self._random.random())
