"""One contestant in one heat: its own network, its processes, and its figures."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from simulations.processes.race.entries import Entry, Setting
from simulations.processes.race.evaluation import Evaluation
from simulations.processes.race.hosts import Grid
from simulations.processes.race.rules import HOSTS, Condition, Network, Rules

__all__ = ["Lane"]


class Lane:
    """From the first process to the figures. `with` it, so that its processes and its network end.

    Args:
        folder: empty, for everything that the processes write.
    """

    def __init__(
        self,
        make: Callable[[Setting], Entry],
        network: Network,
        condition: Condition,
        rules: Rules,
        seed: int,
        folder: Path,
    ) -> None:
        self._condition, self._rules, self._folder = condition, rules, folder
        (folder / "rules.json").write_text(json.dumps(asdict(rules)))
        self._grid = Grid(network, folder)
        self._entry = make(Setting(self._grid, folder, network, condition, rules, seed))
        self._dead: set[int] = set()
        self._gone = False
        self._before: list[int] = []
        self._sent: list[int] = []

    def __enter__(self) -> Lane:
        self._grid.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._grid.__exit__(kind, error, trace)
        finally:
            self._entry.reap()

    def set_up(self) -> None:
        """Start the processes."""
        self._entry.start()

    def ready(self) -> bool:
        """Whether the training processes of all hosts wait for the start.

        Raises:
            RuntimeError: a host has no process left.
        """
        waiting = [host for host in range(self._entry.hosts) if not (self._folder / f"ready-{host}-0").exists()]
        if any(not self._grid.hosts[host].processes() for host in waiting):
            raise RuntimeError(f"hosts {waiting} are not ready, and one of them has no process left\n{self.logs()}")
        return not waiting

    def start(self, at: float) -> None:
        """Limit the rates and tell the processes when the race starts, on the monotonic clock."""
        self._grid.limit()
        self._before = self._grid.sent()
        # A script must never read half of the number.
        (self._folder / "start.new").write_text(repr(at))
        (self._folder / "start.new").rename(self._folder / "start")

    def tend(self, seconds: float) -> None:
        """Look after the processes `seconds` after the start."""
        fatal = self._condition.dies and self._entry.hosts == HOSTS
        if fatal and not self._dead and seconds >= self._rules.length(self._condition) / 3:
            self._entry.events.append(("a host loses power", time.monotonic()))
            self._dead.add(HOSTS - 1)
        if self._dead and not self._gone:
            self._gone = self._grid.lose_power(HOSTS - 1)
        self._entry.tend(self._dead)

    def stop(self) -> None:
        """End the race: read the counters, and kill everything, unless the contestant has an end of its own."""
        sent = zip(self._grid.sent(), self._before, strict=True)
        self._sent = [after - before for after, before in sent][: self._entry.hosts]
        if not self._entry.finishes:
            self._grid.kill_all()

    def figures(self, start: float) -> dict[str, Any]:
        """What the notes and snapshots say of the hosts that are healthy from start to end, and the finished model."""
        finished = self._entry.finish()
        seconds, rates, pauses = self._rules.length(self._condition), [], []
        hurt = self._condition.slow or self._condition.dies
        healthy = range(min(self._entry.hosts, HOSTS - 1 if hurt else HOSTS))
        for host in healthy:
            notes = self._folder / f"steps-{host}"
            times = [float(line) for line in notes.read_text().split()] if notes.exists() else []
            within = [at for at in times if at <= seconds]
            rates.append(len(within) / seconds)
            pauses.append(max(later - earlier for earlier, later in itertools.pairwise([0.0, *within, seconds])))
        evaluation = Evaluation(self._folder, self._rules, healthy, seconds)
        return {
            "seconds": seconds,
            "rate": round(statistics.mean(rates), 4),
            "pause": round(max(pauses), 3),
            "sent": [self._sent[host] for host in healthy],
            "events": [(what, round(at - start, 2)) for what, at in self._entry.events],
            "curve": evaluation.curve(),
            "single": evaluation.single(),
            "finished": evaluation.loss_of(finished) if finished else None,
        }

    def logs(self) -> str:
        """The ends of all logs."""
        paths = sorted(path for path in self._folder.glob("*log*") if path.is_file())
        return "".join(f"\n--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in paths)
