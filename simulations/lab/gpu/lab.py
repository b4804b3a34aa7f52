"""Replicas in the host's memory that train on a device, and the methods that need to know of it.

The outer methods work on the host, on `lab.x`. Inner steps work on rows of a mirror on the device. A row is copied when
the other side needs it: `x` gives the newest values, and a step takes up what a method wrote. A CPU has a mirror too,
so tests on one cover this.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.protocol import jobs
from gossipdp.protocol.model import Outer
from peers.plan.clock import step_with_all_reduce
from peers.plan.timeline import Counts
from simulations.lab.baselines.costs import model_bytes
from simulations.lab.baselines.synchronous import Ddp
from simulations.lab.core import Lab, Method
from simulations.lab.failures.lab import HostLab
from simulations.lab.gpu.model import TokenGpt
from simulations.lab.inner import AdamW, InnerTerms
from simulations.lab.methods.pairwise import PairwiseGossip
from simulations.lab.methods.replica import Dialogue, Replica

__all__ = ["DeviceDdp", "DeviceHostLab", "DeviceLab", "DevicePairwise", "Measurement", "measured"]

RAMP: Final = 50
"""first steps, in which the learning rate rises from zero"""
FEW: Final = 4
"""single replicas that are measured"""


class _DeviceAdamW(AdamW):
    """AdamW on the device of `x`."""

    def __init__(self, x: Tensor, terms: InnerTerms) -> None:
        super().__init__(x, terms)
        self.counts = self.counts.to(x.device)


class DeviceLab(Lab):
    """A laboratory whose problem is on a device."""

    problem: TokenGpt

    def __post_init__(self) -> None:
        super().__post_init__()
        self.mirror = self._x.to(self.problem.device, copy=True)
        terms = InnerTerms(betas=self.setting.betas, weight_decay=self.setting.weight_decay)
        self.inner = _DeviceAdamW(self.mirror, terms)

    @property
    def x(self) -> Tensor:
        """The replicas on the host, with all steps inside."""
        for peer in tuple(self._ahead):
            self.settle(peer)
        return self._x

    @x.setter
    def x(self, value: Tensor) -> None:
        self._x, self._ahead = value.pin_memory() if self.problem.device == "cuda" else value, set[int]()

    @property
    def lr(self) -> float:
        return super().lr * min(1.0, float(self.steps.max()) / RAMP)

    def settle(self, peer: int) -> None:
        """Bring this row of `x` up to date. From now on the host's row counts, until the next step."""
        if peer in self._ahead:
            self._x[peer].copy_(self.mirror[peer])
            self._ahead.discard(peer)

    def gradients(self, peers: Counts | None = None) -> Tensor:
        """As in `Lab`, one peer after the other. The result is on the device."""
        chosen = np.arange(self.peers) if peers is None else peers
        found = torch.empty(len(chosen), self.problem.parameters, device=self.mirror.device)
        for row, peer in enumerate(chosen):
            at = self._row(int(peer)).detach().requires_grad_()
            one = chosen[row : row + 1]
            batch = self.problem.batches(one, self.steps[one], self.setting.seed)
            loss = self.problem.loss(at, *(part[0].to(found.device) for part in batch))
            found[row] = torch.autograd.grad(loss, at)[0]
        return found

    def update(self, gradients: Tensor, peers: Counts | None = None) -> None:
        chosen = np.arange(self.peers) if peers is None else peers
        self.steps[chosen] += 1
        for row, peer in enumerate(int(peer) for peer in chosen):
            self._row(peer)
            self.inner.step(self.mirror, gradients[row : row + 1], slice(peer, peer + 1), self.lr)
        if self._slowest in chosen:
            self.advance()

    def _row(self, peer: int) -> Tensor:
        """The peer's row on the device, which counts from now on."""
        if peer not in self._ahead:
            self.mirror[peer].copy_(self._x[peer])
            self._ahead.add(peer)
        return self.mirror[peer]

    def __getstate__(self) -> dict[str, Any]:
        """What a run on disk has, besides `x`."""
        return {name: value for name, value in vars(self).items() if name not in ("_losses", "_x", "mirror")}

    def take(self, x: Tensor) -> None:
        """Take `x`, shape (N, P), as the replicas of a run that was read from disk."""
        self.x = x
        self.mirror = self._x.to(self.problem.device, copy=True)


class DeviceHostLab(HostLab, DeviceLab):
    """The same with hosts that have events."""


@dataclass
class DeviceDdp(Ddp):
    """`Ddp` whose replicas stay on the device."""

    def round(self, lab: Lab) -> None:
        for _ in range(lab.setting.every):
            lab.update(self._mean(lab.gradients()).expand(lab.peers, -1))
            step_with_all_reduce(lab, model_bytes(lab) * (0.5 if self.half else 1.0))


class _DeviceReplica(Replica):
    """A replica whose row is brought up to date before its outer step, and before corrections are added."""

    def __init__(self, number: int, lab: DeviceLab, algorithm: Pairwise) -> None:
        super().__init__(number, lab.x[number], algorithm)
        self._lab, self._number = lab, number

    def outer(self, wanted: Outer) -> None:
        self._lab.settle(self._number)
        super().outer(wanted)

    def drain(self) -> None:
        self._lab.settle(self._number)
        super().drain()


@dataclass(frozen=True)
class _AllAtOnce(Dialogue):
    """An exchange whose chunks are all averaged at its first one, on all cores.

    Equal to one after the other if no time passes between them, that is, on a link of unlimited bandwidth.
    """

    found: dict[int, tuple[int, int, jobs.Turn]] = field(default_factory=dict)

    def chunk(self, chunk: int) -> tuple[int, int, jobs.Turn]:
        if not self.found:
            chunks = range(self.initiator.ledger.chunks)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                self.found.update(zip(chunks, pool.map(super().chunk, chunks), strict=True))
        return self.found.pop(chunk)


class DevicePairwise(PairwiseGossip):
    """`pairwise` on replicas that train on a device."""

    def begin(self, timeline: Lab) -> None:
        if timeline.setting.link.bandwidth < math.inf or self.options.fragments > 1:
            raise ValueError("chunks of an exchange are averaged at once: bandwidth has no limit, and fragments are 1")
        super().begin(timeline)

    def _sides(self, lab: Lab) -> list[Replica]:
        assert isinstance(lab, DeviceLab)
        return [_DeviceReplica(number, lab, self._algorithm()) for number in range(lab.peers)]

    def _dialogue(self, first: int, second: int, weight: float) -> Dialogue:
        return _AllAtOnce(**vars(super()._dialogue(first, second, weight)))


class Measurement(NamedTuple):
    """The state after a round."""

    round: int
    bytes: float
    """mean bytes that a host has received, per parameter"""
    steps: float
    """mean inner steps of a host"""
    loss: float
    """held-out loss of the method's model, nats per token"""
    replica_loss: float
    """mean held-out loss of up to `FEW` single hosts"""
    distance: float
    """consensus distance"""


def measured(lab: DeviceLab, method: Method, number: int) -> Measurement:
    """The state after round `number`."""
    loss = lab.problem.evaluate(method.model(lab)).loss
    few = np.unique(np.linspace(0, lab.peers - 1, FEW).astype(np.int64))
    alone = float(np.mean([lab.problem.evaluate(lab.x[int(peer)]).loss for peer in few]))
    received = float(lab.received.mean()) / lab.problem.parameters
    return Measurement(number, received, float(lab.steps.mean()), loss, alone, lab.distance())
