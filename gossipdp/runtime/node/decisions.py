"""Puts decisions of the network's operator in force at this host, and on its disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gossipdp.errors import DataError
from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.wire.messages import Decision
from gossipdp.runtime.network.transport import Transport

__all__ = ["DecisionKeeper"]


class DecisionKeeper:
    """A decision is in force here before it is on the disk.

    Args:
        keep: saves all decisions that stand.
        notice: tells the operator a code and a text.
    """

    def __init__(
        self,
        admission: Admission,
        transport: Transport,
        keep: Callable[[Sequence[Decision]], None],
        notice: Callable[[str, str], None],
    ) -> None:
        self._admission, self._transport, self._keep, self._notice = admission, transport, keep, notice
        self.saved = True
        """whether all decisions are on the disk"""

    def taken(self) -> None:
        """Decisions were taken."""
        self._transport.admission_changed()
        self._save()

    def tick(self) -> None:
        """Try again what the disk has refused."""
        if not self.saved:
            self._save()

    def _save(self) -> None:
        try:
            self._keep(self._admission.decisions)
            self.saved = True
        except DataError as error:
            self.saved = False
            self._notice(error.code, f"decisions of the operator are in force, and not on the disk yet: {error.seen}")
