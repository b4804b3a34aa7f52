"""One peer of the laboratory, and one chunk of an exchange between two peers, by the jobs that two daemons would run.

The vectors are those of the daemon's own `Pairwise`. Its training process is a row of the laboratory's replicas, which
takes corrections between two steps. `methods/pairwise.py` decides which peers meet and when.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.protocol import jobs
from gossipdp.protocol.model import Outer
from gossipdp.protocol.rounds.pacing import ALONE_AFTER
from gossipdp.protocol.schema import chunk_parameters
from peers.plan.frames import average_chunk
from peers.plan.pairs import Side
from simulations.lab.methods.shared_buffers import SharedBuffers

__all__ = ["Dialogue", "Replica"]


class Replica(Side):
    """The vectors of one peer, bound to its live parameters.

    Args:
        number: orders the peers. The peer with the lower id computes differences.
        x: the peer's row of the replicas, shape (P,). The replica writes to it.
        algorithm: an algorithm without vectors.
        alone: outer steps since the last exchange.
    """

    def __init__(self, number: int, x: Tensor, algorithm: Pairwise, alone: int = ALONE_AFTER) -> None:
        self.algorithm = algorithm
        size = len(x)
        self.algorithm.allocate(size, size, chunk_parameters(size))
        self.ledger = self.algorithm.ledger
        super().__init__(number, self.ledger.chunks, alone)
        self.x: NDArray[np.float32] = x.numpy()
        self.buffers = SharedBuffers(self.ledger, self.x)
        for chunk in range(self.ledger.chunks):
            self.algorithm.run(jobs.Found(chunk))
        self._away = self._waits = False
        """the host is missing; a correction waits for an exchange"""
        self.gain = 0.0
        """how far rounds swing at the last outer step, mean over the chunks"""

    def set_away(self, away: bool) -> None:
        """Say whether the host is missing. Such a replica takes no outer step."""
        self._away = away

    def end_exchange(self, *, mixed: bool) -> None:
        """Add the corrections of the exchange. `mixed` is False if it averaged no chunk."""
        self._waits = False
        self.drain()
        super().end_exchange(mixed=mixed)

    def outer(self, wanted: Outer) -> None:
        """The outer step at the end of a round; a plain one after rounds without an exchange (algorithms section 1)."""
        if self._away:
            return
        chunks = range(self.ledger.chunks)
        self.buffers.submit()
        waits = False
        if all(self.algorithm.run(jobs.Check(chunk)).finite for chunk in chunks):
            outer = Outer(1.0, 0.0) if self.alone >= ALONE_AFTER else wanted
            applied, part, waits = self.buffers.applied, wanted.part, outer.waits
            steps = [
                self.algorithm.run(jobs.OuterStep(chunk, outer.lr, outer.momentum, applied, part)) for chunk in chunks
            ]
            self.gain = sum(step.gain for step in steps) / len(steps)
        self.alone += 1
        self._waits = waits and not self._waits
        if not self._waits:
            self.drain()

    def rest(self) -> None:
        """Training is over: take the lookahead of the last outer step out of the anchor."""
        for chunk in range(self.ledger.chunks):
            self.algorithm.run(jobs.Rest(chunk))
        self.drain()

    def drain(self) -> None:
        """Add all corrections to x."""
        self.buffers.drain()


@dataclass(frozen=True)
class Dialogue:
    """The terms of one exchange, and how it averages a chunk."""

    initiator: Replica
    responder: Replica
    exchange: int
    codec: str
    weight: float
    pull: float

    def chunk(self, chunk: int) -> tuple[int, int, jobs.Turn]:
        """As `peers.plan.frames.average_chunk`."""
        return average_chunk(self.initiator, self.responder, self.exchange, self.codec, self.weight, self.pull, chunk)
