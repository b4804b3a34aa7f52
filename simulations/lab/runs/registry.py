"""Methods and problems by name, made from options that JSON can hold, and the answer of a run.

Every kept answer depends on the text of this file (`runs.code_of`), and on the modules of its own method and problem.
So this file holds no method, problem or suite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from simulations.lab.baselines import BASELINES
from simulations.lab.core import Lab, Method, Problem, Setting, play_in
from simulations.lab.lora.problem import ByteLora
from simulations.lab.methods.pairwise import PairwiseGossip, PairwiseOptions
from simulations.lab.methods.unequal import UnequalBatches
from simulations.lab.methods.weighted import WeightedGossip
from simulations.lab.problems import PROBLEMS

__all__ = ["METHODS", "TASKS", "answered", "modules"]


def _pairwise(**options: Any) -> Method:
    return PairwiseGossip(PairwiseOptions(**options))


def _weighted(*, weights: Sequence[float], **options: Any) -> Method:
    return WeightedGossip(PairwiseOptions(**options), weights=weights)


METHODS: dict[str, Callable[..., Method]] = {
    **BASELINES,
    "pairwise": _pairwise,
    "pairwise-weighted": _weighted,
}
"""makers of methods from their options; the options of a baseline are the fields of its class"""

TASKS: dict[str, Callable[..., Problem]] = {**PROBLEMS, "byte-lora": ByteLora, "unequal": UnequalBatches}
"""problems, and problems under conditions, which name their problem as `of`"""


def answered(
    problem: str, data: Mapping[str, Any], method: str, options: Mapping[str, Any], setting: Setting
) -> dict[str, Any]:
    """Play one run here and now.

    Returns:
        What JSON can hold: parameters, points of the curve, and facts.
    """
    made = METHODS[method](**options)
    lab = Lab(TASKS[problem](**data), setting)
    curve = play_in(lab, made)
    return {
        "parameters": curve.parameters,
        "points": [list(point) for point in curve.points],
        "facts": _facts(made, lab),
    }


def _facts(method: Method, lab: Lab) -> dict[str, float]:
    """Counts of a method of this project, and the loss of the model that ends its run."""
    if not isinstance(method, PairwiseGossip):
        return {}
    facts = asdict(method.tally)
    return {**facts, "finished": method.finish(lab)} if type(method) is PairwiseGossip else facts


def modules(problem: str, method: str, options: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """The code that a run's answer depends on.

    The dictionaries of methods import all methods. Only their text counts, and the modules of the chosen method.

    Returns:
        Modules that count with all their imports, and modules of which only the text counts.
    """
    found = {"simulations.lab.core", TASKS[problem].__module__, METHODS[method](**options).__module__}
    return found, {__name__, "simulations.lab.baselines"} if method in BASELINES else {__name__}
