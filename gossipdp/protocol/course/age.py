"""How old the model of a peer that does not train is, and when the peer fetches the network's model anew.

Such a peer is idle: it has no training process, or one that has not made a round yet. It makes no exchanges, because an
average with an old model would pull training peers back. It keeps a spare copy of the model instead. It fetches the
model anew every `SPARE_ROUNDS` rounds, and before a training process begins with a model older than `MOST_ROUNDS`
rounds. If two sides of the network are just meeting, the process first waits until it is known whose model goes on.
Such a process may then need long for its first round (data, a compiler, slow steps). Until then each fetch doubles the
age that the next one waits for, up to `SPARE_ROUNDS`, because only the last fetch is of use. A peer whose transfers
take longer than that cannot do better. So age counts only past twice the duration of the last transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gossipdp.protocol.course.facts import Facts
from gossipdp.protocol.course.reasons import Reason

__all__ = ["MOST_ROUNDS", "SPARE_ROUNDS", "Age", "more_than_a_copy", "outdated", "renewal", "stale"]

MOST_ROUNDS: Final = 2
"""Age in rounds up to which a training process begins with the model that is here."""
SPARE_ROUNDS: Final = 10
"""Age in rounds up to which an idle peer keeps its model. A fetch costs the bytes of four exchanges."""
MOST_FETCHES: Final = 2
"""Fetches for one training process. The second one helps if a source is lost during the first."""
TRANSFERS: Final = 2
"""Age in transfers up to which a new transfer would gain little."""


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


def more_than_a_copy(age: Age, *, ends: bool) -> bool:
    """Whether this peer trains, or has ended its part of the run."""
    return not age.idle or (age.trained and ends)


def outdated(age: Age, clock: int, every: int) -> bool:
    """Whether the model is too old for a training process to begin with it, if a newer one can be had."""
    return age.idle and age.at(clock) > max(MOST_ROUNDS * every, TRANSFERS * age.transfer)


def stale(age: Age, clock: int, every: int, *, ends: bool, spare: bool) -> bool:
    """Whether the run of this peer ends with a model that is too old to be a term of the final mean."""
    if not age.idle or not ends or _final(age, ends=ends, spare=spare):
        return False
    return age.trained or clock - max(age.tried, age.since) > MOST_ROUNDS * every


def renewal(age: Age, facts: Facts) -> Reason | None:
    """Why an idle peer fetches the model anew now: LATE if a training process waits for it, else IDLE. Or None."""
    if not age.idle or facts.closes or _final(age, ends=facts.ends, spare=facts.spare):
        return None
    rounds, transfers = SPARE_ROUNDS, 2 * TRANSFERS
    if facts.waits or facts.begins:
        longer = 1 if facts.waits else 1 << min(age.fetches, SPARE_ROUNDS)
        rounds, transfers = min(rounds, longer * MOST_ROUNDS), min(transfers, longer * TRANSFERS)
    limit = max(rounds * facts.every, transfers * age.transfer)
    if facts.last or facts.closing:
        limit = 0 if facts.last else MOST_ROUNDS * facts.every
    fresh = not (age.doubted and facts.waits) and facts.clock - max(age.tried, age.current(facts.clock)) <= limit
    if fresh or (facts.waits and age.fetches >= MOST_FETCHES):
        return None
    return Reason.LATE if facts.waits else Reason.IDLE


def _final(age: Age, *, ends: bool, spare: bool) -> bool:
    """Whether the final model is the mean of this one and others, so that no other replaces it."""
    return age.trained and ends and not spare
