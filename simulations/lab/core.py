"""N replicas of one real model in one process, trained by any method on a simulated clock.

The replicas are rows of one tensor, shape (N, P), and one batched call steps them all. A `Problem` is what they train,
a `Method` is how they agree, and a `Setting` holds the conditions. `play` returns the `Curve` of one run.

Seconds are simulated. The peer's speed sets the length of a step, and the `Link` that of a transfer. The speed of this
machine does not count. This module knows no method (see `baselines`, `methods`) and no problem.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peers.plan.timeline import FREE, Counts, Link, Timeline
from simulations.lab.inner import INNER, InnerTerms

__all__ = ["Curve", "Lab", "Method", "Point", "Problem", "Score", "Setting", "play", "play_in"]


class Score(NamedTuple):
    """Held-out score of one model."""

    loss: float
    """nats"""
    accuracy: float
    """share of right answers; NaN if the problem has none"""


class Problem(Protocol):
    """A model as one flat vector of P parameters, and the data of N replicas."""

    @property
    def name(self) -> str: ...

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        """Shapes of the parameters, in their order in the vector."""

    @property
    def embeddings(self) -> Collection[int]:
        """Indices in `shapes` of embedding tables."""

    @property
    def parameters(self) -> int:
        """P."""

    def start(self, seed: int) -> Tensor:
        """The initial parameters, fp32, shape (P,); shape (N, P) if the replicas begin at different points."""

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        """The training examples of these peers in these steps: tensors with one row per peer.

        The result depends on the arguments alone, so two methods see the same data.
        """

    def loss(self, x: Tensor, *batch: Tensor) -> Tensor:
        """Loss of one replica, a scalar, for `torch.func.vmap`.

        Args:
            x: parameters, shape (P,).
            batch: one row of each tensor of `batches`.
        """

    def evaluate(self, x: Tensor) -> Score:
        """Held-out score of the model `x`, shape (P,)."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    peers: int
    """N"""
    every: int
    """H: inner steps of a peer of speed 1 in one round"""
    rounds: int
    seed: int = 0
    inner: str = "adamw"
    """inner optimizer, a key of `INNER`"""
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)
    """of AdamW"""
    weight_decay: float = 0.0
    decay: bool = True
    """whether the learning rate follows a cosine down to a tenth of `lr`"""
    warmup: int = 0
    """synchronous steps before the first round; all replicas then train as one (algorithms section 6)"""
    link: Link = FREE
    step_seconds: float = 1.0
    """seconds of one inner step of a peer of speed 1"""
    speeds: tuple[float, ...] = (1.0,)
    """speeds of the peers, repeated up to N; 1 is the slowest"""
    evaluate_every: int = 1
    """rounds"""
    failing: float = 0.0
    """share of exchanges that fail; of collectives, in a synchronous round"""

    @property
    def all_speeds(self) -> NDArray[np.float64]:
        """The speed of each peer, shape (N,)."""
        return np.resize(np.array(self.speeds, np.float64), self.peers)


class Method(Protocol):
    """How replicas agree. A run uses a new object."""

    name: str

    def begin(self, lab: Lab) -> None:
        """Prepare for the first round. The replicas are equal, and the synchronous steps are over."""

    def round(self, lab: Lab) -> None:
        """Train and exchange. The method advances the lab's clock and counts the bytes that each peer received."""

    def model(self, lab: Lab) -> Tensor:
        """The model of the run, shape (P,): the mean of the replicas, or what the method calls its model."""


class Point(NamedTuple):
    """The state after a round."""

    round: int
    seconds: float
    """simulated seconds"""
    bytes: float
    """mean bytes that a peer has received, per parameter"""
    steps: float
    """mean inner steps of a peer"""
    loss: float
    """held-out loss of the method's model, nats"""
    accuracy: float
    replica_loss: float
    """mean held-out loss of up to four single replicas, nats"""
    distance: float
    """consensus distance: sqrt(mean_i ||x_i - mean x||^2)"""


@dataclass(frozen=True)
class Curve:
    method: str
    problem: str
    setting: Setting
    parameters: int
    points: tuple[Point, ...]

    @property
    def last(self) -> Point:
        return self.points[-1]


