"""The steps since the last snapshot, when a training process leaves."""

from __future__ import annotations

import logging
from typing import Final

from gossipdp.training.last_step import LastStep
from gossipdp.training.session import Session
from gossipdp.training.tensors.master_weights import MasterWeights
from gossipdp.training.waiting import wait_for_last_snapshot

__all__ = ["hand_over"]

log = logging.getLogger("gossipdp.training")

LEAVE_WITHIN: Final = 2.0
LEAVE_EACH: Final = 10e-9
"""seconds that the daemon has to take the last steps, and additional seconds per parameter: a round may have to end"""


def hand_over(session: Session, layout: MasterWeights, last: LastStep | None) -> None:
    """Hand over the steps since the last snapshot, if the parameters are as `last` left them.

    One rank cannot wait for the others here, because they may be gone: it hands over what it holds itself.
    """
    within = LEAVE_WITHIN + LEAVE_EACH * layout.schema.size
    order = None if layout.sharded else wait_for_last_snapshot(session, within)
    if order is not None and last is not None and not last.stands():
        log.warning(
            "the last %d steps are not handed over: the parameters have changed since, for example by averaged or "
            "loaded weights; do: call peer.detach() before that",
            session.since_snapshot,
        )
    elif order is not None:
        fence = layout.read(order.into, plus=order.plus)
        session.done(order, fence, layout.carried.copy(now=True), whole=True)
