"""Where a training process waits for its daemon: for the model, a round (mode sync), moments, or its last snapshot.

All waits are bounded, except the one for the model without a timeout. Nothing here touches a tensor.
"""

from __future__ import annotations

import math
import time
from typing import Final

from gossipdp.errors import UnreachableError
from gossipdp.runtime import link as links
from gossipdp.training.dialogue import Phase
from gossipdp.training.messages import log
from gossipdp.training.orders import LoadMoments, Order, Snapshot
from gossipdp.training.session import Session

__all__ = ["ModelWait", "wait_for_last_snapshot", "wait_for_moments", "wait_for_order"]

GRACE: Final = 10.0
"""seconds that `ModelWait` gives a daemon that is being started or restarted (`link.expected`)"""
SUPERVISED_GRACE: Final = 120.0
"""the same where a supervisor starts the daemon again, which takes long on a busy host"""
MOMENTS_WITHIN: Final = 60.0
MOMENTS_EACH: Final = 100e-9
"""seconds for the daemon to bring the moments, and additional seconds per parameter"""
PAUSE: Final = 0.05
"""seconds between attempts where no message tells of a change"""


class ModelWait:
    """Waits for the network's model, with one deadline for all calls.

    Args:
        timeout: seconds from now. None: no limit.
    """

    def __init__(self, session: Session, timeout: float | None) -> None:
        self._session = session
        self._limit = math.inf if timeout is None else timeout
        self._began = session.now()

    def __call__(self) -> None:
        """Wait until `next_order` gives a Write or, later, the Load of the model.

        Raises:
            UnreachableError: GD-105, no daemon; GD-106, no model within the timeout.
            GossipdpError: the daemon's refusal of this process.
        """
        session = self._session
        reached = session.now() - self._began
        lines = links.WaitLines()
        while True:
            session.poll()
            waited = session.now() - self._began
            if session.phase is Phase.ARRIVED or (session.phase is Phase.WRITING and waited < self._limit):
                return
            if line := lines.look("the model to start from", session.now()):
                log.warning("training is %s: %s", line, session.waiting_for)
            error = session.error
            if isinstance(error, UnreachableError) and error.code == "GD-105":
                grace = SUPERVISED_GRACE if links.supervised(session.home) else GRACE
                if not links.expected(session.home) or waited - reached >= min(grace, self._limit):
                    raise error
                time.sleep(PAUSE)
            elif error is not None:
                raise error
            elif waited >= self._limit:
                raise UnreachableError(
                    "GD-106",
                    f"no model to start from after {self._limit:g} s",
                    seen=session.waiting_for,
                    do="see `gossipdp members`: some peer must have the model, or found the network",
                )
            elif session.connected:
                reached = waited
                session.wait(min(1.0, self._limit - waited))
            else:
                time.sleep(PAUSE)


def wait_for_order(session: Session, within: float = math.inf) -> Order | None:
    """With mode sync, after a snapshot: wait for the next order of its round.

    Args:
        within: seconds to wait at most.

    Returns:
        None when the round is over, the daemon is gone, or `within` has passed.
    """
    until, lines = session.now() + within, links.WaitLines()
    while True:
        session.poll()
        if (order := session.next_order()) is not None:
            return order
        if line := lines.look("the exchanges of its round (mode sync)", session.now()):
            log.warning("training is %s", line)
        left = min(session.patience, until - session.now())
        if not session.connected or left <= 0:
            return None
        # A fence that has not passed is looked at again soon.
        session.wait(min(left, 1.0 if session.idle else 0.001))


def wait_for_moments(session: Session) -> LoadMoments | None:
    """After the Load: wait for the moments that the daemon keeps. None if they do not come.

    A daemon that takes too long is dropped and reached anew. What it still writes goes to memory that is not read.
    """
    if session.alone or not session.kept_steps:
        return None
    session.ask_moments()
    within = MOMENTS_WITHIN + session.layout.schema.size * MOMENTS_EACH
    until, lines = session.now() + within, links.WaitLines()
    while not session.alone and (left := until - session.now()) > 0:
        session.poll()
        if (order := session.given_moments()) is not None:
            return order
        if line := lines.look("the optimizer's moments", session.now()):
            log.warning("training is %s", line)
        session.wait(min(left, 1.0))
    if not session.alone:
        session.lose(f"the optimizer's moments did not come within {within:.0f} s")
    return None


def wait_for_last_snapshot(session: Session, within: float) -> Snapshot | None:
    """The order to hand over the last steps, if the daemon can take it within `within` seconds."""
    until = session.now() + within
    while session.phase is Phase.OPEN and session.since_snapshot:
        session.poll()
        order = session.last_snapshot()
        if order is not None or not session.connected or (left := until - session.now()) <= 0:
            return order
        session.wait(min(left, PAUSE))  # no message tells that the daemon has put the token back
    return None
