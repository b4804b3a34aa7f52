"""How each contestant is started on the hosts, and what happens to it while the race runs."""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from simulations.processes.namespaces.processes import Host, Process, gossipdp
from simulations.processes.progress import until
from simulations.processes.race.hosts import Grid
from simulations.processes.race.rules import HOSTS, SLOWER, Condition, Network, Rules

__all__ = ["ALPHA", "CONTESTANTS", "FRAGMENTS", "GREATER", "RACED", "SWEEP", "Entry", "Setting", "delay_of"]

PORT, STORE = 4710, 29400
SETTLED = 120.0
"""seconds within which a daemon tells of its network"""
PACKAGE = "simulations.processes.race.contestants"
FRAGMENTS, ALPHA, GREATER = 2, 0.5, 0.55
"""of torchft's streaming: number, share of the local parameters, and the greater fragment's share of all parameters"""


@dataclass(frozen=True)
class Setting:
    """One run: where, under which condition, and with which seed."""

    grid: Grid
    folder: Path
    network: Network
    condition: Condition
    rules: Rules
    seed: int

    def command(self, module: str, host: int, *more: str, life: int = 0) -> list[str]:
        """The command of a training script on the host `host`."""
        slow = self.condition.slow and host == HOSTS - 1
        pace = self.rules.step * (SLOWER if slow else 1.0)
        argv = [sys.executable, "-m", f"{PACKAGE}.{module}", "--folder", str(self.folder), "--pace", str(pace)]
        return [*argv, "--host", str(host), "--life", str(life), "--seed", str(self.seed), *more]


class Entry(ABC):
    """A contestant in one run."""

    hosts: int = HOSTS
    """how many take part"""
    finishes: bool = False
    """whether it has a command that ends a run"""
    events: list[tuple[str, float]]
    """what happened, and when on the monotonic clock"""

    @abstractmethod
    def start(self) -> None:
        """Start everything that belongs to it."""

    def tend(self, dead: set[int]) -> None:  # noqa: B027
        """Look after it during the race. `dead` hosts have no power."""

    def finish(self) -> Path | None:
        """End the run by its command, if it has one. Return the file of the model that the command leaves."""
        return None

    @abstractmethod
    def reap(self) -> None:
        """Wait for its processes, which have been killed."""


class Alone(Entry):
    """One host."""

    hosts = 1

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.events: list[tuple[str, float]] = []

        self._process: Process | None = None

    def start(self) -> None:
        self._process = self._setting.grid.start(0, self._setting.command("alone", 0))

    def reap(self) -> None:
        if self._process is not None:
            self._process.kill()


class Gossip(Entry):
    """`gossipdp up` on the first host, `gossipdp join` with its invite on the others, left unattended."""

    finishes = True

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

    def finish(self) -> Path | None:
        founder = self._peers[0]
        said = gossipdp("--home", str(founder.home), "finish")
        if said.returncode:
            self.events.append((f"gossipdp finish: {said.stderr.strip()}", time.monotonic()))
            return None
        return founder.home / "final" / "model.safetensors"

    def reap(self) -> None:
        for peer in self._peers:
            if peer.supervisor is not None:
                peer.supervisor.kill()


@dataclass
class Group(Entry):
    """A process group of Gloo. If a member fails, all live members are started again from the last checkpoint.

    This is what torchrun's elastic agents do: any failure or change of membership stops all workers, and they start
    again with the members that are left. The agents' own rendezvous, 30 s by default, is not played. Where a host will
    die, the interpreters of the first restart are there before the race, because nine that start at once on two cores
    would take longer than each on its own host.
    """

    setting: Setting
    module: str
    options: tuple[str, ...] = ()
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


class Plain(Entry):
    """One process a host, which finds the others and settles a loss by itself."""

    module = ""

    def __init__(self, setting: Setting, options: tuple[str, ...] = ()) -> None:
        self.setting, self._options = setting, options
        self.events: list[tuple[str, float]] = []
        self._processes: list[Process] = []

    def start(self) -> None:
        for number, host in enumerate(self.setting.grid.hosts):
            more = ("--address", host.address, *self.options(), *self._options)
            self._processes.append(self.setting.grid.start(number, self.setting.command(self.module, number, *more)))

    def options(self) -> tuple[str, ...]:
        """What each process is told besides its own address."""
        return ()

    def reap(self) -> None:
        for process in self._processes:
            process.kill()


