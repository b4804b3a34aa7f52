"""How many chunks, of how many bits, an exchange may have on this peer's link at once.

A chunk that takes longer than the receiver's patience is sent a second time. One that outlasts a round is cut off, and
still delays later chunks. On such a slow link exchanges at full size mix nothing. The model that a joiner fetches, 16
bits a parameter, shows early what the link carries. Later, exchanges that mixed nothing show it. As in TCP, the load
falls fast and rises slowly (Jacobson, "Congestion avoidance and control", SIGCOMM 1988). No message is handled here.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

__all__ = ["LinkLoad"]

STATE_BITS: Final = 16
"""bits a parameter of a transfer, and of the finest exchange"""
IN_VAIN: Final = 2
"""exchanges in a row that mix nothing before the load falls; a single one may be due to a lost partner"""
GROWS: Final = 4
"""windows that one exchange must mix before the load rises; several together will do where rounds are too short for
that"""
SLOWLY: Final = 64
"""windows that several exchanges must mix, at most; the number doubles whenever a rise was too much"""
REMEMBERED: Final = 64
"""chunks of a transfer whose times are kept"""


class LinkLoad:
    """Window and bits that this peer's link carries.

    Args:
        window: chunks open at once, at most.
        bits: a parameter, at least.
        patience: seconds after which a missing chunk is asked for again.
    """

    def __init__(self, window: int, bits: int, patience: float) -> None:
        self._most, self._least, self._patience = window, bits, patience
        self.window = window
        """chunks that may be open at once"""
        self._bits = STATE_BITS
        self._in_vain = 0
        self._wanted, self._mixed, self._grew = GROWS, 0, False
        """windows that several exchanges must mix before a rise, chunks they have mixed, whether the load has risen
        since it last fell"""
        self._times: deque[float] = deque(maxlen=REMEMBERED)
        """seconds between one chunk of a transfer and the next"""
        self._came: float | None = None

    def bits(self, wished: int) -> int:
        """Bits a parameter that the link seems to carry, at most `wished`."""
        return min(wished, max(self._bits, self._least))

    def carried(self, now: float) -> None:
        """A chunk of a transfer has arrived."""
        if self._came is not None:
            self._times.append(now - self._came)
        self._came = now

    def fetched(self) -> None:
        """A transfer is over. Choose bits and window so that an open window arrives within the patience."""
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
        """An exchange has mixed `chunks` of the model's `of` chunks."""
        self._in_vain = 0
        self._mixed += chunks
        whole = chunks >= min(GROWS * self.window, of)
        if whole or self._mixed >= self._wanted * self.window:
            self._wanted = GROWS if whole else self._wanted
            self._mixed, self._grew = 0, True
            self.window, self._bits = min(2 * self.window, self._most), min(2 * self._bits, STATE_BITS)
