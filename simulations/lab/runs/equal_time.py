"""Settings of equal time: how many rounds of which H fill a given time, by the method's own clock.

The clock plays rounds without training. This module plays no run to its end (see `runs.py`) and knows no suite.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Final

from torch import Tensor

from peers.plan.timeline import Counts
from simulations.lab.core import Lab, Setting
from simulations.lab.problems import PROBLEMS
from simulations.lab.runs.runs import Run

__all__ = ["setting_in_time"]

FULL: Final = 0.98
"""share of the time that the rounds must fill"""
STEPWISE: Final = {"ddp"}
"""methods that exchange in every step, so all steps last equally long"""


def setting_in_time(seconds: float, run: Run, parameters: int) -> Setting:
    """The run's setting with as many rounds as fit into `seconds`, with H as near to its own as possible.

    Whole rounds of the given H may leave much of the time unused, or not fit at all. If they do not fill the share
    `FULL`, another H is chosen. If no H does, the H that fills most is chosen. If not even one step and its exchange
    fit, the result is one round of the given H.

    Args:
        parameters: of the model.
    """
    setting, limit = run.setting, seconds * (1.0 + 1e-9)

    def total(every: int, rounds: int) -> float:
        first, others = round_seconds(run, every, parameters)
        return first + (rounds - 1) * others

    def longest(rounds: int) -> int:
        """The largest H of which `rounds` rounds fit; 0 if none does. Seconds are nearly linear in H, which guides the
        search.
        """
        low, high, most = 1, setting.every, int(limit / (rounds * setting.step_seconds)) + 1
        if total(low, rounds) > limit:
            return 0
        # A round of many steps is slow to play if each of them exchanges.
        while high < most and total(high, rounds) <= limit:
            low, high = high, min(2 * high, most)
        while high - low > 1:
            share = (limit - total(low, rounds)) / (total(high, rounds) - total(low, rounds))
            middle = min(max(low + 1, low + int(share * (high - low))), high - 1)
            low, high = (middle, high) if total(middle, rounds) <= limit else (low, middle)
        return low

    first, others = round_seconds(run, setting.every, parameters)
    fits = 1 + int((limit - first) / others) if first <= limit else 0
    if fits and total(setting.every, fits) >= FULL * seconds:
        return replace(setting, rounds=fits)
    found = [(longest(rounds), rounds) for rounds in range(max(1, fits - 1), fits + 3)]
    filled = {(every, rounds): total(every, rounds) for every, rounds in found if every}
    enough = min(FULL * seconds, max(filled.values(), default=0.0))
    full = [one for one, time in filled.items() if time >= enough]
    every, rounds = min(full, key=lambda one: abs(math.log(one[0] / setting.every)), default=(setting.every, 1))
    return replace(setting, every=every, rounds=rounds)


def round_seconds(run: Run, every: int, parameters: int) -> tuple[float, float]:
    """Seconds of the first round and of each later one, by the method's own clock.

    The first differs by finer codecs, and because its exchanges land later.
    """
    if every > 1 and run.method in STEPWISE:
        first, others = round_seconds(run, 1, parameters)
        return first + (every - 1) * others, every * others
    setting = replace(run.setting, every=every, rounds=2, warmup=0, failing=0.0)
    key = json.dumps([replace(run, setting=setting).spec(), parameters], default=list)
    if key not in _KNOWN:
        lab, method = ClockLab(PROBLEMS["quadratic"](size=parameters), setting), run.made()
        method.begin(lab)
        method.round(lab)
        first = lab.seconds
        method.round(lab)
        _KNOWN[key] = first, lab.seconds - first
    return _KNOWN[key]


_KNOWN: Final[dict[str, tuple[float, float]]] = {}


class ClockLab(Lab):
    """Replicas that do not train. A round only tells how long it lasts."""

    def gradients(self, peers: Counts | None = None) -> Tensor:
        return self.x[:1].expand(self.peers if peers is None else len(peers), -1)

    def update(self, gradients: Tensor, peers: Counts | None = None) -> None:
        self.steps[slice(None) if peers is None else peers] += 1

    def train(self, counts: int | Counts) -> None:
        self.steps += counts
