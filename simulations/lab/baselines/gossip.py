"""Baselines in which a peer talks to a few others: pairs, rings, one-peer graphs. No peer knows the mean.

`local` methods make H steps between exchanges (Koloskova et al. 2020, arXiv 2003.10422). The others make one, as in
most of their papers. If all peers make equally many steps, the lab's clock is that of the slowest peer, which waits for
no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peers.plan.clock import compute_seconds, own_pace
from simulations.lab.baselines.costs import Averaged, compressed, meet, model_bytes, neighbours, phases
from simulations.lab.compressors.compressor import Compressor
from simulations.lab.core import Lab

__all__ = ["AdPsgd", "Choco", "DPsgd", "Gasloc", "Graph", "NoLoCo", "PairAveraging", "complete", "exponential", "ring"]

Graph: TypeAlias = Callable[[int, int], NDArray[np.int64]]
"""(N, number of the exchange) to the peers that each peer hears, shape (N, degree). Each of them and the peer itself
have weight 1/(degree + 1)
"""


def ring(count: int, exchange: int) -> NDArray[np.int64]:
    """Both neighbours, in every exchange."""
    own = np.arange(count)[:, None]
    sides = np.array([[1, -1]], np.int64)[:, : min(2, count - 1)]
    heard: NDArray[np.int64] = (own + sides) % count
    return heard


def exponential(count: int, exchange: int) -> NDArray[np.int64]:
    """One-peer exponential graph: i hears i - 2^(t mod log2 N). Exact after log2 N exchanges if N = 2^m."""
    turns, own = (count - 1).bit_length(), np.arange(count)[:, None]
    return (own - (1 << exchange % turns)) % count if turns else own[:, :0]


def complete(count: int, exchange: int) -> NDArray[np.int64]:
    """All other peers."""
    heard: NDArray[np.int64] = (np.arange(count)[:, None] + np.arange(1, count)) % count
    return heard


def _mixed(x: Tensor, heard: NDArray[np.int64]) -> Tensor:
    """W x: each row averaged with the rows it hears."""
    total = x.clone()
    for column in heard.T:
        total += x[torch.from_numpy(column)]
    return total.div_(heard.shape[1] + 1)


@dataclass
class DPsgd(Averaged):
    """D-PSGD (Lian et al. 2017, arXiv 1705.09056) on a graph that may change, as in Ying et al. 2021 (2110.13363).

        x_i <- sum_j W_ij x_j + (inner(x_i) - x_i)        local: x_i <- inner^H(x_i), then x_i <- sum_j W_ij x_j

    W is doubly stochastic, so only the mean of the steps moves the mean. Bytes: the model of each neighbour per
    exchange.

    Seconds: the message is known before the step, so the transfer overlaps with it, and the longer of the two counts.
    After local steps (Koloskova et al. 2020, algorithm 1) the transfer follows the steps. A lost message is sent again.
    """

    graph: Graph
    name: str
    local: bool = False

    def begin(self, lab: Lab) -> None:
        self._exchanges = 0

    def round(self, lab: Lab) -> None:
        exchanges, steps = phases(lab, self.local)
        for _ in range(exchanges):
            heard = self.graph(lab.peers, self._exchanges)
            computes, transfer = compute_seconds(lab, steps), neighbours(lab, np.full(heard.shape, model_bytes(lab)))
            if self.local:
                lab.train(steps)
                lab.x.copy_(_mixed(lab.x, heard))
                lab.elapse(computes + transfer)
            else:
                moved = _mixed(lab.x, heard).sub_(lab.x)
                lab.train(steps)
                lab.x += moved
                lab.elapse(max(computes, transfer))
            self._exchanges += 1


@dataclass
class Choco(Averaged):
    """CHOCO-SGD (Koloskova et al. 2019, arXiv 1902.00340, algorithm 2, in the form that keeps one sum) on a ring.

        x_i <- inner(x_i)        q_i = Q(x_i - xhat_i), sent to the neighbours
        xhat_i <- xhat_i + q_i        s_i <- s_i + sum_j W_ij q_j        x_i <- x_i + gamma (s_i - xhat_i)

    xhat_i is the state of i that its neighbours know, and s_i = sum_j W_ij xhat_j. Each pair of neighbours must agree
    about these states, so the graph is fixed, and lost messages are sent again. xhat starts at the start of peer 0, not
    at zero.

    Bytes: a payload from each neighbour. Seconds: the transfer follows the step.
    """

    compressor: Compressor
    gamma: float = 0.5
    name: str = "choco"
    local: bool = False
    xhat: Tensor = field(init=False, repr=False)
    s: Tensor = field(init=False, repr=False)

    def begin(self, lab: Lab) -> None:
        self.xhat = lab.x[:1].repeat(lab.peers, 1)
        self.s = self.xhat.clone()

    def round(self, lab: Lab) -> None:
        exchanges, steps = phases(lab, self.local)
        heard = ring(lab.peers, 0)
        for _ in range(exchanges):
            lab.train(steps)
            q, sizes = compressed(lab, self.compressor, lab.x - self.xhat)
            self.xhat += q
            self.s += _mixed(q, heard)
            lab.x.add_(self.s - self.xhat, alpha=self.gamma)
            lab.elapse(compute_seconds(lab, steps) + neighbours(lab, sizes[heard]))


@dataclass
class PairAveraging(Averaged):
    """SwarmSGD, blocking (Nadiradze et al. 2021, arXiv 1910.12308): local steps, then the mean of a random pair.

        x_i <- inner^H_i(x_i)        x_i, x_j <- (x_i + x_j) / 2

    This is `pairwise` without outer momentum, compression and overlap. H_i is proportional to the speed, so peers wait
    for the transfer only. Bytes: the partner's model per round. A failed exchange changes nothing.
    """

    name: str = "swarm"

    def round(self, lab: Lab) -> None:
        lab.train(own_pace(lab))
        met, transfer = meet(lab, model_bytes(lab))
        lab.elapse(compute_seconds(lab, lab.setting.every) + transfer)
        lab.x.add_(lab.x[met]).div_(2.0)


@dataclass
class NoLoCo(Averaged):
    """NoLoCo (Kolehmainen et al. 2025, arXiv 2506.10911): DiLoCo's momentum, with a random partner for the mean.

        Delta_i = inner^H(phi_i) - phi_i        pair means over i and its partner j
        delta_i <- alpha delta_i + beta mean(Delta) + gamma (mean(phi) - phi_i)        phi_i <- phi_i + delta_i

    The last term pulls a pair together, and the momentum remembers it. The authors' code has gamma = beta. The term
    cancels in the mean of all replicas, which leaves heavy-ball momentum on the mean drift.

    Bytes: the partner's Delta and phi, two models per round. Seconds: the peers wait for them. A peer without a
    partner, or with a failed exchange, is a group of one.
    """

    alpha: float = 0.5
    beta: float = 0.7
    gamma: float = 0.7
    name: str = "noloco"
    phi: Tensor = field(init=False, repr=False)
    delta: Tensor = field(init=False, repr=False)

    def begin(self, lab: Lab) -> None:
        self.phi, self.delta = lab.x.clone(), torch.zeros_like(lab.x)

    def round(self, lab: Lab) -> None:
        lab.train(lab.setting.every)
        drift = lab.x - self.phi
        met, transfer = meet(lab, 2.0 * model_bytes(lab))
        lab.elapse(compute_seconds(lab, lab.setting.every) + transfer)
        self.delta.mul_(self.alpha).add_(drift + drift[met], alpha=self.beta / 2.0)
        self.delta.add_(self.phi[met] - self.phi, alpha=self.gamma / 2.0)
        self.phi += self.delta
        lab.x.copy_(self.phi)


@dataclass
class Gasloc(Averaged):
    """GASLoC (Cagnasso, Belilovsky & Oyallon 2026, arXiv 2606.11081): an outer momentum that accelerates gossip.

        y_t = theta_t + eta g_t        g_t: the drift of H_i inner steps
        theta_{t+1} = y_t - alpha Lambda y_t + gamma (y_t - y_{t-1})

    Lambda is the weighted Laplacian of the round's random matching, (y_i - y_j) / 2 for each pair. With the complete
    graph's Laplacian it is DiLoCo. H_i is proportional to the speed. Bytes: the partner's y per round. Seconds: the
    peers wait for it. A failed exchange leaves Lambda without that edge.
    """

    eta: float = 0.7
    alpha: float = 1.0
    gamma: float = 0.5
    name: str = "gasloc"
    theta: Tensor = field(init=False, repr=False)
    before: Tensor = field(init=False, repr=False)
    """y_{t-1}"""

    def begin(self, lab: Lab) -> None:
        self.theta = lab.x.clone()
        self.before = lab.x.clone()

    def round(self, lab: Lab) -> None:
        lab.train(own_pace(lab))
        y = self.theta + self.eta * (lab.x - self.theta)
        met, transfer = meet(lab, model_bytes(lab))
        lab.elapse(compute_seconds(lab, lab.setting.every) + transfer)
        self.theta = y - 0.5 * self.alpha * (y - y[met]) + self.gamma * (y - self.before)
        self.before = y
        lab.x.copy_(self.theta)


@dataclass
class AdPsgd(Averaged):
    """AD-PSGD (Lian et al. 2018, arXiv 1710.06952): every peer steps at its own pace and averages with a random peer.

        xhat_i = x_i, and g_i at xhat_i        x_i, x_j <- (x_i + x_j) / 2        x_i <- inner(x_i, g_i)

    Other peers may average with i while it computes, which makes its gradient stale. All peers are neighbours. Peers
    whose steps end together average in random order, then update.

    Bytes: a model per averaging on either side, so about two per step. Seconds: transfers overlap with the gradient. A
    step lasts as long as its gradient or two models over the peer's link, whichever is longer. Fast peers average with
    a slow peer more often than its link could carry. That is not charged, in favour of AD-PSGD.
    """

    name: str = "ad-psgd"
    xhat: Tensor = field(init=False, repr=False)

    def begin(self, lab: Lab) -> None:
        setting = lab.setting
        transfer = setting.link.seconds(2.0 * model_bytes(lab), 2) if lab.peers > 1 else 0.0
        self.round_seconds = np.maximum(setting.step_seconds / setting.all_speeds, transfer)
        self._due = lab.seconds + self.round_seconds
        self.xhat = lab.x.clone()

    def round(self, lab: Lab) -> None:
        end = lab.seconds + lab.setting.every * float(self.round_seconds.max())
        tick = 1e-6 * float(self.round_seconds.min())
        while (now := float(self._due.min())) <= end + tick:
            ready = np.flatnonzero(self._due <= now + tick)
            rows = torch.from_numpy(ready)
            gradients = lab.gradients(ready, self.xhat[rows])
            for peer in lab.random.permutation(ready) if lab.peers > 1 else ():
                self._average(lab, int(peer))
            lab.update(gradients, ready)
            self.xhat[rows] = lab.x[rows]
            self._due[ready] += self.round_seconds[ready]
        lab.set_clock(end)

    def _average(self, lab: Lab, peer: int) -> None:
        pair = [peer, (peer + int(lab.random.integers(1, lab.peers))) % lab.peers]
        lab.received[pair] += model_bytes(lab)
        if lab.random.random() >= lab.setting.failing:
            lab.x[pair] = lab.x[pair].mean(0)
