"""Hosts that are network namespaces on one switch. Each cable has a rate and weather, and can be unplugged.

    host 1                      switch (a namespace of its own)
    eth0 10.77.0.1 ──── veth ──── port1 ┐
                                        ├─ bridge "island0"
    eth0 10.77.0.2 ──── veth ──── port2 ┘

A cut puts ports on different bridges. It needs no packet filter and looks like silence, as the death of a router does.
`unplug` also removes the carrier. Rates are token buckets (tbf), one for each direction. Cables with weather (delay,
jitter, loss) are made by another process, see `wires`. A lab's namespaces have the name of its process. They are
removed at the end of the `with` block, also after an error. This module knows nothing of gossipdp.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Counters", "Host", "Lab", "LabError", "Weather"]

SUBNET = "10.77"
BURST = "64kb"
QUEUE = "100ms"
"""packets that a token bucket holds before it drops, as a time"""
CLONE_NEWNET = 0x40000000
_labs = itertools.count(1)


class LabError(Exception):
    """A command of iproute2 or the weather process failed."""


@dataclass(frozen=True, kw_only=True)
class Weather:
    """What happens to a packet on its way to a host. A round trip has the weather of both hosts."""

    delay: float = 0.0
    """seconds"""
    jitter: float = 0.0
    """standard deviation of the delay in seconds; packets keep their order"""
    loss: float = 0.0
    """probability that a packet is lost"""

    @classmethod
    def of(cls, rtt: float, loss: float = 0.0) -> Weather:
        """Weather for a round trip of `rtt` seconds between any two hosts, with a twentieth of jitter."""
        return cls(delay=rtt / 2, jitter=rtt / 40, loss=loss)


@dataclass(frozen=True)
class Counters:
    """Bytes and packets since the start of the host, Ethernet headers included, counted at its end of the cable."""

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(
            self.sent_bytes - earlier.sent_bytes,
            self.received_bytes - earlier.received_bytes,
            self.sent_packets - earlier.sent_packets,
            self.received_packets - earlier.received_packets,
        )


@dataclass(frozen=True)
class Host:
    number: int
    namespace: str
    address: str

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` on this host. Its process id stays valid: `ip` becomes the command."""
        return ["ip", "netns", "exec", self.namespace, *argv]

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Context in which new sockets of this thread belong to the host's network."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as here, open(f"/var/run/netns/{self.namespace}") as there:
            if libc.setns(there.fileno(), CLONE_NEWNET):
                raise LabError(f"{self.namespace}: {os.strerror(ctypes.get_errno())}")
            try:
                yield
            finally:
                libc.setns(here.fileno(), CLONE_NEWNET)

    @contextlib.contextmanager
    def single_packets(self) -> Iterator[None]:
        """Context in which TCP hands over packets as on a wire. A filter here takes many as one for a large one."""

        def hand_over(segments: int) -> None:
            _ip("-n", self.namespace, "link", "set", "dev", "eth0", "gso_max_segs", str(segments))

        hand_over(1)
        try:
            yield
        finally:
            hand_over(65535)

    def processes(self) -> list[int]:
        """Ids of all processes in this host's network."""
        return [int(word) for word in _ip("netns", "pids", self.namespace).split()]

    def counters(self) -> Counters:
        (link,) = json.loads(_ip("-n", self.namespace, "-j", "-s", "link", "show", "dev", "eth0"))
        sent, received = link["stats64"]["tx"], link["stats64"]["rx"]
        return Counters(sent["bytes"], received["bytes"], sent["packets"], received["packets"])


