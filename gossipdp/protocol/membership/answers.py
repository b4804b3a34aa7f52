"""Records that this peer owes to others: each receiver gets one message in a probe timeout, whatever it sends.

A member that tells an older record is to hear the newer one, and a member that doubts this peer is to hear the answer.
Sent at once for each message, such answers feed each other while many records change. So they are collected here. The
first goes out at once, later ones together when the probe timeout has passed. While the control budget is overdrawn
they wait for up to one probe interval more. Of what does not fit one message the rest goes with the next.

Which records are owed, and to whom, is not decided here.
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
"""members that something is owed to, at one time"""
_RECORDS: Final = 256
"""records owed to one of them; if there are more, a comparison of views tells it the rest"""


@dataclass(slots=True)
class _Debt:
    due: float
    records: dict[bytes, Member] = field(default_factory=dict)
    """member -> its record as it was when it became owed"""


class Answers:
    """What is owed, and when it may be said."""

    def __init__(self, view: View, dissemination: Dissemination) -> None:
        self._view, self._dissemination, self._config = view, dissemination, view.config
        self._debts: dict[bytes, _Debt] = {}
        self._said: dict[bytes, float] = {}
        """receiver -> when it was last answered, within the last probe timeout"""
        self._at = math.inf

    def owe(self, to: bytes, record: Member, now: float) -> None:
        """`to` is to hear `record`, or what is believed of that member by then."""
        debt = self._debts.get(to)
        if debt is None:
            if len(self._debts) >= _RECEIVERS:
                del self._debts[next(iter(self._debts))]
            due = max(now, self._said.get(to, -math.inf) + self._config.probe_timeout)
            debt = self._debts[to] = _Debt(due)
        if record.id in debt.records or len(debt.records) < _RECORDS:
            debt.records[record.id] = record
        self._at = min(self._at, debt.due)

    def owes(self, to: bytes) -> bool:
        """Whether `to` is to hear something."""
        return to in self._debts

    def timer(self) -> float:
        """When `handle_timer` wants to be called next."""
        return self._at

    def handle_timer(self, now: float) -> None:
        if now < self._at:
            return
        self._said = {to: at for to, at in self._said.items() if now < at + self._config.probe_timeout}
        waits = []
        for to, debt in list(self._debts.items()):
            ready = min(self._dissemination.control.ready(now), debt.due + self._config.probe_interval)
            if now >= max(debt.due, ready):
                self._answer(to, self._debts.pop(to).records, now)
            else:
                waits.append(max(debt.due, ready))
        waits += [debt.due for to, debt in self._debts.items() if to in self._said]
        self._at = min(waits, default=math.inf)

    def _answer(self, to: bytes, owed: dict[bytes, Member], now: float) -> None:
        me, members = self._view.me, self._view.members
        # Of itself the receiver knows the latest word: it is told where it was said to be before.
        records = {peer: record if peer == to else members.get(peer, record) for peer, record in owed.items()}
        records.pop(me.id, None)
        page, *rest = pages(me, records.values())
        self._said[to] = now
        self._dissemination.send(to, PushPull(False, page), now)
        for record in (record for page in rest for record in page[1:]):
            self.owe(to, record, now)
