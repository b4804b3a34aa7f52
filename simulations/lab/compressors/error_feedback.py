"""Error feedback: the sender sends with the next increment what the compressor left out of this one.

    e <- beta e + D;   c = compress(e);   e <- e - decode(c)

(Seide et al. 2014; Karimireddy et al. 2019, arXiv 1901.09847). One buffer at the sender is enough for any receivers, if
every c enters the global sum exactly once with a weight fixed in advance. With beta 1 nothing is lost: the sum of what
was sent, plus e, is the sum of what was given. With a contractive compressor e stays bounded:

    ||e|| <= sqrt(1 - delta) G / (1 - beta sqrt(1 - delta))        for ||D|| <= G

Nothing here may know the use of a payload, and no compressor knows that it is wrapped.
"""

from __future__ import annotations

import numpy as np

from gossipdp.codecs.base import Buffer, Vector
from simulations.lab.compressors.compressor import Compressor

__all__ = ["ErrorFeedback"]


class ErrorFeedback:
    """The residual of one sender, around a compressor.

    Args:
        compressor: encodes residual plus increment.
        beta: share of the residual that is kept from one increment to the next, 0 to 1.

    Raises:
        ValueError: beta is out of range.
    """

    def __init__(self, compressor: Compressor, beta: float = 1.0) -> None:
        if not 0.0 <= beta <= 1.0:
            raise ValueError(f"beta {beta}, allowed 0 to 1")
        self.compressor, self.beta = compressor, np.float32(beta)
        self.residual: Vector = np.zeros(0, np.float32)
        """e, shape (n,), or (0,) before the first increment. It is the whole state: save it, and assign a saved one. It
        is replaced, never changed in place"""

    def compress(self, increment: Vector, *, seed: int) -> tuple[Buffer, Vector]:
        """Compress an increment together with the residual, which keeps the rest.

        Args:
            increment: D, shape (n,), fp32.
            seed: 64 bits of randomness for the compressor.

        Returns:
            The payload, and the vector that every receiver decodes from it, shape (n,).

        Raises:
            ValueError: the increment has another length than e, or the sum is not finite. e is unchanged.
        """
        e = self.residual if len(self.residual) else np.zeros(len(increment), np.float32)
        if e.shape != increment.shape:
            raise ValueError(f"the increment has shape {increment.shape}, the residual {e.shape}")
        with np.errstate(over="ignore", invalid="ignore"):
            wanted: Vector = self.beta * e + increment
        if not np.isfinite(wanted).all():
            raise ValueError("the increment is not finite, and would stay in the residual forever")
        payload = self.compressor.encode(wanted, seed=seed)
        sent = self.compressor.decode(payload, len(wanted))
        self.residual = wanted - sent
        return payload, sent

    def norm(self) -> float:
        """||e|| in fp64."""
        return float(np.sqrt(np.sum(np.square(self.residual, dtype=np.float64))))
