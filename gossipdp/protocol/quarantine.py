"""How long a member is left alone that has done wrong: strikes, and a pause that doubles with each.

One fault may be a bug of a moment; a third one within hours is a habit. A member that is set aside comes back by
itself, and the next strike sets it aside for twice as long; each quiet while afterwards takes one strike back. Faults
that come together, as the chunks of one exchange do, are one strike, and of whom is set aside nothing more is counted:
what it had on its way belongs to what it is set aside for. What a fault is, and what being set aside means, is not for
here: no message, event or choice of partners may stand in this file.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Quarantine", "QuarantineConfig"]


@dataclass(frozen=True, kw_only=True)
class QuarantineConfig:
    """Times in seconds."""

    strikes: int = 3
    """those that set a member aside"""
    together: float = 1.0
    """faults within so long of the last strike belong to it"""
    forgiven: float = 21_600.0
    """one strike is taken back for each of these since the last, or since the pause that it brought; longer than it
    takes to meet one member of many again"""
    shortest: float = 60.0
    """pause = shortest * 2^(strikes it has - strikes)"""
    longest: float = 3600.0
    """pause at the most"""
    remembered: int = 1024
    """members with strikes; of more, the one struck longest ago is forgotten"""


@dataclass(slots=True)
class _Record:
    strikes: int
    last: float
    until: float
    """end of the pause, or `last` if there was none"""


class Quarantine:
    """The strikes of all members, as one peer counts them."""

    def __init__(self, config: QuarantineConfig | None = None) -> None:
        self._config = config or QuarantineConfig()
        self._records: dict[bytes, _Record] = {}

    def strike(self, peer: bytes, now: float) -> bool:
        """`peer` has done wrong; whether that is one strike more."""
        config, record = self._config, self._records.get(peer)
        if record is not None and now < max(record.until, record.last + config.together):
            return False
        count = self.strikes(peer, now) + 1
        beyond = count - config.strikes
        # Past 2^64 pauses the power itself would grow without bound.
        pause = min(config.longest, config.shortest * 2.0 ** min(beyond, 64)) if beyond >= 0 else 0.0
        self._records.pop(peer, None)
        self._records[peer] = _Record(count, now, now + pause)
        if len(self._records) > config.remembered:
            del self._records[next(iter(self._records))]
        return True

    def strikes(self, peer: bytes, now: float) -> int:
        """Those not yet taken back."""
        record = self._records.get(peer)
        if record is None:
            return 0
        return max(0, record.strikes - max(0, int((now - record.until) / self._config.forgiven)))

    def left(self, peer: bytes, now: float) -> float:
        """Seconds for which it is still set aside; 0 if it is not."""
        record = self._records.get(peer)
        return 0.0 if record is None else max(0.0, record.until - now)

    def aside(self, now: float) -> list[bytes]:
        """Who is set aside."""
        return [peer for peer, record in self._records.items() if now < record.until]
