"""A heat: all contestants side by side, each on a network of its own, with one start.

Training sleeps for most of a step, so the contestants of a heat share the cores without a loss of steps. Whatever else
the machine does meets all of them at the same moment. The figure of the host that trains alone shows whether the cores
were enough: it makes as many steps as the shortest step allows.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulations.processes.race.entries import CONTESTANTS
from simulations.processes.race.lane import Lane
from simulations.processes.race.rules import Condition, Network, Rules

__all__ = ["Heat"]

READY = 300.0
"""seconds within which all training processes wait for the start"""
LOOK, SLOW_LOOK = 0.05, 0.5
"""seconds between two looks, while the race runs and before it"""
LEAD = 3.0
"""seconds from the first limit of a rate until the start"""


@dataclass(frozen=True)
class Heat:
    network: Network
    condition: Condition
    repeat: int

    @property
    def name(self) -> str:
        return f"{self.network.name}-{self.condition.name}-{self.repeat}"

    def play(self, entries: Sequence[str], rules: Rules) -> dict[str, dict[str, Any]]:
        """Play the heat with these contestants. Return the figures of each, which JSON can hold.

        Raises:
            RuntimeError: not all training processes became ready.
        """
        rules = rules.on(self.network)
        with contextlib.ExitStack() as stack:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gossipdp-race-")))
            lanes: dict[str, Lane] = {}
            for name in entries:
                folder = place / name
                folder.mkdir()
                lane = Lane(CONTESTANTS[name][1], self.network, self.condition, rules, self.repeat, folder)
                lanes[name] = stack.enter_context(lane)
            start = self._run(list(lanes.values()), rules)
            about = {"network": self.network.name, "condition": self.condition.name, "repeat": self.repeat}
            return {name: {"entry": name, **about, **lane.figures(start)} for name, lane in lanes.items()}

    def _run(self, lanes: Sequence[Lane], rules: Rules) -> float:
        for lane in lanes:
            lane.set_up()
        deadline = time.monotonic() + READY
        while not all(lane.ready() for lane in lanes):
            if time.monotonic() > deadline:
                raise RuntimeError("not all became ready" + "".join(lane.logs() for lane in lanes if not lane.ready()))
            time.sleep(SLOW_LOOK)
        start = time.monotonic() + LEAD
        for lane in lanes:
            lane.start(start)
        while (seconds := time.monotonic() - start) < rules.length(self.condition):
            for lane in lanes:
                lane.tend(seconds)
            time.sleep(LOOK)
        for lane in lanes:
            lane.stop()
        return start
