"""Records that this peer owes to other members. Each receiver gets one message per probe timeout, whatever it sends.

A member that tells an older record is owed the newer one, and a member that doubts this peer is owed its refutation.
Sent at once for each message, such answers would feed each other while many records change. So they are collected: the
first goes out at once, later ones together when the probe timeout has passed. While the control budget is overdrawn,
they wait for up to one probe interval more. Records that do not fit one message go with the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from gossipdp.protocol.membership.broadcasts import pages
from gossipdp.protocol.membership.dissemination import Dissemination
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.wire.messages import Member, PushPull

__all__ = ["Answers"]

_RECEIVERS: Final = 1024
"""members that are owed records at one time"""
_RECORDS: Final = 256
"""records owed to one member; a comparison of views tells it the rest"""


@dataclass(slots=True)
class _Debt:
    due: float
    records: dict[bytes, Member] = field(default_factory=dict)
    """member -> its record when it became owed"""


class Answers:
    """The records owed, and when they may be sent."""

    def __init__(self, view: View, dissemination: Dissemination) -> None:
        self._view, self._dissemination, self._config = view, dissemination, view.config
        self._debts: dict[bytes, _Debt] = {}
        self._answered: dict[bytes, float] = {}
        """receiver -> when it was last answered, within the last probe timeout"""
        self._at = math.inf

    def owe(self, to: bytes, record: Member, now: float) -> None:
        """Owe `to` the record of this member: `record`, or what this peer believes when it sends the answer."""
        debt = self._debts.get(to)
        if debt is None:
            if len(self._debts) >= _RECEIVERS:
                del self._debts[next(iter(self._debts))]
            due = max(now, self._answered.get(to, -math.inf) + self._config.probe_timeout)
            debt = self._debts[to] = _Debt(due)
        if record.id in debt.records or len(debt.records) < _RECORDS:
            debt.records[record.id] = record
        self._at = min(self._at, debt.due)

    def owes(self, to: bytes) -> bool:
        """Whether `to` is owed a record."""
        return to in self._debts

    def timer(self) -> float:
        """When to call `handle_timer` next."""
        return self._at

    def handle_timer(self, now: float) -> None:
        """Send the answers that are due."""
        if now < self._at:
            return
        self._answered = {to: at for to, at in self._answered.items() if now < at + self._config.probe_timeout}
        waits = []
        for to, debt in list(self._debts.items()):
            ready = min(self._dissemination.control.ready(now), debt.due + self._config.probe_interval)
            if now >= max(debt.due, ready):
                self._answer(to, self._debts.pop(to).records, now)
            else:
                waits.append(max(debt.due, ready))
        waits += [debt.due for to, debt in self._debts.items() if to in self._answered]
        self._at = min(waits, default=math.inf)

    def _answer(self, to: bytes, owed: dict[bytes, Member], now: float) -> None:
        me, members = self._view.me, self._view.members
        # The receiver knows its own latest record. It is owed the one that it was said to have before.
        records = {peer: record if peer == to else members.get(peer, record) for peer, record in owed.items()}
        records.pop(me.id, None)
        page, *rest = pages(me, records.values())
        self._answered[to] = now
        self._dissemination.send(to, PushPull(False, page), now)
        for record in (record for page in rest for record in page[1:]):
            self.owe(to, record, now)
