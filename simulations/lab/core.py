"""The laboratory: N replicas of one real model in one process, trained by any method, on a simulated wall clock.

All replicas are rows of one tensor, shape (N, P), and one batched call steps them all. A `Problem` is what is trained,
a `Method` how the replicas agree, a `Setting` under which conditions; `play` gives the `Curve` of one run. Seconds are
simulated: a step lasts what the peer's speed says and a transfer what the `Link` says, whatever this machine does, so
that the same seed gives the same curve. No method may stand here (see `baselines`, `lab_methods`), and no problem.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simulations.lab.inner import INNER, InnerTerms

__all__ = ["INNER", "Curve", "Lab", "Link", "Method", "Point", "Problem", "Score", "Setting", "play"]

Counts = NDArray[np.int64]


class Score(NamedTuple):
    """Of one model on held-out data."""

    loss: float
    """nats"""
    accuracy: float
    """share of right answers; NaN where the problem knows no right answer"""


class Problem(Protocol):
    """What is trained: a model as one flat vector of P parameters, and the data of N replicas."""

    @property
    def name(self) -> str: ...

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        """Of the parameters, in the order in which they lie in the vector."""

    @property
    def embeddings(self) -> Collection[int]:
        """Places in `shapes` of tables, which are looked up in or read out by: Muon takes them for no matrices."""

    @property
    def parameters(self) -> int:
        """P."""

    def start(self, seed: int) -> Tensor:
        """The parameters all replicas begin with, shape (P,), fp32; or (N, P) where they begin apart."""

    def batches(self, peers: Counts, steps: Counts, seed: int) -> tuple[Tensor, ...]:
        """What these peers train on in these steps of theirs: each tensor has one row of examples a peer.

        A function of its arguments alone, so that two methods see the same data.
        """

    def loss(self, x: Tensor, *batch: Tensor) -> Tensor:
        """Of one replica, shapes (P,) and one row of each tensor of `batches`; a scalar, for `torch.func.vmap`."""

    def evaluate(self, x: Tensor) -> Score:
        """Of one model, shape (P,)."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """Every peer's connection to the network."""

    bandwidth: float = float("inf")
    """bytes a second, each way"""
    latency: float = 0.0
    """seconds, one way"""

    def seconds(self, size: float, turns: int = 1) -> float:
        """To move so many bytes, in so many messages each of which waits for the one before."""
        return size / self.bandwidth + turns * self.latency


@dataclass(frozen=True, kw_only=True)
class Setting:
    peers: int
    """N"""
    every: int
    """H: inner steps of a round, of a peer of speed 1"""
    rounds: int
    seed: int = 0
    inner: str = "adamw"
    """inner optimizer: one of `INNER`"""
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)
    """of adamw"""
    weight_decay: float = 0.0
    decay: bool = True
    """the learning rate falls along a cosine, step by step, to a tenth of `lr` at the end"""
    warmup: int = 0
    """synchronous steps before the first round: all replicas train as one (algorithms section 6)"""
    link: Link = Link()
    step_seconds: float = 1.0
    """one inner step of a peer of speed 1"""
    speeds: tuple[float, ...] = (1.0,)
    """of the peers, repeated as often as needed; 1 is the slowest"""
    evaluate_every: int = 1
    """rounds"""
    failing: float = 0.0
    """share of the exchanges (of all, in a synchronous round) that come to nothing"""

    @property
    def all_speeds(self) -> NDArray[np.float64]:
        """Shape (N,)."""
        return np.resize(np.array(self.speeds, np.float64), self.peers)


class Method(Protocol):
    """How replicas agree. One run uses one object once."""

    name: str

    def begin(self, lab: Lab) -> None:
        """All replicas are equal now, and warm if that was wanted."""

    def round(self, lab: Lab) -> None:
        """Train, exchange, and tell the lab how long that took and what each peer received."""

    def model(self, lab: Lab) -> Tensor:
        """What a user would take home, shape (P,): the mean of the replicas, or what the method calls its model."""


class Point(NamedTuple):
    """How things stood after a round."""

    round: int
    seconds: float
    """simulated"""
    bytes: float
    """received so far by a peer, for each parameter"""
    steps: float
    """inner steps so far, mean of the peers"""
    loss: float
    """held-out, of the method's model"""
    accuracy: float
    replica_loss: float
    """held-out, mean of a few single replicas"""
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

    def when(self, loss: float, of: Callable[[Point], float] = lambda point: point.loss) -> float:
        """Simulated seconds until the model was as good as `loss`, between points by a line; infinite if never.

        Args:
            of: the loss that counts; the model's unless given.
        """
        before: Point | None = None
        for point in self.points:
            if of(point) <= loss:
                if before is None:
                    return point.seconds
                share = (of(before) - loss) / (of(before) - of(point))
                return before.seconds + share * (point.seconds - before.seconds)
            before = point
        return float("inf")


