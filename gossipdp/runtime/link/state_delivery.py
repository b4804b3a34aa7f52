"""Delivers the network's state (`protocol.carried_state`) to the training process, one at a time.

A peer whose process does not step may fetch the model many times. States sent at once would stay in memory until the
process reads them. So a second state waits for the process's next snapshot, and only the newest is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gossipdp.protocol.wire.encoding import Buffer
from gossipdp.runtime.link.messages import Renewed

__all__ = ["StateDelivery"]


class StateDelivery:
    """Sends the training process state that does not fit into a message.

    Args:
        send: sends the training process a message and the file that goes with it.
    """

    def __init__(self, send: Callable[[Renewed, Sequence[Buffer]], None]) -> None:
        self._send = send
        self._sent = False
        """a state was sent, and no snapshot has come since"""
        self._later: Buffer | None = None

    def renew(self, session: int, state: Buffer) -> None:
        """The network's state replaces the training process's state."""
        if self._sent:
            self._later = state
        else:
            self._sent = True
            self._send(Renewed(session), [state])

    def submitted(self, session: int, state: Buffer | None) -> Buffer | None:
        """A snapshot came with `state`. Returns `state`, or None if a newer state waits, which is then sent."""
        later, self._later, self._sent = self._later, None, False
        if later is None:
            return state
        self.renew(session, later)
        return None

    def end(self) -> None:
        """The training process is gone, or has a new session, which begins with the newest state."""
        self._sent, self._later = False, None