class Torchft(Plain):
    """torchft: a lighthouse on the first host, and a manager on each."""

    module = "torchft_diloco"

    def options(self) -> tuple[str, ...]:
        setting = self.setting
        # Its time-out is of a whole all-reduce, that of Gloo of one part.
        timeout = setting.condition.timeout + setting.network.all_reduce
        first = setting.grid.hosts[0].address
        return ("--first", first, "--timeout", str(timeout), "--join", str(setting.condition.join))


class Hivemind(Plain):
    """hivemind: its distributed hash table and averager on each host."""

    module = "hivemind_averager"


def delay_of(network: Network, step: float) -> int:
    """Steps of `step` seconds beside which torchft's streaming averages a fragment, so that no step waits.

    A twentieth of the bytes are headers. Ten round trips are for the quorum, the ring and the start of TCP.
    """
    return math.ceil((1.05 * GREATER * network.all_reduce + 10 * network.rtt) / step)


def _streaming(every: int, momentum: float) -> Callable[[Setting], Entry]:
    def make(setting: Setting) -> Entry:
        # The fragments take turns, and torchft wants a turn to be longer than the delay.
        delay = min(delay_of(setting.network, setting.rules.step), every // FRAGMENTS - 1)
        values = {"round": every, "fragments": FRAGMENTS, "delay": delay, "alpha": ALPHA, "momentum": momentum}
        return Torchft(setting, tuple(word for name, value in values.items() for word in (f"--{name}", str(value))))

    return make


def _hivemind(every: int) -> Callable[[Setting], Entry]:
    return lambda setting: Hivemind(setting, ("--round", str(every)))


def _group(module: str, *options: str) -> Callable[[Setting], Entry]:
    return lambda setting: Group(setting, module, options)


CONTESTANTS: dict[str, tuple[str, Callable[[Setting], Entry]]] = {
    "gossip": ("gossipdp", Gossip),
    "ddp": ("DDP, fp16", _group("ddp")),
    "local_sgd": ("local SGD", _group("local_sgd")),
    "local_sgd64": ("local SGD, every 64", _group("local_sgd", "--round", "64")),
    "diloco": ("DiLoCo, H 50", _group("diloco")),
    "diloco200": ("DiLoCo, H 200", _group("diloco", "--round", "200")),
    "diloco500": ("DiLoCo, H 500", _group("diloco", "--round", "500")),
    "torchft": ("DiLoCo, torchft", Torchft),
    **{
        f"streaming{every}-{momentum}": (f"torchft streaming, H {every}, mu {momentum}", _streaming(every, momentum))
        for every in (100, 200, 400)
        for momentum in (0.8, 0.9)
    },
    **{f"hivemind{every}": (f"hivemind, every {every}", _hivemind(every)) for every in (50, 100, 200)},
    "alone": ("one host alone", Alone),
}
"""name -> title, and how to make it for a run"""


NEEDS = {"torchft": "torchft", "streaming": "torchft", "hivemind": "hivemind"}
"""first letters of a name -> the package that must be installed"""


def _there(*names: str) -> tuple[str, ...]:
    """Those of the names whose packages are installed."""
    absent = tuple(first for first, package in NEEDS.items() if find_spec(package) is None)
    return tuple(name for name in names if not name.startswith(absent))


SWEEP = _there(*(name for name in CONTESTANTS if name.startswith(("local_sgd", "diloco", "streaming", "hivemind"))))
"""rivals' settings, of which the best are raced"""
_ALWAYS = ("gossip", "ddp", "diloco200", "torchft", "alone", "local_sgd64", "hivemind100")
RACED = {
    "100mbit": _there(*_ALWAYS, "diloco", "streaming100-0.9"),
    "20mbit": _there(*_ALWAYS, "diloco500", "streaming200-0.9"),
}
"""network -> names of those that race on it: of the rivals that have several settings, the best of the sweep"""
