"""The network's state (`protocol.carried_state`) on its way to the training process: one at a time.

A peer whose process does not step may fetch the model many times. Each state that it told at once would stay in memory
until the process reads it. So a second one waits for the process's next snapshot, and only the newest is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.runtime.link.messages import Renewed

__all__ = ["Renewals"]


class Renewals:
    """Args:
    send: tells the training process a message and the file that goes with it.
    """

    def __init__(self, send: Callable[[Renewed, Sequence[Buffer]], None]) -> None:
        self._send = send
        self._told = False
        """a state is told, and no snapshot has come since"""
        self._later: Buffer | None = None

    def renew(self, session: int, state: Buffer) -> None:
        """The network's state replaces that of the training process."""
        if self._told:
            self._later = state
        else:
            self._told = True
            self._send(Renewed(session), [state])

    def submitted(self, session: int, state: Buffer | None) -> Buffer | None:
        """A snapshot came with `state`. Returns what of it counts: nothing where a newer state waits."""
        later, self._later, self._told = self._later, None, False
        if later is None:
            return state
        self.renew(session, later)
        return None

    def ended(self) -> None:
        """The training process is gone, or has a new session, which begins with the newest state."""
        self._told, self._later = False, None
