"""What a node does twice a second: metrics, memory, lines for the operator, and the members to dial after a restart."""

from __future__ import annotations

import logging
import math

from gossipdp.errors import GossipdpError
from gossipdp.runtime.network.transport import Transport
from gossipdp.runtime.node.context import NodeContext
from gossipdp.runtime.observability.health import judge
from gossipdp.runtime.observability.history import History
from gossipdp.runtime.observability.join_progress import JoinProgress
from gossipdp.runtime.observability.memory_watch import MemoryWatch
from gossipdp.runtime.observability.status_lines import StatusLines
from gossipdp.runtime.storage.spill import Spill

__all__ = ["Housekeeping"]

log = logging.getLogger("gossipdp.node")

REMEMBER_EVERY = 5.0
"""least seconds between two writes of the members to dial: each waits for the disk"""
DIRECT_EVERY = 60.0
"""seconds between two attempts to dial members directly whose links relays carry"""
KNOWN = 300.0
"""seconds that a crash may take off the time for which a member is known"""


class Housekeeping:
    """What the daemon does a few times a second beside its messages.

    Args:
        memory: compares this process's memory with its bounds.
        spill: frees its files bit by bit, and says if the disk refuses what it is to keep.
        history: gets a record of this peer from time to time.
    """

    def __init__(
        self,
        context: NodeContext,
        transport: Transport,
        join_progress: JoinProgress,
        memory: MemoryWatch,
        spill: Spill,
        history: History,
    ) -> None:
        self._view, self._status, self._metrics, self._notices = (
            context.peer.view,
            context.status,
            context.metrics,
            context.notices,
        )
        self._transport, self._join_progress, self._memory, self._spill = transport, join_progress, memory, spill
        self._records, self._history = context.records, history
        self._lines = StatusLines(context.clock())
        self._remembered: dict[bytes, tuple[tuple[str, ...], int]] = {}
        """addresses of the members that were written last, and for how long each was known, in units of `KNOWN`"""
        self._remember_at = self._direct_at = -math.inf

    def tick(self, now: float, jobs_waiting: int, parameters: int, *, saving: bool, finishing: str) -> None:
        """Do it. parameters: that memory is taken for. saving and finishing as in `Status.describe`."""
        view = self._view
        reports = view.reports
        self._status.rates.look(reports, now)
        self._status.lags.look(reports, view.clock)
        self._metrics.update(self._status, queued=jobs_waiting)
        self._metrics.set_queues(bytes=self._transport.queued_bytes)
        self._transport.know(view.known, view.set_aside(now))
        self._transport.attend(view.relays, view.carriers)
        self._dial_directly(now)
        if text := self._memory.look(parameters):
            self._notices.notice("GD-506", text, now)
        if text := self._spill.tick():
            self._notices.notice("GD-602", text, now)
        self._notices.remind(self._join_progress.look(view, self._status.transfer, now))
        signs = self._status.signs(saving=saving, finishing=finishing)
        verdict = judge(signs)
        self._metrics.set_verdict(verdict.state)
        if (line := self._lines.look(signs, verdict, self._status.totals(), now)) is not None:
            log.log(line.level, "%s", line.text)
        if text := self._history.look(self._status, now):
            self._notices.notice("GD-602", text, now)
        self._remember_members(now)

    def end(self, now: float) -> None:
        """The daemon ends: the history gets its last record."""
        if text := self._history.look(self._status, now, last=True):
            self._notices.notice("GD-602", text, now)

    def _dial_directly(self, now: float) -> None:
        """Try again to dial the members whose links relays carry."""
        if now < self._direct_at:
            return
        self._direct_at = now + DIRECT_EVERY
        members = self._view.members
        for link in self._transport.links():
            if link.via and link.peer in members:
                self._transport.dial(link.peer, members[link.peer].own_addresses)

    def _remember_members(self, now: float) -> None:
        view = self._view
        members = [(member, view.known_for(member.id)) for member in view.restart_contacts]
        written = {member.id: (member.addresses, int(known / KNOWN)) for member, known in members}
        if not written or written == self._remembered or now < self._remember_at:
            return
        self._remember_at = now + REMEMBER_EVERY
        try:
            self._records.remember(members)
            self._remembered = written
        except GossipdpError as error:
            self._notices.notice(error.code, f"{error.cause}: {error.seen}", now)
