"""Error feedback: what a compressor leaves out of one increment is sent with the next.

    e <- beta e + D;   c = compress(e);   e <- e - decode(c)

(Seide et al. 2014; Karimireddy et al. 2019, arXiv 1901.09847; algorithms section 4). One buffer at the sender is
enough, whoever receives, if every c enters the global sum exactly once with a weight fixed in advance. With beta 1
nothing is ever lost: what was sent and e add up to what was given. With a contractive compressor e stays bounded,

    ||e|| <= sqrt(1 - delta) G / (1 - beta sqrt(1 - delta))        for ||D|| <= G

Nothing here may know what happens to a payload, and no compressor knows that it is wrapped.
"""

from __future__ import annotations

import numpy as np

from gossipdp.codecs.base import Buffer, Vector
from gossipdp.codecs.increments.compressor import Compressor

__all__ = ["ErrorFeedback"]


class ErrorFeedback:
    """The buffer of one sender; state, so never shared between two."""

    def __init__(self, compressor: Compressor, beta: float = 1.0) -> None:
        if not 0.0 <= beta <= 1.0:
            raise ValueError(f"beta {beta}, allowed 0 to 1")
        self.compressor, self.beta = compressor, np.float32(beta)
        self.residual: Vector = np.zeros(0, np.float32)
        """e, shape (n,), of no length before the first increment: all there is of state, to be saved, and set to what
        was saved; replaced, never written into"""

    def compress(self, increment: Vector, *, seed: int) -> tuple[Buffer, Vector]:
        """(payload, what every receiver decodes from it) of e and `increment`, shape (n,); e keeps the rest.

        Raises:
            ValueError: `increment` is not finite, too large to be added, or not of the length of e; e is as it was.
        """
        e = self.residual if len(self.residual) else np.zeros(len(increment), np.float32)
        if e.shape != increment.shape:
            raise ValueError(f"an increment of shape {increment.shape}, the residual has {e.shape}")
        with np.errstate(over="ignore", invalid="ignore"):
            wanted: Vector = self.beta * e + increment
        if not np.isfinite(wanted).all():
            raise ValueError("an increment that is not finite would stay in the residual for ever")
        payload = self.compressor.encode(wanted, seed=seed)
        sent = self.compressor.decode(payload, len(wanted))
        self.residual = wanted - sent
        return payload, sent

    def norm(self) -> float:
        """||e||, fp64."""
        return float(np.sqrt(np.sum(np.square(self.residual, dtype=np.float64))))
