"""p, the share of an increment in what all publish: fixed by its sender, so that shares sum to about 1 for any number
of peers.

    p = samples (span / steps) / S        S: samples an epoch of all, as the last closed epochs had it

`samples` are those of the increment, `steps` those of the network's clock since the sender's last one, `span` those of
an epoch: so many samples an epoch does this sender make. A round need not be as long as an epoch for that. Where the
sender has made more steps than it has heard of the network, `steps` are its own: the network is not slower than it. S
is a mean over the last epochs, for an epoch may have two rounds of a peer, or none. Who has come since then is not in
S: it is taken for as fast as the others, or a network that grows from 1 to 2 would for some epochs move twice as far as
it should. An epoch in which somebody came has some of that one's samples, and does not tell how many it makes: S is of
those after it, or while there are none of those before. Until anything is closed, all are taken for equally fast.

A host that takes twice the steps with twice the samples counts four times: once by its share, and once by its progress,
which is twice as long. The weighting is by samples all the same, for p knows nothing of the length of an increment.

What one origin claims beyond MOST_TIMES what the middle one made is not counted, be it the own: a liar alone in an
epoch would leave the others without a share for as long as the mean goes back, and one that is far ahead of all, if it
is counted on one side alone, would make shares sum to more than 1.

What receivers do follows from p alone, so none of this has to be agreed on. No message and no vector is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gossipdp.protocol.epidemic.epochs import MOST_TIMES
from gossipdp.protocol.epidemic.events import EpochClosed

__all__ = ["Shares"]

MEAN: Final = 4
"""closed epochs, at the most, over which S is a mean"""


class Shares:
    """Args: span: steps of the network's clock in an epoch."""

    def __init__(self, span: int) -> None:
        self._span = span
        self._closed: dict[int, EpochClosed] = {}

    def closed(self, event: EpochClosed) -> None:
        """An epoch is as good as complete."""
        self._closed[event.epoch] = event
        # One more tells whether somebody came in the next.
        for epoch in sorted(self._closed)[: -MEAN - 1]:
            del self._closed[epoch]

    def forget(self) -> None:
        """What there was before says nothing any more."""
        self._closed.clear()

    def of(self, samples: int, steps: int, members: int) -> float:
        """p, above 0 and at most 1. members: who publish, this peer included, as far as it knows."""
        counting = [event for _, event in sorted(self._closed.items())]
        while counting and not counting[0].samples:
            counting.pop(0)  # before there was anybody
        if not counting or not samples:
            return 1.0 / members
        most = _most(counting)
        counting = [replace(event, samples=min(event.samples, most * max(1, event.origins))) for event in counting]
        own = min(samples * self._span / max(1, steps), most)
        return min(1.0, own / _all_samples(counting, members))


def _most(counting: Sequence[EpochClosed]) -> int:
    """That one member may make in an epoch, by those of the middle one in the middle of these."""
    middles = sorted(event.middle for event in counting if event.middle)
    return MOST_TIMES * middles[(len(middles) - 1) // 2]


def _all_samples(counting: Sequence[EpochClosed], members: int) -> float:
    """S, from closed epochs in order, the first of which has samples."""
    grown = max((number for number in range(1, len(counting)) if _grew(counting, number)), default=0)
    if grown and grown + 1 == len(counting):
        return members * max(event.samples / max(1, event.origins) for event in counting[:grown])
    since = counting[grown + 1 :] if grown else counting[-MEAN:]
    if not any(event.samples for event in since):
        since = counting[:1]
    newcomers = max(1.0, members / max(event.origins for event in since))
    return newcomers * sum(event.samples for event in since) / len(since)


def _grew(counting: Sequence[EpochClosed], number: int) -> bool:
    """Was this the first epoch of one more than ever before?"""
    return counting[number].origins > max(event.origins for event in counting[:number])
