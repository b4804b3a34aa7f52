"""The stage of `chaos`: hosts on an emulated network, each with a peer and a watch, and the execution of faults.

The script decides which fault strikes when. The watch and `chaos` decide what must hold.
"""

from __future__ import annotations

import contextlib
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from simulations.processes.namespaces.faults import Fault
from simulations.processes.namespaces.hosts import Lab, Weather
from simulations.processes.namespaces.plan import Plan
from simulations.processes.namespaces.processes import Host, Starvation, end
from simulations.processes.namespaces.watch import Watch

__all__ = ["Stage"]

PORT = 4710
METRICS_EVERY = 2.0
"""seconds"""
BUSY_WITHIN = 1.0
"""seconds within which a victim may begin the exchange that it is to die in"""
# Early training exchanges more often, so begin and end would not compare.
SETTINGS = """
[exchange]
warmup_steps = 1
early_steps = 1
every = 30
[checkpoint]
every = "2s"
"""


class Stage:
    """Context that builds the network and removes it.

    Args:
        blame: callback with each violation.
    """

    def __init__(self, plan: Plan, directory: Path, blame: Callable[[str], None]) -> None:
        self.lab = Lab(plan.hosts, rate=plan.rate, weather=plan.weather)
        self.hosts = [
            Host(
                directory,
                f"h{number}",
                founder=number == 0,
                address=cable.address,
                port=PORT,
                within=cable.command,
                size=plan.size,
                pace=plan.pace,
                preset="wan" if plan.wan else "local",
                settings=SETTINGS,
            )
            for number, cable in enumerate(self.lab.hosts)
        ]
        self.watches = [
            Watch(host, blame, cable.inside) for host, cable in zip(self.hosts, self.lab.hosts, strict=True)
        ]
        self.killed = 0
        """number of killed daemons"""
        self._plan = plan
        self._stack = contextlib.ExitStack()
        self._islands: dict[int, tuple[int, ...]] = {}
        self._stopped: set[int] = set()
        self._starving: dict[int, tuple[Starvation, float]] = {}
        """host -> its starvation and the begin of it"""
        self.starved: list[tuple[float, float, int]] = []
        """(from, to, host)"""
        self._next_metrics = 0.0

    def __enter__(self) -> Stage:
        self._stack.enter_context(self.lab)
        self._stack.callback(end, self.hosts)
        self._stack.callback(self._feed)
        return self

    def _feed(self) -> None:
        for starvation, _ in self._starving.values():
            starvation.end()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def invite(self) -> Path:
        return self.hosts[0].home / "invite"

    def start(self, number: int) -> None:
        """Start the peer of a host. The first founds the network, the others use its invite."""
        host = self.hosts[number]
        host.settle_in(None if host.founder else self.invite.read_text())
        host.start_daemon()
        host.start_training()

    def together(self) -> bool:
        """Whether all peers know each other, have the model, train and have exchanged."""
        for host in self.hosts:
            status = host.status()
            if not status or (status["state"], status["training"]) != ("ready", "attached"):
                return False
            if status["members"]["alive"] != len(self.hosts) or not status["exchanges"].get("done"):
                return False
        return True

    def look(self) -> str:
        """Let every watch observe. Return which process ended by itself, or an empty string."""
        metrics = time.monotonic() >= self._next_metrics
        if metrics:
            self._next_metrics = time.monotonic() + METRICS_EVERY
        for number, (host, watch) in enumerate(zip(self.hosts, self.watches, strict=True)):
            for name, process in (("daemon", host.daemon), ("training process", host.training)):
                if process is not None and process.code is not None and process.code != -signal.SIGKILL:
                    return f"{host.name}: the {name} ended with {process.code}"
            if number not in self._stopped:
                watch.look(metrics=metrics)
        return ""

    def set_loss(self, loss: float) -> None:
        """Set the loss of all cables. The round trip stays."""
        for cable in self.lab.hosts:
            self.lab.set_weather(cable, Weather.of(self._plan.rtt, loss))

    # -- faults -----------------------------------------------------------------------------------------------

    def begin(self, fault: Fault) -> str:
        """Begin a fault. Return a line about it."""
        names = " ".join(self.hosts[n].name for n in fault.hosts)
        number, lab = fault.hosts[0], self.lab
        host, cable, note = self.hosts[number], lab.hosts[number], ""
        match fault.kind.split():
            case ["kill", target]:
                note = self._kill(number, target)
            case ["stop", target]:
                process = host.daemon if target == "daemon" else host.training
                assert process is not None
                process.signal(signal.SIGSTOP)
                if target == "daemon":
                    self._stopped.add(number)
                else:
                    self.watches[number].asleep.append((process.pid, time.monotonic(), float("inf")))
            case ["cut"]:
                self._islands[number] = fault.hosts
                self._isolate()
            case ["unplug"]:
                lab.unplug(cable)
            case ["slow"]:
                lab.set_rate(cable, "256kbit")
            case ["storm"]:
                lab.set_weather(cable, Weather.of(3 * max(self._plan.rtt, 0.02), 0.3))
            case ["break"]:
                lab.break_connections(cable)
            case ["starve"]:
                assert host.daemon is not None and host.training is not None
                self._stopped.add(number)
                self.watches[number].asleep.append((host.training.pid, time.monotonic(), float("inf")))
                self._starving[number] = Starvation((host.daemon, host.training)), time.monotonic()
        return f"{fault.kind:13} {names} {note}"

    def finish(self, fault: Fault) -> str:
        """End a fault. Return a line about it, or an empty string."""
        number, lab, plan = fault.hosts[0], self.lab, self._plan
        host, cable = self.hosts[number], lab.hosts[number]
        match fault.kind.split():
            case ["kill", target]:
                if target != "training":
                    host.start_daemon()
                if target != "daemon":
                    host.start_training()
            case ["stop", target]:
                process = host.daemon if target == "daemon" else host.training
                assert process is not None
                process.signal(signal.SIGCONT)
                if target == "daemon":
                    self._stopped.remove(number)
                else:
                    self._wake(number)
            case ["cut"]:
                del self._islands[number]
                self._isolate()
            case ["unplug"]:
                lab.plug(cable)
            case ["slow"]:
                lab.set_rate(cable, plan.rate or "10gbit")
            case ["storm"]:
                lab.set_weather(cable, Weather.of(plan.rtt, plan.loss))
            case ["starve"]:
                starvation, since = self._starving.pop(number)
                starvation.end()
                self._stopped.remove(number)
                self._wake(number)
                self.starved.append((since, time.monotonic(), number))
            case ["break"]:
                return ""
        return f"over: {fault.kind} {' '.join(self.hosts[n].name for n in fault.hosts)}"

    def _wake(self, number: int) -> None:
        """Continue the training process of this host that was stopped last."""
        pid, since, _ = self.watches[number].asleep.pop()
        self.watches[number].asleep.append((pid, since, time.monotonic()))

    def _kill(self, number: int, target: str) -> str:
        host, watch = self.hosts[number], self.watches[number]
        watch.look()
        deadline = time.monotonic() + BUSY_WITHIN
        while not (busy := bool(host.status().get("partner"))) and time.monotonic() < deadline:
            select.select([], [], [], 0.01)
        assert host.daemon is not None and host.training is not None
        if target != "training":
            host.daemon.kill()
            self.killed += 1
        if target != "daemon":
            host.training.kill()
            watch.deaths.append((host.training.pid, time.monotonic()))
        return "in an exchange" if busy else ""

    def _isolate(self) -> None:
        self.lab.cut(*([self.lab.hosts[n] for n in island] for island in self._islands.values()))
