"""Delay, jitter, loss and broken connections of the emulated network: as configured, and on the way to one host."""

import statistics
import subprocess
import sys

import pytest

from simulations.processes.namespaces.hosts import Host, Lab, LabError, Weather

pytestmark = [pytest.mark.needs("weather")]

ECHO = """
import socket
tube = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
tube.bind(("0.0.0.0", 9))
print("up", flush=True)
while True:
    tube.sendto(*tube.recvfrom(2000))
"""
ASK = """
import select, socket, struct, sys, time
tube = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
count, gap = int(sys.argv[2]), float(sys.argv[3])
sent, took = {}, []
def hear(seconds):
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and len(took) < count:
        if select.select([tube], [], [], left)[0]:
            number = struct.unpack("I", tube.recv(100))[0]
            took.append((number, time.monotonic() - sent[number]))
for number in range(count):
    sent[number] = time.monotonic()
    tube.sendto(struct.pack("I", number), (sys.argv[1], 9))
    hear(gap)
hear(1.0)
print(took)
"""
TALK = """
import socket, sys
if sys.argv[1] == "listen":
    server = socket.create_server(("0.0.0.0", 10))
    print("up", flush=True)
    line, _ = server.accept()
else:
    line = socket.create_connection((sys.argv[2], 10))
    line.sendall(b"x")
try:
    while True:
        line.sendall(line.recv(1))
        sys.stdout.write(".")
        sys.stdout.flush()
except OSError as error:
    print(type(error).__name__, flush=True)
"""


def python(host: Host, script: str, *words: str) -> list[str]:
    return host.command([sys.executable, "-I", "-S", "-c", script, *words])


def asked(a: Host, b: Host, count: int, gap: float) -> list[tuple[int, float]]:
    """(number, round trip in seconds) of each answered datagram, in the order of the answers."""
    with subprocess.Popen(python(b, ECHO), stdout=subprocess.PIPE, text=True) as echo:
        try:
            assert echo.stdout is not None and echo.stdout.readline() == "up\n"
            said = subprocess.run(
                python(a, ASK, b.address, str(count), str(gap)), capture_output=True, text=True, check=True
            )
        finally:
            echo.kill()
    pairs = said.stdout.strip()[2:-2].split("), (")
    return [(int(number), float(took)) for number, took in (pair.split(", ") for pair in pairs if pair)]


def test_delay_and_jitter__the_round_trip_is_that_of_both_ways_and_nothing_overtakes() -> None:
    with Lab(2, weather=Weather(delay=0.03)) as lab:
        a, b = lab.hosts
        still = [took for _, took in asked(a, b, 20, 0.01)]
        assert len(still) == 20
        # Never early. A loaded machine makes most of them late, but not all.
        assert 0.06 <= min(still) < 0.08
        lab.set_weather(b, Weather(delay=0.06, jitter=0.02))
        shaken = asked(a, b, 60, 0.002)
        assert [number for number, _ in shaken] == list(range(60))
        assert statistics.median(took for _, took in shaken) > 0.07 and min(took for _, took in shaken) < 0.15
        assert max(took for _, took in shaken) - min(took for _, took in shaken) > 0.02


def test_loss__is_as_asked_on_the_way_to_the_host__and_address_resolution_is_spared() -> None:
    with Lab(2, weather=Weather()) as lab:
        a, b = lab.hosts
        lab.set_weather(b, Weather(loss=0.3))
        answered = len(asked(a, b, 600, 0.0005))
        # 420 expected; five standard deviations of a binomial are 56.
        assert 364 <= answered <= 476
        report = lab.weather_report()
        assert report["wires"][0]["lost"] == 0 and 120 <= report["wires"][1]["lost"] <= 240
        lab.set_weather(b, Weather(loss=1.0))
        assert asked(a, b, 20, 0.0) == []


def test_broken_connection__the_host_is_told_at_once_and_the_other_when_it_speaks() -> None:
    with Lab(2, weather=Weather(delay=0.002)) as lab:
        a, b = lab.hosts
        pipe = subprocess.PIPE
        with (
            subprocess.Popen(python(b, TALK, "listen"), stdout=pipe, text=True) as listener,
            lab_ready(listener),
            subprocess.Popen(python(a, TALK, "dial", b.address), stdout=pipe, text=True) as dialler,
        ):
            assert listener.stdout is not None and dialler.stdout is not None
            assert dialler.stdout.read(20) == 20 * "."
            lab.break_connections(b)
            try:
                for side in (listener, dialler):
                    assert side.wait() == 0
                    assert side.stdout is not None
                    assert side.stdout.read().strip(".\n") in ("ConnectionResetError", "BrokenPipeError")
            finally:
                for side in (listener, dialler):
                    side.kill()
        assert len(asked(a, b, 5, 0.001)) == 5


def lab_ready(listener: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert listener.stdout is not None and listener.stdout.readline() == "up\n"
    return listener


def test_unplugged__no_carrier_on_either_side__and_a_lab_without_weather_has_none() -> None:
    with Lab(2, weather=Weather()) as lab, Lab(1) as calm:
        a, b = lab.hosts
        lab.unplug(b)
        assert "NO-CARRIER" in link(b) and asked(a, b, 5, 0.001) == []
        lab.plug(b)
        assert "NO-CARRIER" not in link(b) and len(asked(a, b, 5, 0.05)) >= 4
        with pytest.raises(LabError, match="without weather"):
            calm.set_weather(calm.hosts[0], Weather(delay=0.1))


def link(host: Host) -> str:
    words = ["ip", "-n", host.namespace, "link", "show", "eth0"]
    said = subprocess.run(words, capture_output=True, text=True, check=True)
    return said.stdout
