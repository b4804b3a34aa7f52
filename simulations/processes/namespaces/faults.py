"""The script of `chaos`: which fault strikes which hosts and when, drawn from a seed.

A fault begins, lasts and ends. At its end killed processes start again, and stopped or cut ones go on. At any time at
most half of the hosts are under a fault that silences them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

__all__ = ["KINDS", "Fault", "script"]

KINDS: Final[dict[str, tuple[float, float]]] = {
    "kill daemon": (0.2, 4.0),
    "kill training": (0.2, 2.0),
    "kill both": (0.2, 4.0),
    "stop daemon": (0.3, 6.0),
    "stop training": (0.3, 3.0),
    "cut": (1.0, 5.0),
    "unplug": (0.5, 5.0),
    "slow": (2.0, 8.0),
    "storm": (2.0, 6.0),
    "break": (0.0, 0.0),
    "starve": (3.0, 8.0),
}
"""Kind -> shortest and longest duration in seconds. cut: up to half of the hosts form an island. unplug: a host has no
carrier. slow: a cable has a tenth of its rate. storm: a cable has 30 % loss and three times the round trip. break: the
connections of a host are reset. starve: a host gets little CPU"""
SILENT: Final = frozenset({"kill daemon", "kill both", "stop daemon", "cut", "unplug", "starve"})
"""kinds that silence a host: they strike at most half of the hosts at one time"""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault. Times in seconds since the begin of the script; hosts are numbers from 0."""

    begins: float
    ends: float
    kind: str
    hosts: tuple[int, ...]


def script(
    seed: int, hosts: int, seconds: float, *, kinds: Sequence[str] = tuple(KINDS), pause: tuple[float, float] = (0.5, 2)
) -> list[Fault]:
    """Faults that begin within `seconds`, in order.

    Args:
        hosts: number of hosts.
        kinds: kinds to draw from.
        pause: shortest and longest time in seconds between two begins.
    """
    random = Random(seed)
    faults: list[Fault] = []
    for now in itertools.takewhile(lambda at: at < seconds, itertools.accumulate(_pauses(random, pause))):
        kind = random.choice(list(kinds))
        ends = now + random.uniform(*KINDS[kind])
        busy = {host for fault in faults if fault.ends + 0.1 > now for host in fault.hosts}
        silent = {host for fault in faults if fault.kind in SILENT and fault.ends + 0.1 > now for host in fault.hosts}
        free = [host for host in range(hosts) if host not in busy]
        room = hosts // 2 - len(silent) if kind in SILENT else hosts
        wanted = random.randint(1, max(1, hosts // 2)) if kind == "cut" else 1
        if count := min(wanted, room, len(free)):
            faults.append(Fault(begins=now, ends=ends, kind=kind, hosts=tuple(sorted(random.sample(free, count)))))
    return faults


def _pauses(random: Random, bounds: tuple[float, float]) -> Iterator[float]:
    while True:
        yield random.uniform(*bounds)
