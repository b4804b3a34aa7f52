"""How each contestant is started on the hosts, and what happens to it while the race runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from simulations.processes.namespaces.processes import Host, Process
from simulations.processes.progress import until
from simulations.processes.race.hosts import Grid
from simulations.processes.race.rules import HOSTS, SLOWER, Condition, Rules

__all__ = ["ENTRIES", "Entry", "Setting"]

PORT, STORE = 4710, 29400
SETTLED = 120.0
"""seconds within which a daemon tells of its network"""
PACKAGE = "simulations.processes.race.contestants"


@dataclass(frozen=True)
class Setting:
    """One run: where, under which condition, and with which seed."""

    grid: Grid
    folder: Path
    condition: Condition
    rules: Rules
    seed: int

    def command(self, module: str, host: int, *more: str, life: int = 0) -> list[str]:
        """The command of a training script on the host `host`."""
        slow = self.condition.slow and host == HOSTS - 1
        pace = self.rules.step * (SLOWER if slow else 1.0)
        argv = [sys.executable, "-m", f"{PACKAGE}.{module}", "--folder", str(self.folder), "--pace", str(pace)]
        return [*argv, "--host", str(host), "--life", str(life), "--seed", str(self.seed), *more]


class Entry(Protocol):
    """A contestant in one run."""

    hosts: int
    """how many take part"""
    events: list[tuple[str, float]]
    """what happened, and when on the monotonic clock"""

    def start(self) -> None:
        """Start everything that belongs to it."""

    def tend(self, dead: set[int]) -> None:
        """Look after it during the race. `dead` hosts have no power."""

    def reap(self) -> None:
        """Wait for its processes, which have been killed."""


class Alone:
    """One host."""

    hosts = 1

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.events: list[tuple[str, float]] = []

        self._process: Process | None = None

    def start(self) -> None:
        self._process = self._setting.grid.start(0, self._setting.command("alone", 0))

    def tend(self, dead: set[int]) -> None:
        pass

    def reap(self) -> None:
        if self._process is not None:
            self._process.kill()


class Gossip:
    """`gossipdp up` on the first host, `gossipdp join` with its invite on the others, left unattended."""

    hosts = HOSTS

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.events: list[tuple[str, float]] = []
        self._peers = [
            Host(
                setting.folder,
                f"h{number}",
                founder=number == 0,
                address=host.address,
                port=PORT,
                within=host.command,
                preset="wan",
            )
            for number, host in enumerate(setting.grid.hosts)
        ]

    def start(self) -> None:
        founder, *joiners = self._peers
        founder.start_supervised(self._setting.command("gossip", 0))
        until("the invite", (founder.home / "invite").exists, [founder], seconds=SETTLED)
        for number, peer in enumerate(joiners, 1):
            peer.start_supervised(self._setting.command("gossip", number), join="@" + str(founder.home / "invite"))

    def tend(self, dead: set[int]) -> None:
        pass

    def reap(self) -> None:
        for peer in self._peers:
            if peer.supervisor is not None:
                peer.supervisor.kill()


@dataclass
class Group:
    """A process group of Gloo. If a member fails, all live members are started again from the last checkpoint.

    This is what torchrun's elastic agents do: any failure or change of membership stops all workers, and they start
    again with the members that are left. The agents' own rendezvous, 30 s by default, is not played. Where a host will
    die, the interpreters of the first restart are there before the race, because nine that start at once on two cores
    would take longer than each on its own host.
    """

    setting: Setting
    module: str
    options: tuple[str, ...] = ()
    hosts: int = HOSTS
    events: list[tuple[str, float]] = field(default_factory=list)
    _members: dict[int, Process] = field(default_factory=dict)
    _spares: dict[int, Process] = field(default_factory=dict)
    _dead: list[Process] = field(default_factory=list)
    _life: int = 0

    def start(self) -> None:
        self._members = self._processes(range(self.hosts), 0)
        if self.setting.condition.dies:
            self._spares = self._processes(range(self.hosts - 1), 1)

    def tend(self, dead: set[int]) -> None:
        self._dead += [self._members.pop(number) for number in dead & self._members.keys()]
        if all(member.code is None for member in self._members.values()):
            return
        self.events.append(("a member fails", time.monotonic()))
        for member in self._members.values():
            member.kill()
        self._life += 1
        self._dead += self._members.values()
        self._members, self._spares = self._spares or self._processes(list(self._members), self._life), {}
        (self.setting.folder / f"life-{self._life}").touch()

    def reap(self) -> None:
        for process in (*self._members.values(), *self._spares.values(), *self._dead):
            process.kill()

    def _processes(self, numbers: range | list[int], life: int) -> dict[int, Process]:
        setting = self.setting
        store = f"{setting.grid.hosts[0].address}:{STORE + life}"
        more = (*self.options, "--store", store, "--world", str(len(numbers)))
        more = (*more, "--timeout", str(setting.condition.timeout))
        commands = {number: setting.command(self.module, number, *more, life=life) for number in numbers}
        return {number: setting.grid.start(number, command) for number, command in commands.items()}


class Torchft:
    """torchft on each host: its managers and its lighthouse settle a loss by themselves."""

    hosts = HOSTS

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.events: list[tuple[str, float]] = []
        self._processes: list[Process] = []

    def start(self) -> None:
        setting, hosts = self._setting, self._setting.grid.hosts
        # Its time-out is of a whole all-reduce, that of Gloo of one part.
        timeout = setting.condition.timeout + setting.grid.all_reduce
        for number, host in enumerate(hosts):
            limits = ("--timeout", str(timeout), "--join", str(setting.condition.join))
            more = ("--address", host.address, "--first", hosts[0].address, *limits)
            command = setting.command("torchft_diloco", number, *more)
            self._processes.append(setting.grid.start(number, command))

    def tend(self, dead: set[int]) -> None:
        pass

    def reap(self) -> None:
        for process in self._processes:
            process.kill()


ENTRIES: dict[str, tuple[str, Callable[[Setting], Entry]]] = {
    "gossip": ("gossipdp", Gossip),
    "ddp": ("DDP, fp16", lambda setting: Group(setting, "ddp")),
    "local_sgd": ("local SGD", lambda setting: Group(setting, "local_sgd")),
    "diloco": ("DiLoCo, H 50", lambda setting: Group(setting, "diloco")),
    "diloco200": ("DiLoCo, H 200", lambda setting: Group(setting, "diloco", ("--round", "200"))),
    **({"torchft": ("DiLoCo, torchft", Torchft)} if find_spec("torchft") else {}),
    "alone": ("one host alone", Alone),
}
"""name -> title, and how to make it for a run"""
