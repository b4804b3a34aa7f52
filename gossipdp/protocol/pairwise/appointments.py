"""Where a peer stands in the schedule that all follow: which of its steps it meets next.

A round holds so many steps as it makes exchanges, and their numbers go by the network's round, so that all who follow
agree on them without a word. Somebody who is a little ahead may bring a step forward: it is then held, and not held
again. Who meets whom in a step is `schedule`'s business, and what becomes of a meeting `averaging`'s.
"""

from __future__ import annotations

from gossipdp.protocol.pairwise.schedule import Schedule

__all__ = ["Appointments"]


class Appointments:
    """Of the peer `me`."""

    def __init__(self, me: bytes) -> None:
        self._me = me
        self._schedule: Schedule | None = None
        self._step = self._last = 0
        """the step to meet next, and the first of the next round"""

    def begin(self, schedule: Schedule | None, number: int, exchanges: int) -> None:
        """The network's round `number` begins, of so many exchanges, along `schedule` if there is one."""
        self._schedule = schedule
        begin, self._last = number * exchanges, (number + 1) * exchanges
        # At most one round ahead, or the steps are not those of this count.
        if schedule is not None and not begin <= self._step <= self._last:
            self._step = begin

    def next(self) -> tuple[bytes, float]:
        """Whom the next step names, if anybody, and the weight."""
        return (self._schedule and self._schedule.partner(self._me, self._step)) or (b"", 0.0)

    def serves(self, partner: bytes) -> bool:
        """Would an exchange that `partner` offers be the next step's? One that comes beside the schedule is none of
        this round, and one that comes a step early is that step's."""
        return self._schedule is None or self._step > self._last or partner == self.next()[0]

    def met(self, partner: bytes, *, initiator: bool) -> bool:
        """An exchange with `partner` begins; is it the next step's?"""
        counts = initiator or self.serves(partner)
        self._step += counts and self._schedule is not None and self._step <= self._last
        return counts
