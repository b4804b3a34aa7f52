"""A peer that does not train: how old its model is, and when it fetches the network's model anew.

Such a peer is idle: it has no training process, or one that has not made a round yet. It makes no exchanges, because an
average with an old model would pull training peers back. It keeps a spare copy of the model instead. It fetches the
model anew every `SPARE_ROUNDS` rounds, and before a training process begins with a model older than `MOST_ROUNDS`
rounds. If two sides of the network are just meeting, the process first waits until it is known whose model goes on.
Such a process may then need long for its first round (data, a compiler, slow steps). Until then each fetch doubles the
age that the next one waits for, up to `SPARE_ROUNDS`, because only the last fetch is of use. A peer whose transfers
take longer than that cannot do better. So age counts only past twice the duration of the last transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gossipdp.protocol.partition.reasons import Reason

__all__ = ["MOST_ROUNDS", "SPARE_ROUNDS", "Standby"]

MOST_ROUNDS: Final = 2
"""Age in rounds up to which a training process begins with the model that is here."""
SPARE_ROUNDS: Final = 10
"""Age in rounds up to which an idle peer keeps its model. A fetch costs the bytes of four exchanges."""
MOST_FETCHES: Final = 2
"""Fetches for one training process. The second one helps if a source is lost during the first."""
TRANSFERS: Final = 2
"""Age in transfers up to which a new transfer would gain little."""


class Standby:
    """Follows the network while no training process makes rounds.

    Args:
        clock: The network's clock in steps.
        every: Steps of a round.
        behind: Steps that the model was already old when it came, or when training ended.
        waits: Whether a training process waits for the model.
        begins: Whether a training process has the model.
        givers: Members to fetch from.
        ends: Whether the run of this peer ends. A model with own training is then kept, unless it is a `spare` one.
        spare: Whether its own steps are in the models of other members, which have trained on.
        last: Whether it ends and no member trains any more. A copy is then fetched a last time.
        closing: Whether it ends and others come to their mean.
        closes: Whether this peer comes to the mean with them. A fetched copy would change it.
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
        ends: Callable[[], bool] = lambda: False,
        spare: Callable[[], bool] = lambda: False,
        last: Callable[[], bool] = lambda: False,
        closing: Callable[[], bool] = lambda: False,
        closes: Callable[[], bool] = lambda: False,
    ) -> None:
        self._clock, self._every, self._behind, self._waits, self._begins = clock, every, behind, waits, begins
        self.givers, self._ends, self._closes = givers, ends, closes
        self._spare, self._last, self._closing = spare, last, closing
        self.idle = True
        self.trained = False
        """The model contains steps of this peer's own training, and no fetched model has replaced it since."""
        self._since = 0
        """The network's clock when the model came, or training ended."""
        self._tried = 0
        """The network's clock when the last fetch failed."""
        self._fetches = 0
        """Fetches for the training process that waits or has made no round yet."""
        self.transfer = 0
        """Steps of the network's clock that the last transfer took."""
        self._doubted = False
        """The model here is replaced before a training process begins with it, whatever its age."""

    @property
    def drift(self) -> int:
        """Steps of the network's clock since the model came here, or since training ended; 0 while it makes rounds."""
        return self._clock() - self._since if self.idle else 0

    @property
    def age(self) -> int:
        """Age of the model here, in steps of the network's clock."""
        return self.drift + self._behind()

    @property
    def clock(self) -> int:
        """The network's clock when the model here was current, in steps."""
        return max(0, self._clock() - self.age)

    @property
    def least(self) -> int:
        """Network clock that a fetched model must exceed. Any model is better than one that is doubted."""
        return -1 if self._doubted else self.clock

    @property
    def counts(self) -> bool:
        """Whether the model is more than a copy: this peer trains, or has ended its part of the run."""
        return not self.idle or (self.trained and self._ends())

    @property
    def outdated(self) -> bool:
        """Whether the model is too old for a training process to begin with it, if a newer one can be had."""
        return self.idle and self.age > max(MOST_ROUNDS * self._every(), TRANSFERS * self.transfer)

    @property
    def _keeps(self) -> bool:
        """Whether the model is one of those that the final model is the mean of, so that no other replaces it."""
        return self.trained and self._ends() and not self._spare()

    @property
    def stale(self) -> bool:
        """Whether the run of this peer ends with a model that is too old to be a term of the final mean."""
        if not self.idle or not self._ends() or self._keeps:
            return False
        return self.trained or self._clock() - max(self._tried, self._since) > MOST_ROUNDS * self._every()

    @property
    def reason(self) -> Reason | None:
        """Why this peer fetches the model anew now: LATE if a training process waits for it, else IDLE. Or None."""
        if not self.idle or self._keeps or self._closes():
            return None
        waits = self._waits()
        rounds, transfers = SPARE_ROUNDS, 2 * TRANSFERS
        if waits or self._begins():
            longer = 1 if waits else 1 << min(self._fetches, SPARE_ROUNDS)
            rounds, transfers = min(rounds, longer * MOST_ROUNDS), min(transfers, longer * TRANSFERS)
        limit = max(rounds * self._every(), transfers * self.transfer)
        if self._last() or self._closing():
            limit = 0 if self._last() else MOST_ROUNDS * self._every()
        fresh = not (self._doubted and waits) and self._clock() - max(self._tried, self.clock) <= limit
        if fresh or (waits and self._fetches >= MOST_FETCHES):
            return None
        return (Reason.LATE if waits else Reason.IDLE) if self.givers() else None

    def trains(self, trains: bool) -> int:
        """Training makes rounds from now on, or does not any more. Returns the steps by which the model has aged."""
        drift = self.drift
        if trains == self.idle:
            self.idle, self.trained, self._since, self._fetches = not trains, True, self._clock(), 0
        return drift

    def came(self, transfer: int) -> None:
        """A fetched model is here. `transfer`: steps of the network's clock that it took."""
        self._since, self.transfer, self.trained = self._clock(), max(0, transfer), False
        self._doubted = False

    def arrives(self, *, doubted: bool = False) -> None:
        """A training process attaches. doubted: its script has undone what it made of the model here."""
        self._fetches, self._doubted = 0, doubted

    def stepped(self, steps: int) -> None:
        """This peer's own training moved the network's clock by `steps`. The model contains them."""
        self._since = min(self._clock(), self._since + steps)

    def kept(self) -> None:
        """The model is that of a live training process now. It is as new as the network's clock."""
        self._since, self.transfer, self.trained = self._clock(), 0, True

    def tried(self, reason: Reason | None, *, complete: bool) -> None:
        """A fetch for `reason` is over. `complete`: a newer model is here.

        A training process that came during an idle fetch may have one of its own if that fetch failed.
        """
        waits = self._waits()
        self._fetches += waits or self._begins()
        if not complete and (reason is Reason.LATE or not waits):
            self._tried = self._clock()
