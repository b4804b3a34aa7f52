"""The rules by which a peer chooses whose model it holds. Each is a function of values alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gossipdp.protocol.course.lines import strength
from gossipdp.protocol.transfer.claims import Held, Live
from gossipdp.protocol.wire.messages import Line

__all__ = ["VOICES", "goes_before", "keeps_parameters", "lags", "side_to_follow"]

VOICES: Final = 2
"""Peers that must hold a line of several members before it is followed, because one may lie."""


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
