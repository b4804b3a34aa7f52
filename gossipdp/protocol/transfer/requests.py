"""When to ask a source for which chunk, and when to ask again, on a link of any speed.

Over a link that takes longer for a chunk than one had patience for, asking again only lengthens the queue. So patience
is learnt from answers, as TCP learns its own (Jacobson, "Congestion avoidance and control", SIGCOMM 1988). Every asking
has a number that its answers carry, so that a slow link is told from a lossy one (as by the timestamps of RFC 7323):
what was lost and asked for again says nothing of how long an answer takes. While nothing says that the link is slow, a
source is asked several times before it is given up, for words may be lost. The number of chunks asked for at once
starts at one, and what was asked for later and has come earlier says that the rest was lost. No message and no clock is
here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["Flow"]

MARGIN: Final = 2.0
"""patience relative to the last answer's time"""
MOST: Final = 16.0
"""patience grows up to so many times by silence alone"""
LEAST: Final = 4.0
"""times that a source is asked, at the least, before it is given up, but for a link that may be slow"""
NUMBERS: Final = 1 << 32


class Flow:
    """Args:

    window: chunks asked for at once, at the most.
    again: seconds without an answer, until one has come, after which the oldest chunk is asked for again.
    silence: seconds without any answer after which the source is given up.
    """

    def __init__(self, window: int, again: float, silence: float) -> None:
        self._most, self._again, self._silence = window, again, silence
        self._window = 1
        self._usual = 0.0
        """time of an answer, when last measured"""
        self._repeats = self._given_up = 0
        self._asked: dict[int, float] = {}
        """when each chunk was asked for last, in the order of asking"""
        self._sent: dict[int, float] = {}
        """when the askings were, by number, whose answers may still come"""
        self.number = 0
        """of the last asking, of all sources"""
        self._heard = 0.0

    def begin(self, now: float) -> None:
        """There is a new source. If those before were silent it may be this host's link, and is asked less often. Where
        that has carried a chunk one that is silent may be dead; two in a row are the link."""
        self._asked.clear()
        self._sent.clear()
        self._window, self._heard = 1, now
        self._repeats = max(0, self._given_up - 1) if self._usual else self._given_up

    def ask(self, missing: Iterable[int], working: int, now: float) -> tuple[int, ...]:
        """Which of `missing` to ask for now, as asking `number`, while `working` that came are not taken in yet."""
        room = max(0, self._window - len(self._asked) - working)
        chosen = tuple(sorted(chunk for chunk in missing if chunk not in self._asked)[:room])
        for chunk in chosen:
            self._asked[chunk] = now
        if chosen:
            self._count(now)
        return chosen

    def _count(self, now: float) -> None:
        self.number = (self.number + 1) % NUMBERS
        self._sent[self.number] = now

    def came(self, chunk: int, number: int, now: float) -> None:
        """`chunk` has come, as an answer to that asking."""
        self._heard, self._given_up, self._repeats = now, 0, 0
        if number in self._sent:
            self._usual = now - self._sent[number]
            for earlier in [*self._sent]:
                if earlier == number:
                    break
                # A connection keeps the order: these will not be answered any more.
                del self._sent[earlier]
        if chunk not in self._asked:
            return
        for earlier in [*self._asked]:
            if earlier == chunk:
                break
            # A connection keeps the order: what it overtook was lost with an earlier one.
            del self._asked[earlier]
        del self._asked[chunk]
        self._window = min(self._most, self._window + 1)

    def repeat(self, now: float) -> int | None:
        """The chunk to be asked for once more now, as asking `number`, if it is time for that."""
        if not self._asked or now < self._repeat_at():
            return None
        oldest = next(iter(self._asked))
        del self._asked[oldest]
        self._asked[oldest] = now
        self._repeats += 1
        self._count(now)
        return oldest

    def silent(self, now: float) -> bool:
        """Is it time to give the source up?"""
        if now < self._silent_at():
            return False
        self._given_up += 1
        return True

    def timer(self) -> float:
        return min(self._silent_at(), self._repeat_at()) if self._asked else self._silent_at()

    def _repeat_at(self) -> float:
        learnt = max(self._again, MARGIN * self._usual)
        patience = learnt * min(MOST, 2.0**self._repeats)
        if self._usual or not self._given_up:
            # Nothing says that the link is slow: what does not come was lost.
            patience = min(patience, max(learnt, self._limit() / LEAST))
        return max(self._heard, *self._asked.values()) + patience

    def _silent_at(self) -> float:
        return self._heard + self._limit()

    def _limit(self) -> float:
        """Seconds of silence after which the source is given up."""
        return max(self._silence, 2.0 * MARGIN * self._usual) * min(MOST, 2.0**self._given_up)
