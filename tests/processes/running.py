"""Networks of real peers for tests. `simulations.processes.namespaces.processes` has the processes of one peer."""

import contextlib
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from peers import home as homes
from peers import invites
from simulations.processes.namespaces.hosts import Lab
from simulations.processes.namespaces.processes import FIRST_MODEL, Host, Process, end, environment, gossipdp, kept_port  # noqa: F401
from simulations.processes.progress import until

PORT = 4710
"""of a host in a namespace of its own"""


def byte_gpt(host: Host, size: str) -> list[str]:
    """A training command that steps for ever. After each step it runs the given line for `byte_gpt_steps`."""
    command = [sys.executable, "-m", "peers.jobs.byte_gpt", "--size", size, "--steps", "100000", "--batch", "1"]
    command += ["--context", "16", "--threads", "1", "--eval-every", "0", "--eval-windows", "8"]
    return [*command, "--log-every", "1", "--log", str(_steps_of(host))]


def byte_gpt_steps(host: Host) -> list[dict[str, Any]]:
    text = _steps_of(host).read_text() if _steps_of(host).exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def _steps_of(host: Host) -> Path:
    return host.home.with_suffix(".steps")


def host_in(lab: Lab, number: int, directory: Path, **options: Any) -> Host:
    """Host `number` of a network, in its namespace. The first founds the network."""
    place = lab.hosts[number]
    return Host(
        directory, f"h{number}", founder=number == 0, address=place.address, port=PORT, within=place.command, **options
    )


class Network:
    """Hosts of one network on loopback, with the same options. The first founds it."""

    def __init__(self, directory: Path, count: int, **options: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.hosts = [Host(directory, f"h{n}", founder=n == 0, **options) for n in range(count)]

    @property
    def founder(self) -> Host:
        return self.hosts[0]

    def others(self, host: Host) -> list[Host]:
        return [other for other in self.hosts if other is not host]

    def invite(self) -> Path:
        path = self.founder.home / "invite"
        until("the founder writes an invite", path.exists, [self.founder])
        return path

    def settle_in(self) -> None:
        """Make every home, and start no process."""
        self.founder.settle_in(None)
        # The founder's daemon would write the same invite: its address is known.
        invite = invites.write_invite(
            self.founder.home, [self.founder.address], homes.read_config(self.founder.home, {}, {})
        )
        for host in self.hosts[1:]:
            host.settle_in(invite.read_text())

    def start(self, *, kill_at: Sequence[str] = ()) -> None:
        """Start every daemon and every training process alone. `kill_at` are variables of the first daemons."""
        self.settle_in()
        for host, point in itertools.zip_longest(self.hosts, kill_at, fillvalue=""):
            host.start_daemon(point)
            host.start_training()

    def start_supervised(self) -> None:
        """Start every host by the command that users type. The last one's invite is in a variable."""
        self.founder.start_supervised()
        invite = self.invite()
        for host in self.hosts[1:-1]:
            host.start_supervised(join=f"@{invite}")
        self.hosts[-1].start_supervised(join="-", GOSSIPDP_INVITE=invite.read_text())

    def until_it_runs(self, exchanges: int = 1) -> None:
        """Whether every peer has the model, trains, knows all others and has exchanged."""
        for host in self.hosts:
            until(
                f"{host.name} is part of the network",
                lambda host=host: self.runs(host, exchanges),
                self.hosts,
                moves=lambda host=host: self._came_to(host, exchanges),
            )

    def runs(self, host: Host, exchanges: int = 1) -> bool:
        return self._came_to(host, exchanges) == ("ready", "attached", len(self.hosts), exchanges)

    def _came_to(self, host: Host, exchanges: int) -> tuple[str | int, ...]:
        status = host.status()
        if not status:
            return ()
        done = min(status["exchanges"].get("done", 0), exchanges)
        return status["state"], status["training"], status["members"]["alive"], done

    def end(self) -> None:
        end(self.hosts)


@contextlib.contextmanager
def running(directory: Path, count: int, **options: Any) -> Iterator[Network]:
    """A network whose processes end with the context, whatever happens."""
    network = Network(directory, count, **options)
    try:
        yield network
    finally:
        network.end()
