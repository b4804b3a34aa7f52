"""The state that all peers share, for joiners. Implements `transfer.source.Shared`."""

from __future__ import annotations

from collections.abc import Callable

from gossipdp.protocol.epidemic.broadcast import Broadcast
from gossipdp.protocol.epidemic.exclusive import Exclusive
from gossipdp.protocol.epidemic.standing import Standing

__all__ = ["SharedState"]


class SharedState:
    """Lets a source freeze the state between two operations on it."""

    def __init__(self, standing: Standing, exclusive: Exclusive, broadcast: Broadcast) -> None:
        self._standing, self._exclusive, self._broadcast = standing, exclusive, broadcast

    def freeze(self, begin: Callable[[], bool]) -> None:
        """Call `begin` when no operation is under way. If it returns True, none runs until `frozen`."""

        def begun() -> bool:
            if self._standing.held or not begin():
                return False
            self._standing.share()
            return True

        self._exclusive.ask(begun)

    def frozen(self) -> None:
        """The state may change again."""
        self._exclusive.over()

    def summary(self) -> bytes:
        """The content of the state."""
        return self._broadcast.summary()
