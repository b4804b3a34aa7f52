"""Reminds the operator of a joining peer every half minute that the join makes no progress, why, and what to do.

Nothing here may dial or log. The node feeds it, and logs what it returns.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gossipdp.protocol.view import View
from gossipdp.runtime.network.dial_causes import dial_text, foremost
from gossipdp.runtime.observability.unanswered import Unanswered

__all__ = ["EVERY", "JoinProgress", "Reminder"]

EVERY: Final = 30.0
"""seconds without progress before each reminder"""
FOUNDER_STARTS: Final = 180.0
"""seconds for which a network without a model is usual: the founder's training starts"""
SHOWN: Final = 3
"""addresses named in a reminder"""


class Reminder(NamedTuple):
    code: str
    """ "" while the wait is usual"""
    text: str
    do: str


class JoinProgress:
    """How far this peer's join has come, in words.

    Args:
        now: when the join began.
        unanswered: addresses that do not answer.
    """

    def __init__(self, now: float, unanswered: Unanswered) -> None:
        self._began = self._moved = self._told = now
        self._state: tuple[int, str] = (0, "")
        self._unanswered = unanswered

    def look(self, view: View, transfer: str, now: float) -> Reminder | None:
        """The reminder that is due now for the peer of `view`, or None.

        Args:
            transfer: text on how much of the model has arrived; "" before the first chunk.
        """
        members = len(view.alive)
        if view.ready or view.founds or (members and view.me.only_carries):
            self._began = self._moved = self._told = math.inf  # a daemon joins once
            return None
        if (bool(members), transfer) != (bool(self._state[0]), self._state[1]):
            self._moved = self._told = now
        self._state = members, transfer
        if now < self._told + EVERY:
            return None
        self._told = now
        if transfer:
            text = f"the transfer of the model has stood still for {now - self._moved:.0f} s: {transfer}"
            return Reminder("GD-106", text, "see in `gossipdp members` if the sender is alive; its link may be full")
        if members:
            met = "1 member is" if members == 1 else f"{members} members are"
            waited = now - self._moved
            text = f"{met} met, but none has given a model for {waited:.0f} s"
            if waited < FOUNDER_STARTS:
                return Reminder("", text, "wait while the training of the network's founder starts")
            do = "start the training of the host that founded the network: its first attach brings the model"
            return Reminder("GD-106", text, do)
        return self._alone(now)

    def _alone(self, now: float) -> Reminder:
        since = f"not yet in the network after {now - self._began:.0f} s"
        failed = self._unanswered.recent(now)
        if not failed:
            do = "name a member: --seed HOST:PORT, or join with its invite"
            return Reminder("GD-101", f"{since}: no address of a member is known, or none has answered yet", do)
        last = list(failed.items())[-SHOWN:]
        told = "; ".join(dial_text(address, failure.causes) for address, failure in last)
        do = next((failure.do for _, failure in reversed(last) if failure.do), "see the cause at each address")
        return Reminder(foremost(last[-1][1].causes).code, f"{since}: {told}", do)
