"""How late in a round what others give lands, and how much outer momentum that leaves.

While what others give is under way a peer trains on without it, and its next increment goes a way that theirs have
gone already: the mean goes it twice. That is momentum which nobody asked for, as stale gradients bring it (Mitliagkas
et al. 2016, arXiv 1605.09774), so the momentum that is asked for has to be less. Where all landed a round late 0.6
was better than 0.8 for two models and three ways of exchanging (`simulations/results/b9.md`). No message is here, no
vector, and no clock.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["Lateness"]

WEIGHT: Final = 0.2
"""of the last landing, in the mean of all"""


class Lateness:
    """`share`: h/H, of a usual round that has passed when an exchange lands, between 0 and 1; a mean over the last."""

    def __init__(self) -> None:
        self.share = 0.0
        self._steps: tuple[float, float] = (-math.inf, -math.inf)
        """when the last two were made, the later one first"""

    def stepped(self, now: float) -> None:
        """This peer has made its outer step."""
        self._steps = now, self._steps[0]

    def landed(self, began: float, now: float, usual: float) -> None:
        """An exchange that began then is over, and all of it in the anchor. It is as late as the outer step before it
        is past, in rounds, which usually last `usual` seconds; 0: late in any case."""
        stepped = next((step for step in self._steps if -math.inf < step <= began), began)
        late = min(1.0, (now - stepped) / usual) if usual > 0.0 else 1.0
        self.share += WEIGHT * (late - self.share)

    def momentum(self, mu: float, late: float) -> float:
        """mu as it is to be, where `late` of it is right for what lands a whole round late."""
        return mu * (1.0 - (1.0 - late) * self.share)
