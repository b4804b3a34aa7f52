"""What a member may cost this peer: signature checks, and messages that each cost time.

Every member has a small budget of its own, so no other one can stop its news. A register that comes at once, as to a
peer that joins, is beyond it. The checks of it come out of one budget for all, which is large and fills slowly: a key
costs nothing, and a budget as large for each would be none. What a budget refuses is told as an event.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from gossipdp.protocol.admission.packing import MAX_RECEIPTS, MAX_SUBJECTS
from gossipdp.protocol.events import OverBudget
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.wire.messages import MAX_HOLDERS, Coverage, Decisions, Message, Offer

__all__ = ["Budgets", "Checks", "TokenBucket"]

RATE: Final = 8.0
"""checks of a signature a second, for each member"""
BURST: Final = 64.0
"""the most that a member saves up"""
SHARED_RATE: Final = 64.0
"""checks a second beyond these, of all members together"""
SHARED: Final = float(MAX_SUBJECTS + MAX_RECEIPTS + MAX_HOLDERS + 2)
"""the most that is saved up: the largest register passes at once"""
MOST_SENDERS: Final = 1024
"""members whose budget is remembered: those that sent last"""
PRICES: Final[dict[type[Message], float]] = {Coverage: 0.5, Offer: 0.25}
"""what one message costs, in checks. A member sends at most 4 coverages a second, and some offers."""


class TokenBucket:
    """A budget, in bytes or checks for example, that flows in at a constant rate.

    Args:
        rate: what flows in each second.
        most: what it holds; it starts full. It goes down to -`most` at the lowest. A deeper debt, run up by
            messages that cannot wait, would silence this peer for long.
    """

    def __init__(self, rate: float, most: float, now: float) -> None:
        self.rate, self.most = rate, most
        self._left, self._at = most, now

    def left(self, now: float) -> float:
        """What is left; negative when overdrawn."""
        if now > self._at:
            self._left = min(self._left + self.rate * (now - self._at), self.most)
            self._at = now
        return self._left

    def spend(self, amount: float, now: float) -> None:
        """Take `amount` out."""
        self._left = max(self.left(now) - amount, -self.most)

    def ready(self, now: float) -> float:
        """When the bucket is no longer overdrawn; `now` if it is not."""
        return now + max(0.0, -self.left(now)) / self.rate


class Checks:
    """Called before each check of a signature in one message: whether the member that sent it has one left."""

    def __init__(self, budgets: Budgets, sender: bytes, now: float) -> None:
        self._budgets, self._sender, self._now = budgets, sender, now
        self.spent = False
        """one was refused"""

    def __call__(self) -> bool:
        granted = self._budgets.check(self._sender, self._now)
        if not granted and not self.spent:
            self.spent = True
            self._budgets.refuse(Decisions, self._sender)
        return granted


class Budgets:
    """The budgets of all members at one peer. They tell each message that they refuse."""

    def __init__(self, outputs: Outputs, now: float) -> None:
        self._outputs = outputs
        self._shared = TokenBucket(SHARED_RATE, SHARED, now)
        self._own: OrderedDict[bytes, TokenBucket] = OrderedDict()

    def takes(self, message: Message, sender: bytes, now: float) -> bool:
        """Whether `sender` can pay for this message. It pays."""
        price = PRICES.get(type(message), 0.0)
        pays = price == 0.0 or _pays(self._of(sender, now), price, now)
        if not pays:
            self.refuse(type(message), sender)
        return pays

    def check(self, sender: bytes, now: float) -> bool:
        """Whether `sender` can pay for the check of a signature. It pays."""
        return _pays(self._of(sender, now), 1.0, now) or _pays(self._shared, 1.0, now)

    def refuse(self, kind: type[Message], sender: bytes) -> None:
        """Tell that a message of `sender`, or a part of it, is dropped."""
        self._outputs.emit(OverBudget(sender, kind.__name__))

    def _of(self, sender: bytes, now: float) -> TokenBucket:
        if sender not in self._own:
            self._own[sender] = TokenBucket(RATE, BURST, now)
        self._own.move_to_end(sender)
        if len(self._own) > MOST_SENDERS:
            self._own.popitem(last=False)
        return self._own[sender]


def _pays(bucket: TokenBucket, price: float, now: float) -> bool:
    pays = bucket.left(now) >= price
    if pays:
        bucket.spend(price, now)
    return pays
