"""Baselines with a parameter server. All pushes and all pulls share its one link.

The server is a machine of its own. A peer receives the model that it pulls. The server receives N times as much. These
bytes count on the clock only.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peers.plan.clock import compute_seconds
from simulations.lab.baselines.costs import Averaged, model_bytes
from simulations.lab.core import Lab

__all__ = ["AsynchronousServer", "SynchronousServer"]


@dataclass
class SynchronousServer(Averaged):
    """Parameter server, synchronous (Li et al. 2014): it waits for all gradients, then all peers pull.

        g = 1/N sum_i g_i(theta)        theta <- inner(theta, g)        every step

    Bytes: a peer receives the model each step. Seconds: N gradients one after another through the server's link, then N
    models. A failed step sends both again.
    """

    name: str = "server"

    def round(self, lab: Lab) -> None:
        size, link = model_bytes(lab), lab.setting.link
        for _ in range(lab.setting.every):
            lab.update(lab.gradients().mean(0, keepdim=True).expand_as(lab.x))
            tries = int(lab.random.geometric(1.0 - lab.setting.failing))
            lab.receive(tries * size)
            lab.elapse(compute_seconds(lab) + tries * 2.0 * link.seconds(lab.peers * size))


@dataclass
class AsynchronousServer:
    """Parameter server, asynchronous (Downpour, Dean et al. 2012): no peer waits for others, and gradients are stale.

        peer i repeats: pull theta, push g_i(theta_i)        server: theta <- inner(theta, g_i), its rate lr / tau

    tau: updates between this peer's pull and its push (staleness-aware rate, Zhang et al. 2016, arXiv 1511.05950).

    Bytes: a peer receives the model per gradient. Seconds: pushes queue for the server's link, and so do pulls. Beyond
    N = step_seconds x bandwidth / bytes the link limits the steps of all peers. A round is as many gradients as all
    peers compute in H steps of the slowest. A failed gradient is lost, and its peer pulls anyway.

    A row of the lab is the point where that peer computes its gradient. The server's optimizer is that of row 0.
    """

    name: str = "server-async"
    server: Tensor = field(init=False, repr=False)
    """theta, shape (1, P)"""

    def begin(self, lab: Lab) -> None:
        self.server = lab.mean[None]
        self._gradients = torch.zeros_like(lab.x)
        self._fresh = np.zeros(lab.peers, bool)
        self._updates = 0
        self._pulled = np.zeros(lab.peers, np.int64)
        self._inward = self._outward = lab.seconds
        self._computed = [(lab.seconds + float(step), peer) for peer, step in enumerate(_steps(lab))]
        heapq.heapify(self._computed)

    def round(self, lab: Lab) -> None:
        link, size, steps = lab.setting.link, model_bytes(lab), _steps(lab)
        for _ in range(round(lab.setting.every * float(lab.setting.all_speeds.sum()))):
            now, peer = heapq.heappop(self._computed)
            self._inward = max(now, self._inward) + link.seconds(size, 0)
            arrived = self._inward + link.latency
            self._apply(lab, peer)
            self._outward = max(arrived, self._outward) + link.seconds(size, 0)
            heapq.heappush(self._computed, (self._outward + link.latency + float(steps[peer]), peer))
            lab.received[peer] += size
            lab.set_clock(arrived)

    def _apply(self, lab: Lab, peer: int) -> None:
        """The server applies a peer's gradient, and the peer pulls the result."""
        if not self._fresh[peer]:
            behind = np.flatnonzero(~self._fresh)
            self._gradients[torch.from_numpy(behind)] = lab.gradients(behind)
            self._fresh[behind] = True
        if lab.random.random() >= lab.setting.failing:
            tau = max(1, self._updates - int(self._pulled[peer]))
            lab.inner.step(self.server, self._gradients[peer : peer + 1], torch.tensor([0]), lab.lr / tau)
            self._updates += 1
        lab.steps[peer] += 1
        lab.advance(1.0 / float(lab.setting.all_speeds.sum()))
        lab.x[peer] = self.server[0]
        self._pulled[peer], self._fresh[peer] = self._updates, False

    def model(self, lab: Lab) -> Tensor:
        return self.server[0]


def _steps(lab: Lab) -> NDArray[np.float64]:
    """Seconds of one step of each peer, shape (N,)."""
    return lab.setting.step_seconds / lab.setting.all_speeds
