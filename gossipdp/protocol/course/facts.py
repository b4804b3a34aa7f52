"""What the rules of the course rest on: facts of one moment, and what is remembered of the model."""

from __future__ import annotations

from dataclasses import dataclass

from gossipdp.protocol.course.table import Reason

__all__ = ["Age", "Facts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the other machines of this peer know at one moment."""

    clock: int
    """the network's clock in steps"""
    every: int
    """steps of a round"""
    waits: bool
    """a training process waits for the model"""
    begins: bool
    """a training process has the model"""
    ends: bool
    """the run of this peer ends: a model with own training is kept, unless it is a `spare` one"""
    spare: bool
    """the own steps are in the models of other members, which have trained on"""
    last: bool
    """the run ends, and no member trains any more: a copy is fetched a last time"""
    closing: bool
    """the run ends, and others come to their mean"""
    closes: bool
    """this peer comes to the mean with them: a fetched copy would change it"""


@dataclass(slots=True)
class Age:
    """What is remembered of the model here. Steps are those of the network's clock."""

    idle: bool = True
    """training makes no rounds"""
    trained: bool = False
    """the model contains steps of this peer's own training, and no fetched model has replaced it since"""
    behind: int = 0
    """steps that the model was already old when it came, or when training ended"""
    since: int = 0
    """the network's clock when the model came, or training ended"""
    tried: int = 0
    """the network's clock when the last fetch failed"""
    fetches: int = 0
    """fetches for the training process that waits or has made no round yet"""
    transfer: int = 0
    """steps that the last transfer took"""
    doubted: bool = False
    """the model is replaced before a training process begins with it, whatever its age"""

    def drift(self, clock: int) -> int:
        """Steps since the model came here, or since training ended; 0 while it makes rounds."""
        return clock - self.since if self.idle else 0

    def at(self, clock: int) -> int:
        """Age of the model, in steps."""
        return self.drift(clock) + self.behind

    def current(self, clock: int) -> int:
        """The network's clock when the model was current."""
        return max(0, clock - self.at(clock))

    def least(self, clock: int) -> int:
        """Network clock that a fetched model must exceed. Any model is better than one that is doubted."""
        return -1 if self.doubted else self.current(clock)

    # -- what happens to the model ----------------------------------------------------------------------------

    def trains(self, trains: bool, clock: int) -> None:
        """Training makes rounds from now on, or does not any more."""
        if trains == self.idle:
            self.behind = max(0, self.behind + self.drift(clock))
            self.idle, self.trained, self.since, self.fetches = not trains, True, clock, 0

    def mixed(self) -> None:
        """The model was averaged with that of a partner in step, which halves its age."""
        self.behind //= 2

    def came(self, behind: int, transfer: int, clock: int) -> None:
        """A fetched model is here, as it was `behind` steps ago. transfer: steps that it took."""
        self.behind, self.since, self.transfer = max(0, behind), clock, max(0, transfer)
        self.trained = self.doubted = False

    def arrives(self, *, doubted: bool) -> None:
        """A training process attaches. doubted: its script has undone what it made of the model here."""
        self.fetches, self.doubted = 0, doubted

    def stepped(self, steps: int, clock: int) -> None:
        """This peer's own training moved the network's clock by `steps`. The model contains them."""
        self.since = min(clock, self.since + steps)

    def kept(self, clock: int) -> None:
        """The model is that of a live training process now. It is as new as the network's clock."""
        self.behind, self.since, self.transfer, self.trained = 0, clock, 0, True

    def attempted(self, reason: Reason | None, facts: Facts, *, complete: bool) -> None:
        """A fetch for `reason` is over. `complete`: a newer model is here.

        A training process that came during an idle fetch may have one of its own if that fetch failed.
        """
        self.fetches += facts.waits or facts.begins
        if not complete and (reason is Reason.LATE or not facts.waits):
            self.tried = facts.clock
