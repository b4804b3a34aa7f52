"""DiLoCo that trains while it communicates: the synchronous method that loses no time to its links.

The methods of `synchronous.py` all wait. `peers/plan/clock.py` has the cost of the collective.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from peers.plan.clock import Overlap, compute_seconds
from simulations.lab.baselines.synchronous import DiLoCo, FourBitDiLoCo
from simulations.lab.core import Lab

__all__ = ["OverlappedDiLoCo", "OverlappedFourBitDiLoCo"]


@dataclass
class OverlappedDiLoCo(DiLoCo):
    """DiLoCo whose mean lands while the next round trains, as in Streaming DiLoCo (Douillard et al. 2025, 2501.18512).

        s_i = inner^H(x_i), the snapshot at the round's end        Delta = 1/N sum_i (theta - s_i)
        v <- mu v + Delta        theta <- theta - alpha (Delta + mu v)        x_i <- x_i + theta - s_i, on landing

    Steps since the snapshot stay whole, as in `pairwise`. The paper mixes x_i with theta instead. Eager updates (Kale
    et al. 2025, arXiv 2502.12996) step by the own Delta before the mean arrives. Neither was tried. The model travels
    whole, not in fragments.

    Bytes are those of DiLoCo. Seconds: a peer without the mean at the end of the next round waits there. The model is
    theta with the last round's mean, as if it had landed.
    """

    name: str = "diloco-overlapped"

    def begin(self, lab: Lab) -> None:
        self._overlap = Overlap()
        self._coming: tuple[float, Tensor] | None = None
        """when it lands in seconds, and what it then adds to x, shape (N, P)"""
        super().begin(lab)

    def play(self, lab: Lab, every: int) -> None:
        began, lasts = lab.seconds, compute_seconds(lab, every)
        for share, due in lab.ticks(self.counts(lab, every)):
            self._land(lab, began + share * lasts)
            lab.update(lab.gradients(due), due)
        self._overlap.end_training(lab, began, lasts)
        self._land(lab, lab.seconds)
        snapshot = lab.x.clone()
        lands = self._overlap.reduce(lab, lambda: self.outer(lab))
        self._coming = lands, self.anchor - snapshot

    def _land(self, lab: Lab, now: float) -> None:
        if self._coming is not None and self._coming[0] <= now:
            lab.x += self._coming[1]
            self._coming = None


@dataclass
class OverlappedFourBitDiLoCo(OverlappedDiLoCo, FourBitDiLoCo):
    """Streaming DiLoCo (Douillard et al. 2025, arXiv 2501.18512) without its fragments: overlapped, and in 4 bits.

    The equations are those of `OverlappedDiLoCo`, with Delta = Q(1/N sum_i Q(theta - s_i)), Q as in `FourBitDiLoCo`.
    """

    name: str = "diloco-4bit-overlapped"
