"""Whether every address that a newcomer was told to dial has turned it away: then no waiting helps.

Only said no counts, several times in a row, for a busy host may break off a handshake too. Nothing may be dialled here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gossipdp.errors import GossipdpError, MismatchError, RefusedError
from gossipdp.runtime.journal import DO

__all__ = ["Doors"]

TIMES: Final = 3
"""refusals in a row of each address"""
REFUSALS: Final[dict[str, type[GossipdpError]]] = {
    "GD-201": RefusedError,
    "GD-203": MismatchError,
    "GD-204": RefusedError,
    "GD-302": MismatchError,
}


class Doors:
    """Args:

    addresses: ``host:port`` of each; none, and nothing is ever concluded.
    """

    def __init__(self, addresses: Iterable[str] = ()) -> None:
        self._refused = dict.fromkeys(addresses, 0)
        self._reasons: dict[str, str] = {}

    def opened(self) -> None:
        """Somebody of the network is met: whatever is refused later passes, or is told."""
        self._refused.clear()

    def failed(self, address: str, code: str, reason: str) -> GossipdpError | None:
        """A dial has failed. The error to end with once all addresses have said no; its code is the last one's."""
        if address not in self._refused:
            return None
        self._refused[address] = self._refused[address] + 1 if code in REFUSALS else 0
        self._reasons[address] = f"{code} {address}: {reason}"
        if min(self._refused.values()) < TIMES:
            return None
        seen = "; ".join(self._reasons.values())
        return REFUSALS[code](code, "every address that was to let this peer in refuses it", seen=seen, do=DO[code])
