"""Strikes that this peer counts against other members, and the pauses for which it sets them aside.

A strike needs proof: a message that no honest peer sends, whatever the network does to it. Loss, delay, repetition, a
cut, a crash and an unanswered request also happen to honest peers, so they do not count. Partners that waste time are
left to `partner_history`. A refused payload is proof, because it is checked against what its sender signed or agreed
to. `EXCUSED` lists the refusals that prove nothing. Signed or undecodable data of another software version proves
nothing either, because it may hold fields that this version does not know.

This peer does not average with a member that is set aside, and fetches no state from it. In all other respects it stays
a member: it is probed, its gossip counts and its data leases hold. No other peer is told, or a liar could have honest
members set aside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.causes import Fault
from gossipdp.protocol.events import Event, MessageDropped, Struck, UpdateRefused
from gossipdp.protocol.wire.messages import Member

__all__ = ["EXCUSED", "GARBLED", "SIGNED", "Quarantine", "QuarantineConfig", "Strikes"]

EXCUSED: Final = frozenset({Fault.IMPLAUSIBLE, Fault.SCHEMA})
"""Faults that prove nothing. The witness that denied a state may be the liar. If two sources have different
models, either may be wrong."""
SIGNED: Final = frozenset(
    {
        Fault.MANIFEST,
        Fault.MOMENTS_MANIFEST,
        Fault.MEMBER_SIGNATURE,
        Fault.PROGRESS_SIGNATURE,
        Fault.DECISION_SIGNATURE,
    }
)
"""Faults that prove nothing against other software versions: the signature may cover an unknown field."""
GARBLED: Final = 8
"""undecodable messages of one peer that make one fault"""


@dataclass(frozen=True, kw_only=True)
class QuarantineConfig:
    """Times in seconds."""

    strikes: int = 3
    """strikes at which a member is set aside"""
    together: float = 1.0
    """faults within this time after a strike belong to that strike"""
    forgiven: float = 21_600.0
    """one strike expires after each such time since the last strike, or since the end of its pause; longer than the
    usual time between two meetings with one member of a large network"""
    shortest: float = 60.0
    """pause = shortest * 2^(strikes of the member - strikes)"""
    longest: float = 3600.0
    """longest pause"""
    remembered: int = 1024
    """members whose strikes are kept; past it, the member with the oldest last strike is forgotten"""


@dataclass(slots=True)
class _Record:
    strikes: int
    last: float
    until: float
    """end of the pause, or `last` if there was none"""


class Quarantine:
    """Counts the strikes of all members, and doubles the pause with each strike past the limit.

    One fault may be a passing bug; the third within hours is a habit. Faults that come together, such as the chunks of
    one exchange, are one strike. During a pause no strike is added: late messages belong to the fault that caused it.
    """

    def __init__(self, config: QuarantineConfig | None = None) -> None:
        self._config = config or QuarantineConfig()
        self._records: dict[bytes, _Record] = {}

    def strike(self, peer: bytes, now: float) -> bool:
        """Record a fault of `peer`. Returns whether it counts as a new strike."""
        config, record = self._config, self._records.get(peer)
        if record is not None and now < max(record.until, record.last + config.together):
            return False
        count = self.count(peer, now) + 1
        beyond = count - config.strikes
        # The exponent is bounded, or the power would overflow.
        pause = min(config.longest, config.shortest * 2.0 ** min(beyond, 64)) if beyond >= 0 else 0.0
        self._records.pop(peer, None)
        self._records[peer] = _Record(count, now, now + pause)
        if len(self._records) > config.remembered:
            del self._records[next(iter(self._records))]
        return True

    def count(self, peer: bytes, now: float) -> int:
        """Strikes of `peer` that have not expired."""
        record = self._records.get(peer)
        if record is None:
            return 0
        return max(0, record.strikes - max(0, int((now - record.until) / self._config.forgiven)))

    def left(self, peer: bytes, now: float) -> float:
        """Seconds until the pause of `peer` ends; 0 without a pause."""
        record = self._records.get(peer)
        return 0.0 if record is None else max(0.0, record.until - now)

    def aside(self, now: float) -> list[bytes]:
        """Members that are set aside."""
        return [peer for peer, record in self._records.items() if now < record.until]


class Strikes:
    """Turns events of this peer into strikes, and says which members it shuns.

    Args:
        me: id of this peer, which never strikes itself.
        admission: tells with which members the operator lets this peer deal.
    """

    def __init__(self, config: QuarantineConfig, me: bytes, admission: Admission) -> None:
        self._me, self._admission = me, admission
        self._most = config.remembered
        self._quarantine = Quarantine(config)
        self._garbled: Counter[bytes] = Counter()

    def judge(self, events: Iterable[Event], members: Mapping[bytes, Member], now: float) -> list[Struck]:
        """Count the faults that `events` prove. Returns the new strikes.

        Args:
            events: of this peer, since the last call.
            members: the records that it knows, its own included.
        """
        struck = []
        for event in events:
            peer, reason = self._fault(event, members)
            if reason and peer != self._me and self._quarantine.strike(peer, now):
                pause = self._quarantine.left(peer, now)
                struck.append(Struck(peer, reason, self._quarantine.count(peer, now), pause))
        return struck

    def _fault(self, event: Event, members: Mapping[bytes, Member]) -> tuple[bytes, Fault | None]:
        """The peer whose fault `event` proves, and the fault; None if it proves none."""
        match event:
            case UpdateRefused(peer, reason) if reason not in EXCUSED and (
                reason not in SIGNED or self._akin(peer, members)
            ):
                return peer, reason
            case MessageDropped(peer) if self._akin(peer, members):
                self._garbled[peer] += 1
                if self._garbled[peer] >= GARBLED:
                    del self._garbled[peer]
                    return peer, Fault.GARBLED
                if len(self._garbled) > self._most:
                    self._garbled.clear()
        return b"", None

    def _akin(self, peer: bytes, members: Mapping[bytes, Member]) -> bool:
        """Whether that member runs the same software as this peer."""
        other, me = members.get(peer), members[self._me]
        return other is not None and (other.version, other.software) == (me.version, me.software)

    def count(self, peer: bytes, now: float) -> int:
        """Strikes of `peer` that have not expired."""
        return self._quarantine.count(peer, now)

    def shuns(self, peer: bytes, now: float) -> bool:
        """Whether `peer` is set aside, or not admitted by the operator."""
        return not self._admission.admits(peer) or self._quarantine.left(peer, now) > 0.0

    def aside(self, now: float) -> list[bytes]:
        """Members that are set aside."""
        return self._quarantine.aside(now)
