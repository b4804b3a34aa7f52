"""The two buffers that a daemon shares with its training process, for replicas whose training takes no time."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gossipdp.algorithms.ledger import Ledger

__all__ = ["SharedBuffers"]


class SharedBuffers:
    """Binds a ledger to two buffers, and moves snapshots and corrections between them and x.

    Args:
        x: live parameters, shape (P,). `drain` writes to it.
    """

    def __init__(self, ledger: Ledger, x: NDArray[np.float32]) -> None:
        self._ledger, self._x = ledger, x
        self._buffers: Final = (x.copy(), np.zeros_like(x))
        self.applied = 0
        """number of the last slot inside x"""
        ledger.bind(self._buffers)

    def submit(self) -> None:
        """Put a snapshot of x where the ledger reads it."""
        self._buffers[self.applied % 2][:] = self._x

    def drain(self) -> None:
        """Add all corrections to x."""
        sealed = self._ledger.seal()
        if sealed.chunks:
            for chunk in sealed.chunks:
                span = self._ledger.span(chunk)
                self._x[span] += self._buffers[sealed.slot % 2][span]
            self.applied = sealed.slot
            self._ledger.release(sealed.slot)