@dataclass
class Lab:
    """Replicas, their inner optimizers, their data, a clock and an account of bytes."""

    problem: Problem
    setting: Setting
    x: Tensor = field(init=False)
    """the live parameters, shape (N, P), fp32; always this very tensor, for methods may hold views of its rows"""
    seconds: float = field(default=0.0, init=False)
    received: NDArray[np.float64] = field(init=False)
    """bytes, shape (N,)"""
    steps: Counts = field(init=False)
    """of each peer, shape (N,)"""
    random: np.random.Generator = field(init=False)
    """for methods: who meets whom, and how codecs round"""
    attackers: int = field(default=0, init=False)
    """liars, the first so many: what becomes of them is no figure"""
    progress: float = field(default=0.0, init=False)
    """of the run, 0 to 1: what the learning rate follows, whatever rounds the steps are divided into"""

    def __post_init__(self) -> None:
        count = self.setting.peers
        self.x = self.problem.start(self.setting.seed).expand(count, -1).clone(memory_format=torch.contiguous_format)
        terms = InnerTerms(
            betas=self.setting.betas,
            weight_decay=self.setting.weight_decay,
            shapes=self.problem.shapes,
            embeddings=self.problem.embeddings,
        )
        self.inner = INNER[self.setting.inner](self.x, terms)
        self.steps = np.zeros(count, np.int64)
        self.received = np.zeros(count, np.float64)
        self.random = np.random.default_rng((self.setting.seed, 0x6C6162))
        self._slowest = int(np.argmin(self.setting.all_speeds))
        self._passed: float | None = None
        """steps of a peer of speed 1 since `start`; none before"""
        self._losses = torch.func.vmap(self.problem.loss)

    @property
    def peers(self) -> int:
        return self.setting.peers

    @property
    def mean(self) -> Tensor:
        """Of the replicas, shape (P,)."""
        return self.x.mean(0)

    @property
    def lr(self) -> float:
        """Of the inner optimizer, now."""
        if not self.setting.decay:
            return self.setting.lr
        return self.setting.lr * (0.1 + 0.45 * (1.0 + float(np.cos(np.pi * self.progress))))

    def gradients(self, peers: Counts | None = None, x: Tensor | None = None) -> Tensor:
        """Of these peers (all) on their next batches, at `x` (their live parameters), shape (peers, P)."""
        chosen = np.arange(self.peers) if peers is None else peers
        at = (self.x if peers is None else self.x[torch.from_numpy(chosen)]) if x is None else x
        batch = self.problem.batches(chosen, self.steps[chosen], self.setting.seed)
        # No replica's loss depends on another's parameters, so the gradient of the sum is that of each. It saves the
        # seconds that `torch.func.grad` takes to import a compiler.
        at = at.detach().requires_grad_()
        found: Tensor = torch.autograd.grad(self._losses(at, *batch).sum(), at)[0]
        return found

    def update(self, gradients: Tensor, peers: Counts | None = None) -> None:
        """One inner step of these peers (all) by these gradients."""
        chosen = np.arange(self.peers) if peers is None else peers
        self.steps[chosen] += 1
        if len(chosen) == self.peers:
            self.inner.step(self.x, gradients, slice(None), self.lr)
        else:
            self.inner.step(self.x, gradients, torch.from_numpy(chosen), self.lr)
        if self._slowest in chosen:
            self.advance()

    def train(self, counts: int | Counts) -> None:
        """So many inner steps of every peer on its own; counts may differ. Takes no simulated time by itself."""
        for _, due in self.ticks(counts):
            self.update(self.gradients(due), due)

    def ticks(self, counts: int | Counts) -> Iterator[tuple[float, Counts | None]]:
        """So many steps of every peer, spread over one time for all: the share of it that has passed, who steps (all).

        Nobody's steps come after the others', for the learning rate is one for all.
        """
        each = np.broadcast_to(np.asarray(counts, np.int64), (self.peers,))
        most, alike = int(each.max()), bool((each == each[0]).all())
        for tick in range(most):
            due = None if alike else np.flatnonzero((tick + 1) * each // most > tick * each // most)
            yield tick / most, None if due is None or len(due) == self.peers else due

    def start(self) -> None:
        """What was before was preparation: from here on the learning rate falls."""
        self._passed = 0.0

    def advance(self, steps: float = 1.0) -> None:
        """So many steps of a peer of speed 1 are behind the learning rate; `update` tells by itself."""
        if self._passed is not None:
            self._passed += steps
            self.progress = min(1.0, self._passed / (self.setting.every * self.setting.rounds))

    def elapse(self, seconds: float) -> None:
        """Advance the clock by `seconds`."""
        self.seconds += seconds

    def set_clock(self, seconds: float) -> None:
        """Set the clock to this simulated time."""
        self.seconds = seconds

    def exclude(self, attackers: int) -> None:
        """Leave the first `attackers` peers out of every figure."""
        self.attackers = attackers

    def receive(self, size: float | NDArray[np.float64]) -> None:
        """Every peer has received so many bytes."""
        self.received += size

    def distance(self) -> float:
        """Consensus distance of the replicas."""
        x = self.x[self.attackers :]
        return float((x - x.mean(0)).square().sum(1).mean().sqrt())


def play(problem: Problem, method: Method, setting: Setting) -> Curve:
    """One run from its seed."""
    lab = Lab(problem, setting)
    _warm_up(lab)
    method.begin(lab)
    lab.start()
    points = [_measure(lab, method, 0)]
    for number in range(1, setting.rounds + 1):
        method.round(lab)
        if number % setting.evaluate_every == 0 or number == setting.rounds:
            points.append(_measure(lab, method, number))
    return Curve(method.name, problem.name, setting, problem.parameters, tuple(points))


def _warm_up(lab: Lab) -> None:
    """Synchronous steps: every replica takes the mean of all gradients. They cost what an all-reduce does that halves
    and doubles (see `baselines_network`)."""
    setting = lab.setting
    size = 2.0 * (1.0 - 1.0 / setting.peers) * 4.0 * lab.problem.parameters
    for _ in range(setting.warmup):
        lab.update(lab.gradients().mean(0, keepdim=True).expand_as(lab.x))
        lab.receive(size)
        lab.elapse(setting.step_seconds + setting.link.seconds(size, 2 * (setting.peers - 1).bit_length()))


def _measure(lab: Lab, method: Method, number: int) -> Point:
    model = lab.problem.evaluate(method.model(lab))
    few = np.unique(np.linspace(lab.attackers, lab.peers - 1, 4).astype(np.int64))
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
