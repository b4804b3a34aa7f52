"""p, the share of an increment. Its sender fixes it so that all shares sum to about 1 for any number of peers.

    p = samples (span / steps) / S        S: samples of all peers in an epoch, a mean over the last closed epochs

`samples` are those of the increment. `steps` counts the network's clock since the sender's last increment, or the
sender's own steps if it has made more, because the network is not slower than it. `span` is the steps of an epoch. p is
thus the sender's samples in an epoch over those of all, and a round need not be as long as an epoch.

S is a mean, because an epoch may hold two rounds of a peer, or none. A newcomer is not in S yet. It counts as one more
peer of average speed; without that a network that grows from 1 to 2 would move twice too far for some epochs. The epoch
in which a newcomer appears holds only part of its samples. S therefore uses the epochs after it, or those before it
while there are none. Before the first closed epoch all peers count as equally fast.

A host with twice the steps and samples has four times the effect: its share and its progress both double. That is a
weighting by samples all the same, because p knows nothing of an increment's length.

Samples of an origin beyond MOST_TIMES those of the middle peer do not count, also of this peer itself. A liar alone in
an epoch would otherwise leave other peers without a share for as long as the mean remembers it. A peer far ahead of all
others, counted on one side only, would make shares sum to more than 1.

Receivers use only p, so peers need not agree on any of this. No message and no vector is handled here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gossipdp.protocol.epidemic.epoch_set import MOST_TIMES
from gossipdp.protocol.epidemic.events import EpochClosed

__all__ = ["Shares"]

MEAN: Final = 4
"""most closed epochs in the mean S"""


class Shares:
    """The closed epochs that one peer remembers.

    Args:
        span: steps of the network's clock in an epoch.
    """

    def __init__(self, span: int) -> None:
        self._span = span
        self._closed: dict[int, EpochClosed] = {}

    def closed(self, event: EpochClosed) -> None:
        """An epoch has closed, and is almost complete."""
        self._closed[event.epoch] = event
        # One epoch more shows whether a newcomer appeared in the next one.
        for epoch in sorted(self._closed)[: -MEAN - 1]:
            del self._closed[epoch]

    def forget(self) -> None:
        """Forget all epochs: a new founding begins."""
        self._closed.clear()

    def of(self, samples: int, steps: int, members: int) -> float:
        """The share p of an own increment, above 0 and at most 1.

        Args:
            samples: samples of the increment.
            steps: steps since the last increment.
            members: known peers that publish, this one included.
        """
        counting = [event for _, event in sorted(self._closed.items())]
        while counting and not counting[0].samples:
            counting.pop(0)  # before the first increment
        if not counting or not samples:
            return 1.0 / members
        most = _most(counting)
        counting = [replace(event, samples=min(event.samples, most * max(1, event.origins))) for event in counting]
        own = min(samples * self._span / max(1, steps), most)
        return min(1.0, own / _all_samples(counting, members))


def _most(counting: Sequence[EpochClosed]) -> int:
    """Most samples of one member in an epoch that count: MOST_TIMES the median of the epochs' middles."""
    middles = sorted(event.middle for event in counting if event.middle)
    return MOST_TIMES * middles[(len(middles) - 1) // 2]


def _all_samples(counting: Sequence[EpochClosed], members: int) -> float:
    """S, from closed epochs in order. The first must have samples."""
    grown = max((number for number in range(1, len(counting)) if _grew(counting, number)), default=0)
    if grown and grown + 1 == len(counting):
        return members * max(event.samples / max(1, event.origins) for event in counting[:grown])
    since = counting[grown + 1 :] if grown else counting[-MEAN:]
    if not any(event.samples for event in since):
        since = counting[:1]
    newcomers = max(1.0, members / max(event.origins for event in since))
    return newcomers * sum(event.samples for event in since) / len(since)


def _grew(counting: Sequence[EpochClosed], number: int) -> bool:
    """Whether this epoch has more origins than all before it."""
    return counting[number].origins > max(event.origins for event in counting[:number])
