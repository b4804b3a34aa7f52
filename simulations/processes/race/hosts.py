"""Four hosts on a slow network, their processes, and what a loss of power is.

Set-up runs on cables without a limit of rate; `limit` begins the race. A token bucket of 4 kB lets no contestant gain
by short messages, and 0.2 s of queue hold more than a round trip.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from simulations.processes.namespaces.hosts import Host, Lab, LabError, Weather
from simulations.processes.namespaces.processes import Process, environment
from simulations.processes.race.rules import HOSTS, Network

__all__ = ["Grid"]

BURST, QUEUE = "4kb", "200ms"
GONE = 10.0
"""seconds within which killed processes are gone"""


class Grid:
    """`with Grid(network, folder) as grid:` gives `grid.hosts`. Every process on them is killed at the end."""

    def __init__(self, network: Network, folder: Path) -> None:
        self._network, self._folder = network, folder
        self._lab = Lab(HOSTS, weather=Weather.of(network.rtt))
        self.hosts: list[Host] = self._lab.hosts

    def __enter__(self) -> Grid:
        self._lab.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.kill_all()
        finally:
            self._lab.__exit__(kind, error, trace)

    def limit(self) -> None:
        """Give every cable its rate."""
        for host in self.hosts:
            self._lab.set_rate(host, self._network.emulated, burst=BURST, queue=QUEUE)

    def start(self, number: int, argv: Sequence[str]) -> Process:
        """Start a command on the host `number`. Its output goes to `log-NUMBER`."""
        host = self.hosts[number]
        variables = environment(GLOO_SOCKET_IFNAME="eth0")
        return Process(host.command(argv), self._folder / f"log-{number}", variables)

    def sent(self) -> list[int]:
        """Bytes that each host has sent since its start."""
        return [host.counters().sent_bytes for host in self.hosts]

    def lose_power(self, number: int) -> bool:
        """Cut the cable and kill all processes. No process can say that it leaves. Call again until it returns True.

        Returns:
            whether no process is left.
        """
        self._lab.unplug(self.hosts[number])
        return self._killed(self.hosts[number])

    def kill_all(self) -> None:
        """Kill all processes of all hosts.

        Raises:
            LabError: some are still there after ten seconds.
        """
        deadline = time.monotonic() + GONE
        left = list(self.hosts)
        while left := [host for host in left if not self._killed(host)]:
            if time.monotonic() > deadline:
                raise LabError(f"{[host.namespace for host in left]}: processes do not end")
            time.sleep(0.02)

    def _killed(self, host: Host) -> bool:
        """Kill what runs on a host, and tell whether nothing ran."""
        there = host.processes()
        for pid in there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not there