@dataclass
class Lab(Timeline):
    """Replicas and their inner optimizers on a clock, with counts of steps and bytes."""

    problem: Problem
    setting: Setting
    x: Tensor = field(init=False)
    """live parameters, shape (N, P), fp32. The tensor object never changes, because methods hold views of its rows"""
    progress: float = field(default=0.0, init=False)
    """share of the run that is over, 0 to 1; the learning rate follows it"""

    def __post_init__(self) -> None:
        super().__init__(self.setting)
        count = self.setting.peers
        self.x = self.problem.start(self.setting.seed).expand(count, -1).clone(memory_format=torch.contiguous_format)
        terms = InnerTerms(betas=self.setting.betas, weight_decay=self.setting.weight_decay)
        self.inner = INNER[self.setting.inner](self.x, terms)
        self._slowest = int(np.argmin(self.setting.all_speeds))
        self._passed: float | None = None
        """steps of a peer of speed 1 since `start`; None before"""
        self._losses = torch.func.vmap(self.problem.loss)

    @property
    def mean(self) -> Tensor:
        """The mean of the replicas, shape (P,)."""
        return self.x.mean(0)

    @property
    def lr(self) -> float:
        """The current learning rate of the inner optimizer."""
        if not self.setting.decay:
            return self.setting.lr
        return self.setting.lr * (0.1 + 0.45 * (1.0 + float(np.cos(np.pi * self.progress))))

    def gradients(self, peers: Counts | None = None) -> Tensor:
        """Gradients of `peers` (indices; all if None) on their next batches, shape (peers, P)."""
        chosen = np.arange(self.peers) if peers is None else peers
        at = self.x if peers is None else self.x[torch.from_numpy(chosen)]
        batch = self.problem.batches(chosen, self.steps[chosen], self.setting.seed)
        # The loss of a replica depends on its own parameters alone, so the gradient of the sum holds the gradient of
        # each. `torch.func.grad` would import a compiler, which takes seconds.
        at = at.detach().requires_grad_()
        found: Tensor = torch.autograd.grad(self._losses(at, *batch).sum(), at)[0]
        return found

    def update(self, gradients: Tensor, peers: Counts | None = None) -> None:
        """One inner step of `peers` (all if None) by `gradients`, shape (peers, P)."""
        chosen = np.arange(self.peers) if peers is None else peers
        self.steps[chosen] += 1
        if len(chosen) == self.peers:
            self.inner.step(self.x, gradients, slice(None), self.lr)
        else:
            self.inner.step(self.x, gradients, torch.from_numpy(chosen), self.lr)
        if self._slowest in chosen:
            self.advance()

    def train(self, counts: int | Counts) -> None:
        """Inner steps of every peer by itself: `counts` each, or one count per peer. The clock does not advance."""
        for _, due in self.ticks(counts):
            self.update(self.gradients(due), due)

    def tick(self, peers: Counts | None) -> None:
        """One inner step of these peers on their next batches; None for all."""
        self.update(self.gradients(peers), peers)

    def start(self) -> None:
        """Begin the run: from here on the learning rate falls."""
        self._passed = 0.0

    def advance(self, steps: float = 1.0) -> None:
        """Advance the learning rate by steps of a peer of speed 1. `update` calls this by itself."""
        if self._passed is not None:
            self._passed += steps
            self.progress = min(1.0, self._passed / (self.setting.every * self.setting.rounds))

    def distance(self) -> float:
        """The consensus distance."""
        return float((self.x - self.mean).square().sum(1).mean().sqrt())


def play(problem: Problem, method: Method, setting: Setting) -> Curve:
    """Play one run."""
    return play_in(Lab(problem, setting), method)


def play_in(lab: Lab, method: Method) -> Curve:
    """Play one run in a fresh laboratory."""
    setting = lab.setting
    _warm_up(lab)
    method.begin(lab)
    lab.start()
    points = [_measure(lab, method, 0)]
    for number in range(1, setting.rounds + 1):
        method.round(lab)
        if number % setting.evaluate_every == 0 or number == setting.rounds:
            points.append(_measure(lab, method, number))
    return Curve(method.name, lab.problem.name, setting, lab.problem.parameters, tuple(points))


def _warm_up(lab: Lab) -> None:
    """Take the synchronous steps of a warm start: every replica takes the mean of all gradients.

    They cost what an all-reduce by recursive halving and doubling costs (see `peers/plan/clock.py`).
    """
    setting = lab.setting
    size = 2.0 * (1.0 - 1.0 / setting.peers) * 4.0 * lab.problem.parameters
    for _ in range(setting.warmup):
        lab.update(lab.gradients().mean(0, keepdim=True).expand_as(lab.x))
        lab.receive(size)
        lab.elapse(setting.step_seconds + setting.link.seconds(size, 2 * (setting.peers - 1).bit_length()))


def _measure(lab: Lab, method: Method, number: int) -> Point:
    model = lab.problem.evaluate(method.model(lab))
    few = np.unique(np.linspace(0, lab.peers - 1, 4).astype(np.int64))
    alone = [lab.problem.evaluate(lab.x[int(peer)]).loss for peer in few]
    received = float(lab.received.mean()) / lab.problem.parameters
    return Point(
        number,
        lab.seconds,
        received,
        float(lab.steps.mean()),
        model.loss,
        model.accuracy,
        float(np.mean(alone)),
        lab.distance(),
    )
