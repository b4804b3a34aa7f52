"""Whether every address that a newcomer was told to dial has turned it away: then no waiting helps.

Only a no counts that somebody with the network's secret has said, several times in a row. A handshake broken off
(GD-201) is none: another secret looks so, and so does a proxy, a tunnel or a balancer whose peer is not up yet. Nothing
may be dialled here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gossipdp.errors import GossipdpError, MismatchError, RefusedError
from gossipdp.runtime.observability.notices import DO

__all__ = ["Doors"]

TIMES: Final = 3
"""refusals in a row of each address"""
REFUSALS: Final[dict[str, type[GossipdpError]]] = {
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

    def failed(self, address: str, code: str, reason: str, *, ours: bool = False) -> GossipdpError | None:
        """A dial has failed. The error to end with once all addresses have said no; its code is the last one's.

        ours: this peer's own lists keep that one out, which is no answer of theirs.
        """
        if address not in self._refused:
            return None
        self._refused[address] = self._refused[address] + 1 if code in REFUSALS and not ours else 0
        self._reasons[address] = f"{code} {address}: {reason}"
        if min(self._refused.values()) < TIMES:
            return None
        seen = "; ".join(self._reasons.values())
        return REFUSALS[code](code, "every address that was to let this peer in refuses it", seen=seen, do=DO[code])
