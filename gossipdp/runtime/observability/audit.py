"""The audit log: who joined, who was refused, and what the operator decided. One record a line, for people and tools.

Records go to the logger `gossipdp.audit`; the daemon gives it a file of its own in the home. What repeats is counted,
so neither a stranger nor a member can push older records out of that file soon.
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
"""seconds for which further records of one kind about one peer or address are only counted"""
REFUSALS: Final = 64
"""refusals of different addresses and codes written in that time; further ones are counted together"""
CHANGES: Final = 2048
"""changes of different members written in that time; further ones are counted together"""
RECEIPTS: Final = 4096
"""hosts that were let in, or have a new secret, written in that time; further ones are counted together"""
REFUSED: Final = ("GD-201", "GD-202", "GD-203", "GD-204", "GD-205", "GD-208", "GD-209", "GD-302")
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
        self._clock, self._since = clock, clock()
        self._counts: dict[tuple[str, str], int] = {}
        """(kind, peer or address and code) -> further records since `_since`"""
        self._written = {"refusals": 0, "changes": 0, "receipts": 0}

    def observe(self, event: events.Event) -> None:
        """Record an event of the peer, if it is about who is a member."""
        match event:
            case events.MemberChanged(member, before):
                self._member(member, before)
            case events.Decided(decisions):
                for each in decisions:
                    record(
                        "decided",
                        verdict=each.verdict.name.lower(),
                        id=each.subject.hex() if len(each.subject) == 32 else "",
                        name=each.name,
                        reason=each.reason,
                        allowed=len(each.allowed) or "",
                        number=each.number,
                    )
            case events.ReceiptsTaken(receipts):
                for made in receipts:
                    invite = made.subject.hex() if len(made.subject) == 32 else ""
                    kind = "let in" if invite else "has the new secret"
                    if self._is_new(kind, made.peer.hex(), "receipts", RECEIPTS):
                        record(kind, id=made.peer.hex(), invite=invite[:8])
            case events.OperatorDiffers(through, operator):
                record("other operator", id=through.hex(), operator=operator.hex())

    def hear(self, event: TransportEvent) -> None:
        """Record what the transport reports, if it is a refusal."""
        match event:
            case HandshakeRefused(address, code, reason):
                self._refused("refused", address, code, reason)
            case DialFailed(address=address, code=code, reason=reason) if code in REFUSED:
                self._refused("refused by", address, code, reason)

    def close(self) -> None:
        """Write what was only counted so far."""
        for (kind, about), count in self._counts.items():
            if count:
                record("repeated", what=kind, about=about, times=count)
        self._counts.clear()
        self._written = dict.fromkeys(self._written, 0)
        self._since = self._clock()

    def _member(self, member: Member, before: State | None) -> None:
        if before is member.state:
            return
        if member.state is State.ALIVE and before is not State.SUSPECT:
            kind = "joined" if before is None else "returned"
        elif member.state in (State.FAILED, State.LEFT) and before is not None:
            kind = member.state.name.lower()
        else:
            return
        if self._is_new(kind, member.id.hex(), "changes", CHANGES):
            start = member.incarnation
            record(kind, id=member.id.hex(), name=member.name, address=member.address, incarnation=start)

    def _refused(self, kind: str, address: str, code: str, reason: str) -> None:
        host = address.rpartition(":")[0] if address.count(":") == 1 or address.startswith("[") else address
        if self._is_new(kind, f"{host} {code}", "refusals", REFUSALS):
            record(kind, address=address, code=code, reason=reason)

    def _is_new(self, kind: str, about: str, group: str, most: int) -> bool:
        """Whether this is written. Otherwise it is counted."""
        if self._clock() >= self._since + AGAIN:
            self.close()
        if (kind, about) not in self._counts and self._written[group] >= most:
            about = "others"
        if (kind, about) in self._counts:
            self._counts[kind, about] += 1
            return False
        self._counts[kind, about] = 1 if about == "others" else 0
        self._written[group] += 1
        return about != "others"
