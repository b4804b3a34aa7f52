"""`epidemic` in the laboratory: the daemon's own vectors and payloads, on replicas in one process.

Every replica has an `Epidemic` of the daemon, whose training process is a row of `lab.x`. At the end of a round each
publishes one message. The others apply it on arrival, while they train, so no peer waits. This module holds no equation
of `epidemic` and no other method.

Simpler than the daemon:

All rounds end at the same moment. A message takes ceil(log2 N) hops and then its turn on the receiver's link, in a
random order per receiver. A lost message is requested again.

There are no epochs to close. So no message is too late or cut, and robust rules are in `attacked.py`. Weights are the
shares of steps that the speeds allow, which closed epochs would measure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossipdp.algorithms.epidemic.epidemic import Epidemic
from gossipdp.codecs import COMPRESSORS
from gossipdp.codecs.base import BLOCK, Buffer
from gossipdp.codecs.increments.compressor import Compressor
from gossipdp.codecs.increments.lowrank import LowRank
from gossipdp.protocol import jobs
from gossipdp.protocol.epidemic.terms import WHOLE, Terms
from gossipdp.protocol.rounds.pacing import WARMUP_EVERY
from gossipdp.protocol.schema import chunk_parameters
from simulations.lab.core import Lab
from simulations.lab.methods.shared_buffers import SharedBuffers

__all__ = ["EpidemicGossip", "EpidemicReplica"]

WARM: Final = Terms(WHOLE, 1.0)
HEADERS: Final = 300
"""bytes of a message beside its payload: signed header, table of parts, frames, and its share of the lazy links' lists
"""


class EpidemicReplica:
    """The vectors of one peer, bound to its live parameters.

    Args:
        x: the peer's row of the replicas, shape (P,). The replica writes to it.
        compressors: the compressors it knows, by name.
        chunk: parameters of a chunk; the daemon's choice if None.
    """

    def __init__(
        self, x: Tensor, *, compressors: Mapping[str, Compressor] = COMPRESSORS, chunk: int | None = None
    ) -> None:
        self.algorithm = Epidemic(compressors=compressors)
        size = len(x)
        self.algorithm.allocate(size, size, chunk or chunk_parameters(size))
        self.ledger = self.algorithm.ledger
        self.x: NDArray[np.float32] = x.numpy()
        self.buffers = SharedBuffers(self.ledger, self.x)
        for chunk in range(self.ledger.chunks):
            self.algorithm.run(jobs.Found(chunk))

    def publish(self, job: jobs.Publish) -> jobs.Published:
        published = self.algorithm.run(job)
        assert isinstance(published, jobs.Published)
        return published

    @property
    def applied(self) -> int:
        return self.buffers.applied

    def drain(self) -> None:
        """Add all corrections to x."""
        self.buffers.drain()


@dataclass(frozen=True)
class _Message:
    payloads: tuple[Buffer, ...]
    weight: float
    terms: Terms

    @property
    def size(self) -> int:
        return HEADERS + sum(memoryview(payload).nbytes for payload in self.payloads)


@dataclass
class EpidemicGossip:
    """e <- beta e + D; c = Q2(TopK(e)); e <- e - c; a <- a - alpha p c, once per message (algorithms section 4).

    Low rank uses the model's own matrices, as in PowerSGD, so the model is one chunk then. The daemon's chunks cut
    through matrices, so it folds each chunk into a square instead.
    """

    compressor: str = "topk128"
    alpha: float = 1.0
    """the daemon's defaults are topk256 and 2"""
    beta: float = 0.95
    warmup_steps: int = 0
    """steps before the first round, in short rounds whose increments travel whole, with alpha 1. This is the daemon's
    warm start; `Setting.warmup` is the synchronous one
    """
    name: str = "epidemic"
    replicas: list[EpidemicReplica] = field(init=False, repr=False)

    def begin(self, lab: Lab) -> None:
        self.replicas = [self._replica(lab, row) for row in lab.x]
        self._coming: list[tuple[float, int, int, _Message]] = []
        self._busy = np.full(lab.peers, lab.seconds)
        """until when each peer's link is receiving, seconds"""
        self._sent = 0
        speeds = lab.setting.all_speeds
        self._weights = speeds / speeds.sum()
        left = self.warmup_steps
        while left > 0:
            every = min(left, lab.setting.every, WARMUP_EVERY)
            left -= every
            self._play(lab, every, WARM)

    def round(self, lab: Lab) -> None:
        self._play(lab, lab.setting.every, Terms(self.compressor, self.alpha))

    def _play(self, lab: Lab, every: int, terms: Terms) -> None:
        """One round of `every` steps, and the messages published at its end."""
        setting = lab.setting
        counts = np.maximum(1, np.rint(every * setting.all_speeds)).astype(np.int64)
        began, duration = lab.seconds, every * setting.step_seconds
        for share, due in lab.ticks(counts):
            lab.set_clock(began + duration * share)
            self._arrive(lab)
            lab.update(lab.gradients(due), due)
        lab.set_clock(began + duration)
        self._arrive(lab)
        messages = [self._published(lab, peer, terms) for peer in range(lab.peers)]
        for receiver in range(lab.peers):
            self._send(lab, receiver, messages)
        self._arrive(lab)

    def model(self, lab: Lab) -> Tensor:
        """The mean of the anchors, plus the messages that are still on their way.

        A message counts by the share of peers that still wait for it. They hold this model a round later. The models of
        other methods do not lack the progress of the last round either.
        """
        total = self._replica(lab, torch.zeros(lab.problem.parameters))
        waiting = Counter(id(message) for *_, message in self._coming)
        for message in {id(message): message for *_, message in self._coming}.values():
            _apply(total, replace(message, weight=message.weight * waiting[id(message)] / lab.peers))
        mean = np.mean([replica.ledger.a for replica in self.replicas], 0)
        return torch.from_numpy(mean + total.ledger.a)

    def _replica(self, lab: Lab, x: Tensor) -> EpidemicReplica:
        compressor = COMPRESSORS[self.compressor]
        if not isinstance(compressor, LowRank):
            return EpidemicReplica(x)
        shaped = {**COMPRESSORS, self.compressor: LowRank(compressor.rank, lab.problem.shapes)}
        return EpidemicReplica(x, compressors=shaped, chunk=-(-lab.problem.parameters // BLOCK) * BLOCK)

    def _published(self, lab: Lab, peer: int, terms: Terms) -> _Message:
        replica, weight = self.replicas[peer], float(self._weights[peer])
        replica.buffers.submit()
        if lab.peers == 1:
            for chunk in range(replica.ledger.chunks):
                replica.algorithm.run(jobs.OuterStep(chunk, 1.0, 0.0, replica.applied))
            return _Message((), 1.0, terms)
        payloads = []
        for chunk in range(replica.ledger.chunks):
            seed = int(lab.random.integers(1 << 63))
            job = jobs.Publish(chunk, terms.compressor, terms.lr, self.beta, weight, replica.applied, seed)
            payloads.append(replica.publish(job).payload)
        replica.drain()
        return _Message(tuple(payloads), weight, terms)

    def _send(self, lab: Lab, receiver: int, messages: list[_Message]) -> None:
        link = lab.setting.link
        hops = (lab.peers - 1).bit_length()
        for sender in lab.random.permutation(lab.peers):
            if sender == receiver:
                continue
            message = messages[sender]
            tries = int(lab.random.geometric(1.0 - lab.setting.failing))
            begins = max(float(self._busy[receiver]), lab.seconds)
            self._busy[receiver] = begins + link.seconds(message.size, 0)
            at = float(self._busy[receiver]) + (hops + 2 * (tries - 1)) * link.latency
            lab.received[receiver] += message.size
            heappush(self._coming, (at, self._sent, receiver, message))
            self._sent += 1

    def _arrive(self, lab: Lab) -> None:
        moved: set[int] = set()
        while self._coming and self._coming[0][0] <= lab.seconds:
            _, _, receiver, message = heappop(self._coming)
            _apply(self.replicas[receiver], message)
            moved.add(receiver)
        for receiver in moved:
            self.replicas[receiver].drain()


def _apply(replica: EpidemicReplica, message: _Message) -> None:
    compressor, lr = message.terms
    for chunk, payload in enumerate(message.payloads):
        if payload:
            replica.algorithm.run(jobs.Apply(chunk, compressor, payload, lr, message.weight))
