"""Methods and problems by name, made from options that JSON can hold, and the answer of a run.

Every kept answer depends on the text of this file (`runs.code_of`), and on the modules of its own method and problem.
So this file holds no method, problem or suite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from simulations.lab.baselines import BASELINES
from simulations.lab.compressors import COMPRESSORS
from simulations.lab.core import Lab, Method, Problem, Setting, play_in
from simulations.lab.lora.problem import ByteLora
from simulations.lab.methods.attacked import AttackedPairwise
from simulations.lab.methods.conditions import ChurningPairwise, FlippedLabels, Pretrained, UnequalBatches
from simulations.lab.methods.pairwise import PairwiseGossip, PairwiseOptions
from simulations.lab.problems import PROBLEMS
from simulations.lab.trials.groups import GroupGossip
from simulations.lab.trials.momentum import MomentumGossip
from simulations.lab.trials.rising import RisingGossip
from simulations.lab.trials.weighted import WeightedGossip
from simulations.lab.trials.wrapped import OutlierGossip, RotatedGossip

__all__ = ["METHODS", "TASKS", "answered", "modules"]


def _baseline(name: str) -> Callable[..., Method]:
    def make(**options: Any) -> Method:
        if "compressor" in options:
            options["compressor"] = COMPRESSORS[options["compressor"]]
        method: Any = BASELINES[name]()
        made: Method = replace(method, **options) if options else method
        return made

    return make


def _pairwise(**options: Any) -> Method:
    return PairwiseGossip(PairwiseOptions(**options))


def _churning(*, every: int = 5, share: float = 0.1, **options: Any) -> Method:
    return ChurningPairwise(PairwiseOptions(**options), every=every, share=share)


def _attacked(*, attack: str, bad: int, **options: Any) -> Method:
    return AttackedPairwise(PairwiseOptions(landing="at once", **options), attack, bad)


def _rotated(**options: Any) -> Method:
    return RotatedGossip(PairwiseOptions(**options))


def _outliers(*, count: int = 2, **options: Any) -> Method:
    return OutlierGossip(PairwiseOptions(**options), count=count)


def _momentum(*, parts: int = 4, **options: Any) -> Method:
    return MomentumGossip(PairwiseOptions(**options), parts=parts)


def _rising(*, first: float = 0.4, last: float = 0.9, **options: Any) -> Method:
    return RisingGossip(PairwiseOptions(**options), first=first, last=last)


def _groups(*, size: int, always: bool = True, **options: Any) -> Method:
    return GroupGossip(PairwiseOptions(**options), size=size, always=always)


def _weighted(*, weights: Sequence[float], **options: Any) -> Method:
    return WeightedGossip(PairwiseOptions(**options), weights=weights)


METHODS: dict[str, Callable[..., Method]] = {
    **{name: _baseline(name) for name in BASELINES},
    "pairwise": _pairwise,
    "pairwise-churning": _churning,
    "pairwise-attacked": _attacked,
    "pairwise-rotated": _rotated,
    "pairwise-outliers": _outliers,
    "pairwise-momentum": _momentum,
    "pairwise-groups": _groups,
    "pairwise-rising": _rising,
    "pairwise-weighted": _weighted,
}
"""makers of methods from their options; the options of a baseline are the fields of its class"""

TASKS: dict[str, Callable[..., Problem]] = {
    **PROBLEMS,
    "started": Pretrained,
    "flipped": FlippedLabels,
    "unequal": UnequalBatches,
}
"""problems, and problems under conditions, which name their problem as `of`"""

# A line in the dictionary would change the fingerprint of every kept answer.
TASKS["byte-lora"] = ByteLora


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


def modules(
    problem: str, data: Mapping[str, Any], method: str, options: Mapping[str, Any]
) -> tuple[set[str], set[str]]:
    """The code that a run's answer depends on.

    The dictionaries of methods import all methods. Only their text counts, and the modules of the chosen method.

    Returns:
        Modules that count with all their imports, and modules of which only the text counts.
    """
    made = METHODS[method](**options)
    parts: list[object] = [TASKS[problem], made, *vars(made).values()]
    if "of" in data:
        parts.append(PROBLEMS[data["of"]])
    found = {"simulations.lab.core", *(getattr(part, "__module__", "") for part in parts)}
    texts = {__name__}
    if method in BASELINES:
        texts |= {"simulations.lab.baselines"}
    if any(name.startswith("simulations.lab.compressors.") for name in found):
        texts |= {"simulations.lab.compressors"}
    return {name for name in found if name.startswith(("gossipdp.", "simulations."))}, texts
