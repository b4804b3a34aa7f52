"""A peer that does not train: how old its model is, and when it fetches the network's model anew.

Such a peer is idle: it has no training process, or one that has not made a round yet. It makes no exchanges: an average
with an old model would pull those that train back, and it has no steps of its own to give. It stays a spare instead. It
fetches the model anew every `SPARE_ROUNDS` rounds, and always before a training process begins with a model older than
`MOST_ROUNDS` rounds; so it does until that process has made its first round, which may take long (data, a compiler). A
transfer that takes longer than that cannot do better, so age counts only past twice what the last transfer took, from
its last source on. No vector or message is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["MOST_ROUNDS", "SPARE_ROUNDS", "Standby"]

MOST_ROUNDS: Final = 2
"""age in rounds up to which a training process begins with the model that is here"""
SPARE_ROUNDS: Final = 10
"""age in rounds up to which an idle peer keeps its model: a fetch has the bytes of four exchanges"""
MOST_FETCHES: Final = 2
"""fetches for one training process. The second one is for a source that is lost during the first."""
TRANSFERS: Final = 2
"""age in transfers up to which a new one would bring little"""


class Standby:
    """Args:

    clock: the network's, in steps.
    every: steps a round.
    behind: steps that the model is older than it was taken to be when it came, or when training ended.
    waits: a training process waits for the model.
    begins: a training process has the model.
    givers: members to fetch from, those that train if any does.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], int],
        every: Callable[[], int],
        behind: Callable[[], int],
        waits: Callable[[], bool],
        begins: Callable[[], bool],
        givers: Callable[[], Sequence[bytes]],
    ) -> None:
        self._clock, self._every, self._behind, self._waits, self._begins = clock, every, behind, waits, begins
        self.givers = givers
        self.idle = True
        self.trained = False
        """the model has steps of a training process of this peer in it, and no fetched one has replaced it since"""
        self._since = self._tried = 0
        """network clock when the model came or training ended, and when the last fetch failed"""
        self._fetches = 0
        """for the training process that waits"""
        self.transfer = 0
        """steps of the network's clock that the last transfer took"""

    @property
    def drift(self) -> int:
        """Steps of the network's clock since the model came here, or since training ended; 0 while it makes rounds."""
        return self._clock() - self._since if self.idle else 0

    @property
    def age(self) -> int:
        """Steps of the network's clock that the model here is old."""
        return self.drift + self._behind()

    @property
    def clock(self) -> int:
        """The network's clock when the model here was current, in steps."""
        return max(0, self._clock() - self.age)

    @property
    def reason(self) -> str:
        """Why the model is to be fetched anew now: "late" (a training process waits for it), "idle", or ""."""
        if not self.idle:
            return ""
        waits = self._waits()
        soon = waits or self._begins()
        rounds, transfers = (MOST_ROUNDS, TRANSFERS) if soon else (SPARE_ROUNDS, 2 * TRANSFERS)
        limit = max(rounds * self._every(), transfers * self.transfer)
        fresh = self._clock() - max(self._tried, self.clock) <= limit
        if fresh or (waits and self._fetches >= MOST_FETCHES):
            return ""
        return ("late" if waits else "idle") if self.givers() else ""

    def trains(self, trains: bool) -> int:
        """Training makes rounds from now on, or no more. Returns the steps by which the model has grown older."""
        drift = self.drift
        if trains == self.idle:
            self.idle, self.trained, self._since, self._fetches = not trains, True, self._clock(), 0
        return drift

    def came(self, transfer: int) -> None:
        """The model is another's now; the transfer took so many steps of the network's clock."""
        self._since, self.transfer, self.trained = self._clock(), max(0, transfer), False

    def arrives(self) -> None:
        """A training process is here."""
        self._fetches = 0

    def stepped(self, steps: int) -> None:
        """This peer's own training, which is in the model, moved the network's clock by `steps`."""
        self._since = min(self._clock(), self._since + steps)

    def kept(self) -> None:
        """The model is that of a live training process now, and as new as the network's clock."""
        self._since, self.transfer, self.trained = self._clock(), 0, True

    def tried(self, reason: str, *, complete: bool) -> None:
        """A fetch for `reason` is over; `complete`: a newer model is here. A training process that came during an idle
        fetch which failed has one of its own."""
        waits = self._waits()
        self._fetches += waits
        if not complete and (reason == "late" or not waits):
            self._tried = self._clock()
