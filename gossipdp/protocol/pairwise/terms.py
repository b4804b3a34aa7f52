"""The terms that one peer offers for its exchanges, and accepts at least: codec, window, pull.

They follow from the pacing and from how much the link carries (`link_load`). No message is handled here.
"""

from __future__ import annotations

from gossipdp.protocol.pairwise.closing import BITS
from gossipdp.protocol.pairwise.link_load import LinkLoad
from gossipdp.protocol.rounds.pacing import Pacing

__all__ = ["ExchangeTerms"]


class ExchangeTerms:
    """The terms. `choose` updates them.

    Args:
        codec: the codec's family. For "modulo" this class chooses the bits.
        bits: a parameter, at least.
        window: chunks open at once, at most.
        kappa: share of the mixing that momentum sees, while momentum is not 0.
        patience: seconds after which a missing chunk is asked for again.
    """

    def __init__(self, codec: str, bits: int, window: int, kappa: float, patience: float) -> None:
        self._family, self._bits, self._kappa = codec, bits, kappa
        self._closes = False
        self._load = LinkLoad(window, bits, patience)
        self.codec, self.window, self.pull = "", window, 0.0
        self.trains = False
        """a training process makes rounds"""

    def choose(self, pacing: Pacing) -> None:
        """Choose codec, window and pull for the next exchange."""
        bits = self._bits
        if pacing.fresh and pacing.alone:
            bits = max(bits, 16)
        elif pacing.first:
            bits = max(bits, 8)
        self.trains = pacing.trains
        bits, self.window = self._load.bits(bits), self._load.window
        if self._closes:
            self.codec, self.pull = self._family if self._family == "fp32" else f"modulo{BITS}", 0.0
            return
        self.codec = f"modulo{bits}" if self._family == "modulo" else self._family
        outer = pacing.outer()
        # Momentum fades only in outer steps. Without them the pulls of exchanges would add up for ever.
        pulls = outer.momentum and self.trains
        self.pull = self._kappa / outer.lr if pulls else 0.0

    def close(self, pacing: Pacing) -> None:
        """Training is over: from now on the codec is fine enough for the final mean, and momentum is at rest."""
        self._closes = True
        self.choose(pacing)

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
