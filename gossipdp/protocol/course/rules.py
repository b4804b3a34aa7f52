"""The rules by which a peer chooses whose model it holds. Each is a function of values alone.

A peer is idle if it has no training process, or one that has not made a round yet. It makes no exchanges, because an
average with an old model would pull training peers back. It keeps a spare copy of the model instead. It fetches the
model anew every `SPARE_ROUNDS` rounds, and before a training process begins with a model older than `MOST_ROUNDS`
rounds. If two sides of the network are just meeting, the process first waits until it is known whose model goes on.
Such a process may then need long for its first round (data, a compiler, slow steps). Until then each fetch doubles the
age that the next one waits for, up to `SPARE_ROUNDS`, because only the last fetch is of use. A peer whose transfers
take longer than that cannot do better. So age counts only past twice the duration of the last transfer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from gossipdp.protocol.course.facts import Age, Facts
from gossipdp.protocol.course.table import Reason
from gossipdp.protocol.transfer.claims import Held, Live
from gossipdp.protocol.wire.messages import Line

__all__ = [
    "MOST_ROUNDS",
    "NO_LINE",
    "SPARE_ROUNDS",
    "VOICES",
    "goes_before",
    "keeps_parameters",
    "lags",
    "more_than_a_copy",
    "outdated",
    "renewal",
    "side_to_follow",
    "stale",
    "strength",
]

VOICES: Final = 2
"""Peers that must hold a line of several members before it is followed, because one may lie."""
MOST_ROUNDS: Final = 2
"""Age in rounds up to which a training process begins with the model that is here."""
SPARE_ROUNDS: Final = 10
"""Age in rounds up to which an idle peer keeps its model. A fetch costs the bytes of four exchanges."""
MOST_FETCHES: Final = 2
"""Fetches for one training process. The second one helps if a source is lost during the first."""
TRANSFERS: Final = 2
"""Age in transfers up to which a new transfer would gain little."""

NO_LINE: Final = Line(0, 0, 0, 0, b"")

Strength: TypeAlias = tuple[bool, int, int, int, bytes, int]


def strength(line: Line) -> Strength:
    """Sort key of lines: training, members, clock, rounds, then the lower id of the maker, then the generation."""
    return (
        line.trains,
        line.members,
        line.clock,
        line.rounds,
        bytes(255 - byte for byte in line.maker),
        line.generation,
    )


def side_to_follow(own: Line, voices: Mapping[Line, Sequence[bytes]], *, company: bool, few: bool) -> Line | None:
    """The line to follow of those across the gap: the greatest proven one, if it is greater than `own`. Else None.

    Two voices prove a line of several members. One voice is enough for a peer without company if the line has one
    member, and where only one member in the network has a voice (protocol section 9).

    Args:
        own: This peer's line.
        voices: Line -> the members that hold it, are not giving up their model, and whose word counts.
        company: This peer hears another member of its side.
        few: No more than one member can be heard, or has a voice.
    """
    enough, least = 1 if few else VOICES, VOICES if company else 1
    greater = {line: holders for line, holders in voices.items() if strength(line) > strength(own)}
    proven = [line for line, holders in greater.items() if len(holders) >= min(max(line.members, least), enough)]
    return max(proven, key=strength, default=None)


def lags(steps: int, usual: int, transfer: float) -> bool:
    """Whether a peer is too far behind: `usual` steps, or two transfers if these take longer (algorithms section 8).

    Args:
        steps: of the network's clock since its last exchange or transfer.
        usual: steps of three rounds.
        transfer: steps that a transfer is expected to take.
    """
    return steps > max(usual, 2.0 * transfer)


def goes_before(mine: Held, theirs: Held, *, lower: bool) -> bool:
    """Whether another peer's checkpoint goes before this peer's: the later one does (protocol section 8).

    Args:
        lower: The other peer has the lower id, which decides between equal ones.
    """
    return theirs > mine or (theirs == mine and lower)


def keeps_parameters(live: Live, clock: int, every: int, *, others_train: bool) -> bool:
    """Whether a live training process keeps its parameters, now that a model is here (protocol section 8).

    Args:
        clock: the network's, in steps.
        every: steps of a round.
        others_train: other peers make the network's model.
    """
    if live.loaded:
        return not others_train
    return live.clock + 2 * every >= clock


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
