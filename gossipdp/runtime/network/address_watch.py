"""Notices that this host has other addresses now: by DHCP, on another network, on a spot host that was moved.

A thread looks, because names are resolved for it, which may block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gossipdp.runtime.network.addresses import Choice
from gossipdp.runtime.network.watch import Watch

__all__ = ["AddressWatch"]

EVERY: Final = 5.0
"""seconds between two looks. Two in a row must find the same, because an interface may be on its way up"""


class AddressWatch(Watch[Choice]):
    """Looks at the addresses of this host, and finds those to advertise when they have changed.

    Args:
        look: returns the addresses to advertise now.
        choice: those that are advertised already.
        every: seconds between two looks.
    """

    def __init__(self, look: Callable[[], Choice], choice: Choice, every: float = EVERY) -> None:
        self._look, self._told, self._every = look, choice, every
        super().__init__("gossipdp-addresses")

    def _run(self) -> None:
        before = self._told.addresses
        while not self._stop.wait(self._every):
            seen = self._look()
            if seen.addresses == before and before != self._told.addresses:
                self._told = seen
                self._tell(seen)
            before = seen.addresses
