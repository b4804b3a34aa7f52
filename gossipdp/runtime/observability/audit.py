"""The audit log: who joined, who was refused, and what the operator decided. One record a line, for people and tools.

Records go to the logger `gossipdp.audit`; the daemon gives it a file of its own in the home. Refusals that repeat are
counted, so a stranger cannot push older records out of that file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from gossipdp.protocol import events
from gossipdp.protocol.wire.messages import Member, State
from gossipdp.runtime.network.events import DialFailed, HandshakeRefused, TransportEvent

__all__ = ["LOGGER", "Audit", "record"]

LOGGER: Final = "gossipdp.audit"
AGAIN: Final = 300.0
"""seconds for which further refusals of one kind are only counted"""
KINDS: Final = 64
"""kinds of refusals (address and code) told apart in that time; further ones are counted together"""
REFUSED: Final = ("GD-201", "GD-202", "GD-203", "GD-204", "GD-205", "GD-302")
"""codes of refusals"""

log = logging.getLogger(LOGGER)
log.propagate = False


def record(kind: str, **about: str | int) -> None:
    """Write one record. Empty fields are left out."""
    log.info(kind, extra={"about": {name: value for name, value in about.items() if value != ""}})


class Audit:
    """Writes the records.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refusals: dict[tuple[str, str], int] = {}
        """(address, code) -> refusals since `_since`, the first one not counted"""
        self._since = clock()

    def observe(self, event: events.Event) -> None:
        """Record an event of the peer, if it is about who is a member."""
        match event:
            case events.MemberChanged(member, before):
                self._member(member, before)
            case events.Decided(decision):
                record(
                    "decided",
                    verdict=decision.verdict.name.lower(),
                    id=decision.subject.hex(),
                    name=decision.name,
                    reason=decision.reason,
                    number=decision.number,
                )
            case events.OperatorUnknown(through, operator):
                record("unknown operator", id=through.hex(), operator=operator.hex())

    def hear(self, event: TransportEvent) -> None:
        """Record what the transport reports, if it is a refusal."""
        match event:
            case HandshakeRefused(address, code, reason):
                self._refused("refused", address, code, reason)
            case DialFailed(_, address, reason, code) if code in REFUSED:
                self._refused("refused by", address, code, reason)

    def _member(self, member: Member, before: State | None) -> None:
        if before is member.state:
            return
        if member.state is State.ALIVE and before is not State.SUSPECT:
            kind = "joined" if before is None else "returned"
        elif member.state in (State.FAILED, State.LEFT) and before is not None:
            kind = member.state.name.lower()
        else:
            return
        record(kind, id=member.id.hex(), name=member.name, address=member.address, incarnation=member.incarnation)

    def _refused(self, kind: str, address: str, code: str, reason: str) -> None:
        if self._clock() >= self._since + AGAIN:
            self._tell_repeated()
        host = address.rpartition(":")[0] or address
        about = (f"{kind} {host}", code)
        if about not in self._refusals and len(self._refusals) >= KINDS:
            about = (f"{kind} others", code)
        if about in self._refusals:
            self._refusals[about] += 1
            return
        self._refusals[about] = 0
        record(kind, address=address, code=code, reason=reason)

    def _tell_repeated(self) -> None:
        for (what, code), count in self._refusals.items():
            if count:
                record("repeated", what=what, code=code, times=count)
        self._refusals.clear()
        self._since = self._clock()
