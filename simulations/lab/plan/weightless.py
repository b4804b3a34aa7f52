"""Replicas of one parameter each that stand for a model of P: methods play their rounds, and only their clock counts.

Seconds and bytes come from the methods themselves. A method of `baselines` asks the problem for P. `pairwise` moves the
chunks of a model of P, whose bytes two peers of one chunk tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.protocol import jobs
from gossipdp.protocol.model import Outer
from gossipdp.protocol.schema import MOST, chunk_parameters, chunk_spans
from simulations.lab.core import Counts, Lab, Score
from simulations.lab.methods.pairwise import OpenExchange, PairwiseGossip, PairwiseOptions
from simulations.lab.methods.replica import Dialogue, Replica
from simulations.lab.methods.shared_buffers import SharedBuffers

__all__ = ["Weightless", "WeightlessPairwise"]

FIRST: Final = 1 << 32
"""number of an exchange, as long as in the laboratory's"""


@dataclass(frozen=True)
class Weightless:
    """A problem of `parameters` whose replicas hold one."""

    parameters: int
    name: str = "weightless"
    shapes: Sequence[tuple[int, ...]] = ((1,),)
    embeddings: Sequence[int] = ()

    def start(self, seed: int) -> Tensor:
        return torch.zeros(1)

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        return (torch.zeros(len(peers), 1),)

    def loss(self, x: Tensor, *batch: Tensor) -> Tensor:
        return x.sum()

    def evaluate(self, x: Tensor) -> Score:
        return Score(0.0, float("nan"))


class Chunks(NamedTuple):
    """What an exchange asks of a ledger."""

    chunks: int


class WeightlessReplica(Replica):
    """A replica that stands for one of `chunks` chunks, and changes no vector."""

    def __init__(self, number: int, x: Tensor, algorithm: Pairwise, chunks: int) -> None:
        super().__init__(number, x, algorithm)
        self.ledger: Any = Chunks(chunks)

    def outer(self, wanted: Outer) -> None:
        self.alone += 1

    def drain(self) -> None:
        pass


@dataclass(frozen=True)
class WeightlessDialogue(Dialogue):
    """The terms of an exchange whose chunks are averaged without their vectors."""

    lengths: Sequence[int] = field(default=())
    """parameters of each chunk"""

    def chunk(self, chunk: int) -> tuple[int, int, jobs.Turn]:
        return chunk_bytes(self.lengths[chunk], self.codec)


@dataclass(frozen=True)
class ChunkHolder:
    """One side of `chunk_bytes`."""

    id: bytes
    algorithm: Pairwise


@cache
def chunk_bytes(parameters: int, codec: str) -> tuple[int, int, jobs.Turn]:
    """What `Dialogue.chunk` returns for two equal chunks of `parameters`, by the daemon's own jobs and messages."""
    sides: list[Any] = []
    for number in (1, 2):
        algorithm = Pairwise()
        algorithm.allocate(parameters, parameters, MOST)
        SharedBuffers(algorithm.ledger, np.zeros(parameters, np.float32))
        algorithm.run(jobs.Found(0))
        sides.append(ChunkHolder(number.to_bytes(32, "big"), algorithm))
    return Dialogue(sides[0], sides[1], FIRST, codec, 0.5, 0.0).chunk(0)


class WeightlessPairwise(PairwiseGossip):
    """`pairwise` on the chunks of a model that no replica holds. Its rounds, exchanges and clock are its own."""

    def __init__(self, options: Mapping[str, Any], parameters: int) -> None:
        super().__init__(PairwiseOptions(**options))
        spans = chunk_spans(parameters, parameters, chunk_parameters(parameters))
        self._lengths = [span.stop - span.start for span in spans]
        self.exchange_seconds = 0.0
        """that the last exchange would have taken, had it not been cut"""

    def begin(self, lab: Lab) -> None:
        super().begin(lab)
        self.replicas = [
            WeightlessReplica(number, lab.x[number], self._algorithm(number), len(self._lengths))
            for number in range(lab.peers)
        ]

    def _dialogue(self, first: int, second: int, weight: float) -> Dialogue:
        terms = super()._dialogue(first, second, weight)
        return WeightlessDialogue(
            terms.initiator, terms.responder, terms.exchange, terms.codec, terms.weight, terms.pull, self._lengths
        )

    def _end_exchange(self, lab: Lab, exchange: OpenExchange) -> None:
        # Between two steps the end of an exchange is noticed late.
        if exchange.mixed:
            self.exchange_seconds = (exchange.at - exchange.began) * len(self._lengths) / exchange.mixed
        super()._end_exchange(lab, exchange)
