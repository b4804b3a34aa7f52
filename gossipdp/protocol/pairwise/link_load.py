"""How much of an exchange may be on this peer's link at once, so that something of it gets through in time.

A chunk that is under way for longer than its asker has patience is asked for, and sent, a second time; one that
outlasts a round is cut off, and delays what comes after it none the less. On a link that slow an exchange at full size
mixes nothing, and neither does the next, for it waits behind the leavings of the first. The state that a joiner
fetches, 16 bits a parameter, shows what the link carries before anything is exchanged over it; later, exchanges that
came to nothing do. As in TCP one falls fast and rises slowly (Jacobson, "Congestion avoidance and control", SIGCOMM
1988). No message is here, and nothing of what the bits are for.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

__all__ = ["Load"]

STATE_BITS: Final = 16
"""a parameter, of the state, and of the finest exchange"""
IN_VAIN: Final = 2
"""exchanges in a row that mixed nothing, from which on the next is made of less: a partner may also have died"""
GROWS: Final = 4
"""windows that an exchange must mix for the next to be made of more again; or several, where a round is too short for
that at one chunk after the other"""
SLOWLY: Final = 64
"""windows that several must mix, at the most: it doubles whenever more was too much"""
REMEMBERED: Final = 64
"""chunks of the state whose times are kept"""


class Load:
    """Args:

    window: chunks open at once, at the most.
    bits: a parameter, at the least.
    patience: seconds after which what has not come is asked for again.
    """

    def __init__(self, window: int, bits: int, patience: float) -> None:
        self._most, self._least, self._patience = window, bits, patience
        self.window = window
        """chunks to have open at once"""
        self._bits = STATE_BITS
        self._in_vain = 0
        self._wanted, self._mixed, self._grew = GROWS, 0, False
        """windows that several exchanges must mix for more, chunks they have, and whether it was ever more than so"""
        self._times: deque[float] = deque(maxlen=REMEMBERED)
        """between one chunk of the state and the next"""
        self._came: float | None = None

    def bits(self, wished: int) -> int:
        """As many of the `wished` bits a parameter as the link seems to carry."""
        return min(wished, max(self._bits, self._least))

    def carried(self, now: float) -> None:
        """A chunk of the state has come."""
        if self._came is not None:
            self._times.append(now - self._came)
        self._came = now

    def fetched(self) -> None:
        """The state is here. What is asked for at once is to come before it would be asked for again."""
        if self._times:
            seconds = median(self._times) / STATE_BITS
            self._bits = STATE_BITS
            while self._bits > self._least and seconds * self._bits > self._patience:
                self._bits //= 2
            fitting = self._patience / max(seconds * self._bits, self._patience / self._most)
            self.window = max(1, int(fitting))
        self._times.clear()
        self._came = None

    def in_vain(self) -> None:
        """An exchange has mixed nothing."""
        self._in_vain += 1
        if self._in_vain >= IN_VAIN:
            if self._grew:
                self._wanted = min(2 * self._wanted, SLOWLY)
            self._mixed, self._grew = 0, False
            self.window, self._bits = 1, max(self._bits // 2, 1)

    def mixed(self, chunks: int, of: int) -> None:
        """An exchange has mixed so many of a model's chunks."""
        self._in_vain = 0
        self._mixed += chunks
        whole = chunks >= min(GROWS * self.window, of)
        if whole or self._mixed >= self._wanted * self.window:
            self._wanted = GROWS if whole else self._wanted
            self._mixed, self._grew = 0, True
            self.window, self._bits = min(2 * self.window, self._most), min(2 * self._bits, STATE_BITS)
