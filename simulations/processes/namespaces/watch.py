"""Observes a real peer from outside and reports broken invariants, for `chaos`.

It uses what an operator has: `status` and `members` of the control socket, the metrics endpoint, /proc, logs and
checkpoints. It also reads the diaries of the training processes. It changes nothing.
"""

from __future__ import annotations

import itertools
import math
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from simulations.processes.namespaces.processes import Host, gossipdp, pause
from simulations.processes.progress import STALL

__all__ = ["PAUSE", "Watch"]

PAUSE = 3.0
"""seconds without a step; a process that waits for the network pauses longer"""
MEASURED = 10.0
"""seconds after its warm-up that a daemon must live for its memory growth to be judged"""
MONOTONE = ("round", "clock", "steps", "samples", "chunks_in_doubt", "exchanged_bytes", "sent_bytes", "received_bytes")
TOTAL = re.compile(r"^(gossipdp_\w+_total(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)
WRONG = re.compile(r"Traceback \(most recent|this is a bug|\bMemoryError\b|RuntimeWarning")
"""text that no log may contain"""


@dataclass
class Life:
    """What one daemon process has reported."""

    incarnation: int
    pid: int
    status: dict[str, Any]
    began: float
    totals: dict[str, float] = field(default_factory=dict)
    members: dict[str, tuple[int, int]] = field(default_factory=dict)
    """id -> last reported incarnation and steps"""
    memory: list[tuple[float, int, int]] = field(default_factory=list)
    """(time, resident bytes, descriptors)"""


class Watch:
    """Observes one host.

    Args:
        host: the peer. Its processes are started and ended elsewhere.
        blame: callback with each violation.
        inside: context in which new sockets belong to the host's network, to reach its metrics.
    """

    def __init__(
        self,
        host: Host,
        blame: Callable[[str], None],
        inside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.host = host
        self._blame, self._inside = blame, inside
        self.lives: list[Life] = []
        self.asleep: list[tuple[int, float, float]] = []
        """(process id, from, to) of each stop of a training process"""
        self.deaths: list[tuple[int, float]] = []
        """(process id, time) of each kill of a training process"""

    # -- a look -----------------------------------------------------------------------------------------------

    def look(self, *, metrics: bool = False) -> dict[str, Any]:
        """Ask the daemon, which runs or is dead but is not stopped. Return its `status`, or {} without an answer."""
        status, daemon = self.host.status(), self.host.daemon
        if not status or daemon is None:
            return {}
        life = self.lives[-1] if self.lives else None
        if life is None or life.pid != daemon.pid:
            if life is not None and status["incarnation"] <= life.incarnation:
                self._wrong(f"incarnation {status['incarnation']} after {life.incarnation}")
            life = Life(status["incarnation"], daemon.pid, status, time.monotonic())
            self.lives.append(life)
        self._compare(life, status)
        life.status = status
        life.memory.append((time.monotonic(), daemon.memory, daemon.descriptors))
        self._members(life)
        if metrics:
            self._scrape(life)
        return status

    def _compare(self, life: Life, status: Mapping[str, Any]) -> None:
        if status["incarnation"] != life.incarnation:
            self._wrong(f"incarnation {status['incarnation']} of a process that began with {life.incarnation}")
        for key in MONOTONE:
            if status[key] < life.status[key]:
                self._wrong(f"{key} fell from {life.status[key]} to {status[key]}")
        for result, count in life.status["exchanges"].items():
            if status["exchanges"].get(result, 0) < count:
                self._wrong(f"exchanges {result} fell below {count}")

    def _members(self, life: Life) -> None:
        for row in self.host.members():
            known, steps = life.members.get(row["id"], (0, 0))
            now = row["incarnation"], row["steps"] or 0
            if now[0] < known or now[1] < steps:
                self._wrong(f"said of {row['name']}: incarnation, steps {now} after {(known, steps)}")
            life.members[row["id"]] = now

    def _scrape(self, life: Life) -> None:
        address = life.status["metrics"]
        try:
            with self._inside(), urllib.request.urlopen(address, timeout=STALL) as answer:
                text = answer.read().decode()
        except OSError as error:
            if self.host.daemon is not None and self.host.daemon.code is None:
                self._wrong(f"{address} does not answer: {error}")
            return
        totals = {name: float(value) for name, value in TOTAL.findall(text)}
        if not totals:
            self._wrong(f"{address} tells no totals")
        for name, before in life.totals.items():
            # Series of departed peers make room for new ones.
            if name in totals and totals[name] < before:
                self._wrong(f"{name} fell from {before:g} to {totals[name]:g}")
        life.totals = totals

    # -- what it came to --------------------------------------------------------------------------------------

    def exchanges(self) -> Counter[str]:
        """Exchanges of all lives by result, as far as observed."""
        return sum((Counter(life.status["exchanges"]) for life in self.lives), Counter())

    def in_doubt(self) -> int:
        return sum(life.status["chunks_in_doubt"] for life in self.lives)

    def pace(self, since: float, until: float) -> float:
        """Steps a second of the training process that ran all the time; NaN without one."""
        notes = self.host.notes(since=since, before=until)
        if len(notes) < 2 or notes[0]["pid"] != notes[-1]["pid"]:
            return math.nan
        return float((notes[-1]["steps"] - notes[0]["steps"]) / (notes[-1]["at"] - notes[0]["at"]))

    def grew(self, settled: float, most: float) -> str:
        """A violation of the present life's memory limit, or an empty string.

        Args:
            settled: age in seconds from which memory counts.
            most: factor by which it may grow.
        """
        growth, _ = self.growth(settled)
        measured = self.lives[-1].memory[-1][0] - self.lives[-1].began - settled
        if growth <= most or (math.isnan(growth) and measured < MEASURED):
            return ""
        return f"memory grew by a factor {growth:.3f} in {measured:.0f} s"

    def growth(self, settled: float) -> tuple[float, int]:
        """Growth of the present life since it was `settled` seconds old: factor of resident bytes, and more
        descriptors. It compares the middle of the first and of the last quarter of the observations."""
        life = self.lives[-1]
        looks = [look for look in life.memory if look[0] >= life.began + settled]
        if len(looks) < 8:
            return math.nan, 0
        quarter = len(looks) // 4
        first, last = looks[:quarter], looks[-quarter:]
        return _middle(last, 1) / _middle(first, 1), int(_middle(last, 2) - _middle(first, 2))

    def longest_pause(self, until: float) -> float:
        """Longest time in seconds without a step of a training process that was alive, not stopped and had a CPU."""
        by_process: dict[int, list[dict[str, Any]]] = {}
        for note in self.host.notes(before=until):
            by_process.setdefault(note["pid"], []).append(note)
        ends, alive = dict(self.deaths), self.host.training
        if alive is not None and alive.code is None:
            ends[alive.pid] = until
        pauses = [0.0]
        for pid, notes in by_process.items():
            last = notes[-1] | {"at": max(ends.get(pid, 0.0), notes[-1]["at"])}
            for earlier, later in itertools.pairwise([*notes, last]):
                overlaps = (min(later["at"], b) - max(earlier["at"], a) for p, a, b in self.asleep if p == pid)
                pauses.append(pause(earlier, later) - sum(max(0.0, overlap) for overlap in overlaps))
        return max(pauses)

    def last_checks(self, until: float) -> None:
        """Final checks while the daemon still runs: commands, diary and log."""
        for words in (["status", "--json"], ["checkpoint", "verify"]):
            said = gossipdp("--home", str(self.host.home), *words)
            if said.returncode != 0 or not said.stdout.strip():
                self._wrong(f"`gossipdp {' '.join(words)}` exits with {said.returncode}: {said.stdout}{said.stderr}")
        if (longest := self.longest_pause(until)) > PAUSE:
            self._wrong(f"no step for {longest:.1f} s")
        for found in WRONG.finditer(text := self.host.text()):
            self._wrong(f"in the log: {text[found.start() : found.start() + 1500]}")
        for note in self.host.notes():
            if not math.isfinite(note["mean"]):
                self._wrong(f"the model is no number at step {note['steps']}")
                break

    def _wrong(self, what: str) -> None:
        self._blame(f"{self.host.name}: {what}")


def _middle(looks: list[tuple[float, int, int]], column: int) -> float:
    ordered = sorted(look[column] for look in looks)
    return float(ordered[len(ordered) // 2])
