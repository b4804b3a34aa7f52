"""One setting of the suite `stability`, played with exchanges and, on the same data, without."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peers.plan.timeline import Counts
from simulations.lab.core import Lab, Problem, Setting
from simulations.lab.inner import InnerTerms
from simulations.lab.stability.landing import LandingOptions, LandingPairwise
from simulations.lab.stability.optimizers import OPTIMIZERS
from simulations.lab.stability.problems import PROBLEMS, OneBatch

__all__ = ["EVENTS", "GONE", "Cell", "CellSetting", "play"]

EVENTS: Final = ("", "checkpoint", "tenfold", "thawed")
"""in mid-run: nothing; the first host's weights after a quarter of the run are put back, without notice; the learning
rate becomes tenfold; the first tensor, frozen until then, trains"""
GONE: Final = 1e30
"""stands for a loss that is not finite"""
FAR: Final = 1e8
"""a parameter beyond it has exploded"""
TINY: Final = 1e-4
"""share of the loss at the start that no mark looks at"""
FIXED: Final = 1_000_033
"""number of the peer whose first batch is measured before and after each drain"""


@dataclass(frozen=True, kw_only=True)
class CellSetting(Setting):
    inner: str = "sgd"
    """not used"""
    decay: bool = False
    optimizer: str = "momentum"
    """a key of `OPTIMIZERS`"""
    event: str = ""
    """one of `EVENTS`"""
    one_batch: bool = False
    """whether each host sees one batch in all steps"""


@dataclass
class CellLab(Lab):
    """A laboratory with these optimizers and events."""

    setting: CellSetting

    def __post_init__(self) -> None:
        super().__post_init__()
        setting, problem = self.setting, self.problem
        terms = InnerTerms(betas=setting.betas, weight_decay=0.0)
        self.inner = OPTIMIZERS[setting.optimizer](self.x, terms)
        self._late = False
        self._frozen = math.prod(problem.shapes[0]) if setting.event == "thawed" else 0
        self._kept = self.x[0].clone()

    @property
    def lr(self) -> float:
        return self.setting.lr * (10.0 if self._late and self.setting.event == "tenfold" else 1.0)

    def update(self, gradients: Tensor, peers: Counts | None = None) -> None:
        gradients[:, : self._frozen] = 0.0
        super().update(gradients, peers)

    def begin_round(self, number: int) -> None:
        """Play the event, if it is due. The first round is 0."""
        rounds = self.setting.rounds
        if number == rounds // 4:
            self._kept = self.x[0].clone()
        if number == rounds // 2:
            self._late, self._frozen = True, 0
            if self.setting.event == "checkpoint":
                self.x[0] = self._kept


def play(problem: Problem, setting: CellSetting, options: LandingOptions) -> dict[str, Any]:
    """Play one run.

    Returns:
        hosts: final loss of each host, before its last outer step. own, mixed: the worst ratio of the loss of a fixed
        batch after a drain to that before, where `TINY` of the start's is left out, by what was drained. gain: mean of
        the hosts' last g. ran: rounds in which hosts stepped as if alone. start: loss at the start.
    """
    if setting.one_batch:
        problem = OneBatch(problem)
    lab = CellLab(problem, setting)
    batch = [part[0] for part in problem.batches(np.array([FIXED]), np.array([0]), setting.seed)]
    start = problem.evaluate(lab.x[0]).loss
    worst = {True: 0.0, False: 0.0}

    def drained(peer: int, before: NDArray[np.float32], own: bool) -> None:
        with torch.no_grad():
            was, now = (float(problem.loss(x, *batch)) for x in (torch.from_numpy(before), lab.x[peer]))
        ratio = (now - TINY * start) / max(was, 1e-30)
        worst[own] = max(worst[own], min(ratio, GONE) if math.isfinite(ratio) else GONE)

    method = LandingPairwise(options, drained)
    method.begin(lab)
    lab.start()
    for number in range(setting.rounds):
        lab.begin_round(number)
        method.round(lab)
        if not (bool(lab.x.isfinite().all()) and float(lab.x.abs().max()) < FAR):
            break
    losses = [problem.evaluate(torch.from_numpy(replica.end)).loss for replica in method.replicas]
    sound = bool(lab.x.isfinite().all())
    return {
        "start": start,
        "hosts": [loss if sound and loss < GONE else GONE for loss in losses],
        "own": worst[True],
        "mixed": worst[False],
        "gain": float(np.mean([replica.gain for replica in method.replicas])),
        "ran": sum(replica.ran for replica in method.replicas),
    }


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A setting as a task."""

    setting: CellSetting
    problem: str
    data: Mapping[str, Any] = field(default_factory=dict)
    lands: tuple[float, float]
    guard: str = "both"
    seconds: float = 2.0
    """rough seconds of one core"""

    @property
    def name(self) -> str:
        setting = self.setting
        return f"{self.problem}, {setting.optimizer}, lr {setting.lr:g}, seed {setting.seed}"

    def seeded(self, seed: int) -> Cell:
        return replace(self, setting=replace(self.setting, seed=seed))

    def spec(self) -> dict[str, Any]:
        return {"kind": "stability", **asdict(self)}

    def modules(self) -> set[str]:
        return {__name__}

    def play(self) -> dict[str, Any]:
        """The run with exchanges, and `alone`: the final losses of the same hosts without."""
        problem, options = PROBLEMS[self.problem](**self.data), LandingOptions(lands=self.lands, guard=self.guard)
        alone = play(problem, replace(self.setting, failing=1.0), options)
        return {**play(problem, self.setting, options), "alone": alone["hosts"]}

    def estimate(self) -> float:
        return self.seconds
