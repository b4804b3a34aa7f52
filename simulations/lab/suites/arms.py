"""Arms of a suite: variants, each a method with options, under one setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from gossipdp.config import Exchange
from simulations.lab.core import Setting
from simulations.lab.runs.runs import Run
from simulations.lab.suites.base import Arm, Scale

__all__ = ["SHORT_START", "Ways", "arms", "at_scale", "explicit_options", "with_short_start"]

Ways: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any]]]
"""method and options, by label"""


DAEMON: Final[Mapping[str, Any]] = {"bits": Exchange().bits, "lr": None, "momentum": None}
"""options that runs of pairwise state even at the default, so that a new default makes a new task. None: the daemon
chooses, as `usual_step` does"""


def explicit_options(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A method's options, with those of `DAEMON` stated."""
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
    """One arm per variant under one setting.

    Args:
        rates: factor of the learning rate, by method.
        seeds: most seeds per arm; None for all.
    """
    found = []
    for label, (method, options) in ways.items():
        rated = replace(setting, lr=setting.lr * rates.get(method, 1.0))
        run = Run(
            setting=rated, problem=problem, data=data or {}, method=method, options=explicit_options(method, options)
        )
        found.append(Arm(group, label, run, seeds))
    return found


SHORT_START: Final = 5
"""steps of a warm start at scale quick"""


def at_scale(setting: Setting, scale: Scale) -> Setting:
    """The setting, small at scale quick."""
    if scale != "quick":
        return setting
    few = min(setting.peers, 8)
    return replace(setting, peers=few, every=5, rounds=min(setting.rounds, 4))


def with_short_start(options: Mapping[str, Any], scale: Scale) -> dict[str, Any]:
    """A method's options, with a short warm start at scale quick."""
    if scale != "quick" or "warmup_steps" not in options:
        return dict(options)
    return {**options, "warmup_steps": min(options["warmup_steps"], SHORT_START)}