class Lab:
    """An emulated network: `with Lab(2, rate="100mbit") as lab:` gives `lab.hosts`.

    Args:
        count: number of hosts, at most 1,000; the first is 10.77.0.1.
        rate: rate of each cable in each direction, as tc writes it; None: unlimited.
        weather: weather of every cable, which `set_weather` changes. None: cables without weather, which stay in the
            kernel.
        subnet: the first two numbers of all addresses, such as those of public ones.

    Raises:
        LabError: this kernel or user cannot build a lab.
    """

    def __init__(
        self, count: int, *, rate: str | None = None, weather: Weather | None = None, subnet: str = SUBNET
    ) -> None:
        if not 1 <= count <= 1000:
            raise ValueError("1 to 1,000 hosts")
        # Several labs may exist at once: names are unique, and no lab sees another's addresses.
        self._prefix = f"gd{os.getpid()}-{next(_labs)}"
        self._switch = f"{self._prefix}-switch"
        self._rate, self._weather = rate, weather
        self._wires: subprocess.Popen[str] | None = None
        self._islands = 1
        self.hosts = [
            Host(n, f"{self._prefix}-h{n}", f"{subnet}.{n // 250}.{n % 250 or 250}") for n in range(1, count + 1)
        ]

    def __enter__(self) -> Lab:
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    # -- faults -----------------------------------------------------------------------------------------------

    def cut(self, *islands: Iterable[Host]) -> None:
        """Split the network: each island reaches only itself. Hosts that are not named form one more island."""
        named = [list(island) for island in islands]
        rest = [host for host in self.hosts if not any(host in island for island in named)]
        for number, island in enumerate([rest, *named]):
            if number >= self._islands:
                self._bridge(number)
            for host in island:
                self._on_switch("link", "set", f"port{host.number}", "master", f"island{number}")

    def heal(self) -> None:
        """Join all islands."""
        self.cut()

    def unplug(self, host: Host) -> None:
        self._on_switch("link", "set", f"port{host.number}", "down")
        if self._wires is not None:
            self._tell_wire(host, plug=False)

    def plug(self, host: Host) -> None:
        self._on_switch("link", "set", f"port{host.number}", "up")
        if self._wires is not None:
            self._tell_wire(host, plug=True)

    def set_weather(self, host: Host, weather: Weather) -> None:
        """Change the weather of packets to this host. Only in a lab that was made with weather."""
        self._tell_wire(host, **asdict(weather))

    def set_rate(self, host: Host, rate: str, *, burst: str = BURST, queue: str = QUEUE) -> None:
        """Change the rate of this host's cable in both directions.

        Args:
            burst: what passes at once after a rest, in tc's words; a few packets for rates below some Mbit/s.
            queue: packets that the token bucket holds before it drops, as a time.
        """
        for namespace, device in ((host.namespace, "eth0"), (self._switch, f"port{host.number}")):
            bucket = ("root", "tbf", "rate", rate, "burst", burst, "latency", queue)
            _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, *bucket)

    def break_connections(self, host: Host, seconds: float = 0.05) -> None:
        """Reset every TCP connection on which a packet to this host arrives within `seconds`. Only with weather."""
        self._tell_wire(host, broken=seconds)

    def weather_report(self) -> dict[str, Any]:
        """Packets `passed` and `lost` on their way to each host, and CPU seconds of the weather process."""
        return self._tell()

    # -- building ---------------------------------------------------------------------------------------------

    def _build(self) -> None:
        _ip("netns", "add", self._switch)
        self._bridge(0)
        for host in self.hosts:
            _ip("netns", "add", host.namespace)
        if self._weather is None:
            for host in self.hosts:
                end = ("peer", "name", "eth0", "netns", host.namespace)
                self._on_switch("link", "add", f"port{host.number}", "type", "veth", *end)
        else:
            self._lay_wires()
        for host in self.hosts:
            inside = ("-n", host.namespace)
            self._on_switch("link", "set", f"port{host.number}", "master", "island0", "up")
            _ip(*inside, "address", "add", f"{host.address}/16", "dev", "eth0")
            _ip(*inside, "link", "set", "eth0", "up")
            _ip(*inside, "link", "set", "lo", "up")
            if self._rate is not None:
                self.set_rate(host, self._rate)

    def _bridge(self, number: int) -> None:
        # Without spanning tree a port forwards at once.
        self._on_switch("link", "add", f"island{number}", "type", "bridge", "stp_state", "0", "forward_delay", "0")
        self._on_switch("link", "set", f"island{number}", "up")
        self._islands = max(self._islands, number + 1)

    def _lay_wires(self) -> None:
        cables = [(host.namespace, "eth0", self._switch, f"port{host.number}") for host in self.hosts]
        # As a script it starts at once and imports nothing of this package.
        argv = [sys.executable, "-I", "-S", str(Path(__file__).with_name("wires.py")), json.dumps(cables)]
        pipe = subprocess.PIPE
        self._wires = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self._wires.stdout is not None
        if self._wires.stdout.readline() != "ready\n":
            raise LabError(self._why_no_wires())
        assert self._weather is not None
        for host in self.hosts:
            self.set_weather(host, self._weather)

    def _why_no_wires(self) -> str:
        if self._wires is None:
            return "this lab was made without weather"
        assert self._wires.stderr is not None
        return f"no wires: {self._wires.communicate()[1].strip()[-300:]}"

    def _tell_wire(self, host: Host, **words: Any) -> None:
        self._tell(wire=host.number - 1, **words)

    def _tell(self, **words: Any) -> dict[str, Any]:
        if self._wires is None or self._wires.poll() is not None:
            raise LabError(self._why_no_wires())
        assert self._wires.stdin is not None and self._wires.stdout is not None
        self._wires.stdin.write(json.dumps(words) + "\n")
        self._wires.stdin.flush()
        answer = self._wires.stdout.readline()
        if not answer:
            raise LabError(self._why_no_wires())
        return dict(json.loads(answer))

    def _remove(self) -> None:
        """Remove all namespaces. Their devices go with them; processes inside keep their own view."""
        if self._wires is not None:
            self._wires.communicate()
        for namespace in (*(host.namespace for host in self.hosts), self._switch):
            with contextlib.suppress(LabError):
                _ip("netns", "delete", namespace)

    def _on_switch(self, *words: str) -> None:
        _ip("-n", self._switch, *words)


def _ip(*words: str) -> str:
    return _run("ip", *words)


def _run(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LabError(f"`{words[0]}` is not on PATH; Debian's package iproute2 has it") from None
    if done.returncode:
        raise LabError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
