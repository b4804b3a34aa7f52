"""The emulated network itself: cuts, rates, and removal."""

import subprocess
import sys

import pytest

from simulations.processes.namespaces import hosts
from simulations.processes.namespaces.hosts import Host, Lab

pytestmark = [pytest.mark.needs("namespaces")]

REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=0.3)
except TimeoutError:
    print("silence")
except OSError as error:
    print(type(error).__name__)
"""
FLOOD = """
import socket, sys, time
tube = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end = time.monotonic() + 0.5
while time.monotonic() < end:
    tube.sendto(bytes(1000), (sys.argv[1], 9))
"""


def run(host: Host, script: str, *words: str) -> str:
    argv = host.command([sys.executable, "-I", "-S", "-c", script, *words])
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def test_cut_host_hears_silence__the_others_each_other__and_a_heal_mends_it() -> None:
    with Lab(3) as lab:
        a, b, c = lab.hosts
        assert run(a, REACH, b.address) == "ConnectionRefusedError"
        lab.cut([a])
        assert (run(a, REACH, b.address), run(b, REACH, c.address)) == ("silence", "ConnectionRefusedError")
        lab.heal()
        assert run(a, REACH, b.address) == "ConnectionRefusedError"
        lab.unplug(b)
        assert run(a, REACH, b.address) == "silence"
        lab.plug(b)
        assert run(a, REACH, b.address) == "ConnectionRefusedError"


def test_rate__bounds_what_a_cable_carries() -> None:
    with Lab(2, rate="8mbit") as lab:
        a, b = lab.hosts
        before = b.counters()
        run(a, FLOOD, b.address)
        arrived = b.counters() - before
        # Half a second at 1 MB/s, the bucket, and the queue.
        assert 300_000 < arrived.received_bytes < 1_000_000


def test_lab_that_fails_half_way__leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Lab] = []

    def fail(lab: Lab, host: Host, rate: str) -> None:
        made.append(lab)
        assert host.namespace in namespaces()
        raise hosts.LabError("no such queue")

    monkeypatch.setattr(Lab, "set_rate", fail)
    with pytest.raises(hosts.LabError), Lab(2, rate="1mbit"):
        raise AssertionError("never entered")
    assert made and not [host for host in made[0].hosts if host.namespace in namespaces()]
