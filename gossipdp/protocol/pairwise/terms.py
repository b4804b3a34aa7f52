"""The terms that one peer offers for its exchanges, and accepts at least: codec, window, pull.

They follow from the pacing and from how much the link carries (`LinkLoad`). No message is handled here.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

from gossipdp.protocol.pairwise.closing import BITS
from gossipdp.protocol.rounds.pacing import Pacing

__all__ = ["ExchangeTerms", "LinkLoad"]


class ExchangeTerms:
    """The terms of the next exchange. `choose` updates the pull, all else is read from the pacing and the load.

    Args:
        pacing: H, the outer step, and whether a training process makes rounds.
        codec: the codec's family. For "modulo" this class chooses the bits.
        bits: a parameter, at least.
        window: chunks open at once, at most.
        kappa: share of the mixing that momentum sees, while momentum is not 0.
        patience: seconds after which a missing chunk is asked for again.
    """

    def __init__(self, pacing: Pacing, codec: str, bits: int, window: int, kappa: float, patience: float) -> None:
        self._pacing, self._family, self._bits, self._kappa = pacing, codec, bits, kappa
        self._closes = False
        self._load = LinkLoad(window, bits, patience)
        self._pull = 0.0

    def choose(self) -> None:
        """A round or an exchange is over, and the pacing knows it: choose the pull that fits the next outer step."""
        outer = self._pacing.outer()
        self._pull = self._kappa / outer.lr if outer.momentum else 0.0

    @property
    def codec(self) -> str:
        """The codec's name."""
        if self._closes:
            return self._family if self._family == "fp32" else f"modulo{BITS}"
        if self._family != "modulo":
            return self._family
        bits = self._bits
        if self._pacing.fresh and self._pacing.alone:
            bits = max(bits, 16)
        elif self._pacing.first:
            bits = max(bits, 8)
        return f"modulo{self._load.bits(bits)}"

    @property
    def window(self) -> int:
        """Chunks open at once."""
        return self._load.window

    @property
    def pull(self) -> float:
        """Share of the mixing that moves momentum.

        Momentum fades only in outer steps. Without them the pulls of exchanges would add up for ever.
        """
        rests = self._closes or self._pacing.alone or not self._pacing.trains
        return 0.0 if rests else self._pull

    def close(self) -> None:
        """Training is over: from now on the codec is fine enough for the final mean, and momentum is at rest."""
        self._closes = True

    def fetched(self) -> None:
        """A transfer of the model is over."""
        self._load.fetched()

    def chunk_received(self, now: float) -> None:
        """A chunk of the model has arrived."""
        self._load.carried(now)

    def exchanged(self, chunks: int, of: int) -> None:
        """An exchange has mixed `chunks` of the model's chunks."""
        if chunks:
            self._load.mixed(chunks, of)
        else:
            self._load.in_vain()


# -- what the link carries -----------------------------------------------------------------------------------------

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
