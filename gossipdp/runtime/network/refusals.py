"""Whether every address that a newcomer was told to dial has refused it. Then waiting does not help.

A refusal counts if the other side has the network's secret and refuses several times in a row. A handshake broken off
(GD-201) does not count: it looks the same with another secret as with a proxy whose peer is not up yet. Nothing may be
dialled here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gossipdp.error_codes import ADVICE
from gossipdp.errors import GossipdpError, MismatchError, RefusedError

__all__ = ["TIMES", "Refusals"]

TIMES: Final = 3
"""refusals in a row that each address needs"""
CODES: Final[dict[str, type[GossipdpError]]] = {
    "GD-203": MismatchError,
    "GD-204": RefusedError,
    "GD-208": RefusedError,
    "GD-302": MismatchError,
}


class Refusals:
    """Collects why no seed could be joined.

    Args:
        addresses: ``host:port`` of each seed. Without addresses no error ever follows.
    """

    def __init__(self, addresses: Iterable[str] = ()) -> None:
        self._refused = dict.fromkeys(addresses, 0)
        self._reasons: dict[str, str] = {}

    def met_member(self) -> None:
        """A member is met: later refusals end nothing."""
        self._refused.clear()

    def failed(self, address: str, code: str, reason: str, *, ours: bool = False) -> GossipdpError | None:
        """A dial failed.

        Args:
            ours: this peer's own lists exclude the other side, which is no refusal by it.

        Returns:
            The error to end with once every address has refused, with the code of the last refusal; else None.
        """
        if address not in self._refused:
            return None
        self._refused[address] = self._refused[address] + 1 if code in CODES and not ours else 0
        self._reasons[address] = f"{code} {address}: {reason}"
        if min(self._refused.values()) < TIMES:
            return None
        seen = "; ".join(self._reasons.values())
        return CODES[code](code, "every address that could let this peer in refuses it", seen=seen, do=ADVICE[code])
