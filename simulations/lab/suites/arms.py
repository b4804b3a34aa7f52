"""Arms of a suite: ways, which are methods with options, under one setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from gossipdp.config import Outer
from simulations.lab.core import Setting
from simulations.lab.runs.runs import Run
from simulations.lab.suites.base import Arm, Scale

__all__ = ["DAEMON", "Ways", "arms", "at_scale", "explicit_options", "with_short_start"]

Ways: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any]]]
"""methods and their options, by label"""


DAEMON: Final[Mapping[str, Any]] = {"momentum": Outer().momentum}
"""what runs of pairwise say even where it is the default, so that an answer is not taken for that of another default"""


def explicit_options(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A method's options, and of `DAEMON` what they leave to the default."""
    return {**DAEMON, **options} if method.startswith("pairwise") else dict(options)


def arms(
    group: str,
    setting: Setting,
    ways: Ways,
    *,
    problem: str = "byte-mlp",
    data: Mapping[str, Any] | None = None,
    seeds: int | None = None,
    rates: Mapping[str, float] = {},
) -> list[Arm]:
    """All these ways under one setting; but a method that `rates` names trains at so many times its learning rate."""
    found = []
    for label, (method, options) in ways.items():
        rated = replace(setting, lr=setting.lr * rates.get(method, 1.0))
        run = Run(
            setting=rated, problem=problem, data=data or {}, method=method, options=explicit_options(method, options)
        )
        found.append(Arm(group, label, run, seeds))
    return found


SHORT_START: Final = 5
"""steps, if it is only to be seen whether it works"""


def at_scale(setting: Setting, scale: Scale) -> Setting:
    """Small enough to see whether it works, if that is all that is asked."""
    if scale != "quick":
        return setting
    few = min(setting.peers, 8)
    return replace(setting, peers=few, every=5, rounds=min(setting.rounds, 4), warmup=min(setting.warmup, SHORT_START))


def with_short_start(options: Mapping[str, Any], scale: Scale) -> dict[str, Any]:
    """A method's options, with a start of its own as short as `at_scale` has one."""
    if scale != "quick" or "warmup_steps" not in options:
        return dict(options)
    return {**options, "warmup_steps": min(options["warmup_steps"], SHORT_START)}
