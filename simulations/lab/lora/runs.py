"""Runs of LoRA, as data. Their answers also hold what averaging A and B apart costs at the end of training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from simulations.lab.core import Curve, Lab, play_in
from simulations.lab.failures.gossip import FailingPairwise
from simulations.lab.failures.hosts import FailureSetting
from simulations.lab.failures.lab import play
from simulations.lab.lora.problem import ByteLora
from simulations.lab.methods.pairwise import PairwiseGossip, PairwiseOptions
from simulations.lab.runs.registry import METHODS
from simulations.lab.runs.runs import Run

__all__ = ["LoraRun", "factors_apart"]


def factors_apart(problem: ByteLora, x: Tensor) -> dict[str, float]:
    """What the mean of the factors loses against the mean of the products, of replicas x, shape (N, P).

    Returns:
        Held-out losses with each of the two means, and the norm of their difference over that of the mean product.
    """
    each = [problem.products(row) for row in x]
    exact = [torch.stack(products).mean(0) for products in zip(*each, strict=True)]
    apart = problem.products(x.mean(0))
    error = sum(float((one - other).square().sum()) for one, other in zip(apart, exact, strict=True))
    whole = sum(float(product.square().sum()) for product in exact)
    return {
        "factors": problem.score(apart),
        "products": problem.score(exact),
        "apart": (error / whole) ** 0.5 if whole else 0.0,
    }


@dataclass(frozen=True, kw_only=True)
class LoraRun(Run):
    """One method on `ByteLora`, with the daemon's `pairwise` on hosts with events if the setting has some."""

    problem: str = "byte-lora"

    def seeded(self, seed: int) -> LoraRun:
        return replace(self, setting=replace(self.setting, seed=seed), data={**self.data, "drawn": seed})

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "kind": "lora"}

    def _code(self) -> tuple[set[str], set[str]]:
        found, texts = super()._code()
        events = {"simulations.lab.failures.gossip"} if isinstance(self.setting, FailureSetting) else set()
        return found | events, texts | {__name__}

    def play(self) -> dict[str, Any]:
        problem, method, curve, lab = self._played()
        facts = factors_apart(problem, lab.x)
        if isinstance(method, PairwiseGossip):
            facts["finished"] = method.finish(lab)
        return {"parameters": curve.parameters, "points": [list(point) for point in curve.points], "facts": facts}

    def _played(self) -> tuple[ByteLora, object, Curve, Lab]:
        problem = ByteLora(**self.data)
        if isinstance(self.setting, FailureSetting):
            failing = FailingPairwise(PairwiseOptions(**self.options))
            return problem, failing, *play(problem, failing, self.setting)
        method = METHODS[self.method](**self.options)
        lab = Lab(problem, self.setting)
        return problem, method, play_in(lab, method), lab
