"""When to request which chunk from a source, and when to repeat a request, on a link of any speed.

Over a link that takes longer for a chunk than the joiner waits, repeated requests only lengthen the queue. So patience
is learnt from answers. Each request has a number that its answers carry, which tells a slow link from a lossy one (as
the timestamps of RFC 7323 do). A repeated request for a lost chunk does not count as a slow answer. While nothing shows
that the link is slow, a source is asked several times before it is given up. The number of open requests starts at one.
A connection keeps the order, so an answer that overtakes another one shows that the other was lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from typing import Final

from gossipdp.protocol.patience import Patience, backed_off

__all__ = ["Requests"]

SILENT: Final = 4.0
"""Silence relative to the time of an answer, after which a source is given up."""
LEAST: Final = 4.0
"""Requests before a source is given up, unless the link may be slow."""
NUMBERS: Final = 1 << 32


class Requests:
    """Requests for chunks that are on their way to one source.

    Args:
        window: Open requests at most.
        again: Seconds without an answer, until one has come, after which the oldest request is repeated.
        silence: Seconds without any answer after which the source is given up.
    """

    def __init__(self, window: int, again: float, silence: float) -> None:
        self._most, self._silence = window, silence
        self._window = 1
        self._patience = Patience(again)
        self._repeats = self._given_up = 0
        self._asked: dict[int, float] = {}
        """Time of the last request for each chunk, oldest first."""
        self._queue: deque[int] = deque()
        """Chunks to ask for next, in order. Some may have come meanwhile, and some that are missing may not be here."""
        self._sent: dict[int, float] = {}
        """Time of each request by number, if its answers may still come."""
        self.number = 0
        """Of the last request, over all sources."""
        self._heard = 0.0

    def begin(self, now: float) -> None:
        """There is a new source.

        If the sources before were silent, this host's link may be slow, and the source is asked less often. A link that
        has carried a chunk is not taken for slow when one source was silent: that source may be dead.
        """
        self._asked.clear()
        self._queue.clear()
        self._sent.clear()
        self._window, self._heard = 1, now
        self._repeats = max(0, self._given_up - 1) if self._patience.usual else self._given_up

    def ask(self, missing: AbstractSet[int], working: Collection[int], now: float) -> tuple[int, ...]:
        """The chunks to request now, as request `number`.

        Args:
            missing: Chunks that are not taken in.
            working: Those of them that came and are being checked.
        """
        room, chosen = self._window - len(self._asked) - len(working), list[int]()
        while len(chosen) < room and (self._queue or self._refill(missing, working)):
            chunk = self._queue.popleft()
            if chunk in missing and chunk not in working and chunk not in self._asked:
                self._asked[chunk] = now
                chosen.append(chunk)
        if chosen:
            self._count(now)
        return tuple(chosen)

    def _refill(self, missing: AbstractSet[int], working: Collection[int]) -> bool:
        """Queue all chunks to be asked for. Returns whether there is any."""
        self._queue.extend(sorted(missing - self._asked.keys() - set(working)))
        return bool(self._queue)

    def _count(self, now: float) -> None:
        self.number = (self.number + 1) % NUMBERS
        self._sent[self.number] = now

    def came(self, chunk: int, number: int, now: float) -> None:
        """`chunk` has come, as an answer to request `number`."""
        self._heard, self._given_up, self._repeats = now, 0, 0
        if number in self._sent:
            self._patience.answered(now - self._sent[number])
            _drop_before(self._sent, number)  # they will not be answered any more
        if chunk not in self._asked:
            return
        self._queue.extendleft(reversed(_drop_before(self._asked, chunk)))  # they were lost
        del self._asked[chunk]
        self._window = min(self._most, self._window + 1)

    def repeat(self, now: float) -> tuple[int, ...]:
        """The chunk to request again now, as request `number`. Empty if it is not time."""
        if not self._asked or now < self._repeat_at():
            return ()
        oldest = next(iter(self._asked))
        del self._asked[oldest]
        self._asked[oldest] = now
        self._repeats += 1
        self._count(now)
        return (oldest,)

    def silent(self, now: float) -> bool:
        """Whether it is time to give the source up."""
        if now < self._silent_at():
            return False
        self._given_up += 1
        return True

    def timer(self) -> float:
        """When `repeat` or `silent` is to be called next."""
        return min(self._silent_at(), self._repeat_at()) if self._asked else self._silent_at()

    def _repeat_at(self) -> float:
        learnt = self._patience.seconds
        wait = backed_off(learnt, self._repeats)
        if self._patience.usual or not self._given_up:
            # Nothing shows that the link is slow: what does not come was lost.
            wait = min(wait, max(learnt, self._limit() / LEAST))
        return max(self._heard, *self._asked.values()) + wait

    def _silent_at(self) -> float:
        return self._heard + self._limit()

    def _limit(self) -> float:
        """Seconds of silence after which the source is given up."""
        return backed_off(max(self._silence, SILENT * self._patience.usual), self._given_up)


def _drop_before(table: dict[int, float], key: int) -> list[int]:
    """Drop the entries that are older than `key`. Returns them."""
    dropped = []
    while (earlier := next(iter(table))) != key:
        dropped.append(earlier)
        del table[earlier]
    return dropped
