"""Twelve faults between two hosts and on them, each of which `gossipdp doctor` has to name rightly."""

import contextlib
import json
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gossipdp.runtime.network import signed_hello
from gossipdp.runtime.network.identity import NetworkSecret
from peers import home as homes
from peers import invites
from peers.doctor.case import Case, of_home, of_invite
from peers.doctor.examination import examine
from peers.doctor.findings import Finding, Light
from peers.doctor.talk import Network
from simulations.processes.namespaces import hosts as labs
from simulations.processes.namespaces.hosts import Lab
from simulations.processes.progress import undelayed, until
from tests.processes.running import PORT, end, environment, host_in
from tests.runtime.storage.small_disk import small_disk

pytestmark = [pytest.mark.processes, pytest.mark.needs("namespaces")]
FORWARDER = str(Path(__file__).with_name("forwarder.py"))
WITHIN = 15.0
"""seconds within which a fault has to be named, if a CPU is free"""


BUSY = {"disk-slow", "torch-slow", "torch-hangs"}
"""faults that a machine may have while other tests use it"""


class Scene:
    """A founder whose daemon runs, and a second host that is to join."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.there, self.here = lab.hosts
        self.founder = host_in(lab, 0, folder)
        self.home = folder / "joiner"
        self.founder.settle_in(None)
        self.founder.start_daemon()
        until("the founder writes an invite", (self.founder.home / "invite").exists, [self.founder])
        until("the founder answers", self.founder.status, [self.founder])

    def case(self, *seeds: str, advertise: str = "") -> Case:
        """The case of the second host with the founder's invite."""
        made = of_invite(invites.read_invite((self.founder.home / "invite").read_text()), self.home)
        if advertise:
            made = replace(made, config=homes.read_config(None, {"network.advertise": advertise}, {}))
        return replace(made, addresses=seeds) if seeds else made


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Lab(2) as lab:
        made = Scene(lab, tmp_path_factory.mktemp("hosts"))
        try:
            yield made
        finally:
            end([made.founder])


def examined(case: Case, where: labs.Host, **options: object) -> list[Finding]:
    """The findings on a host, in time."""
    began = undelayed()
    with where.inside():
        findings = examine(case, with_torch=False, **options)  # type: ignore[arg-type]
    assert undelayed() - began < WITHIN
    return findings


def faults(findings: Sequence[Finding]) -> set[str]:
    """What is wrong, apart from a busy machine."""
    assert all(finding.do for finding in findings if finding.fault)
    return {finding.fault for finding in findings if finding.fault} - BUSY


def filtered(where: labs.Host, *rule: str) -> Callable[[], None]:
    """Add a rule of iptables on a host; the call that removes it."""
    subprocess.run(where.command(["iptables", "-w", "-I", *rule]), check=True)
    return lambda: subprocess.run(where.command(["iptables", "-w", "-D", *rule]), check=True) and None


def test_no_fault__nothing_is_named_and_the_way_is_open_both_ways(scene: Scene) -> None:
    findings = examined(scene.case(), scene.here, fast=True)
    assert faults(findings) == set()
    lights = {finding.about: finding.light for finding in findings}
    for about in (f"way to 10.77.0.1:{PORT}", "clock", f"packets, 10.77.0.1:{PORT}", "dialled by others", "address"):
        assert lights[about] is Light.GREEN, findings
    assert lights[f"speed, 10.77.0.1:{PORT}"] is Light.GREEN
    assert not scene.home.exists()
    assert scene.founder.status()["members"]["alive"] == 1


@pytest.mark.needs("packet filter")
def test_firewall_there_drops(scene: Scene) -> None:
    remove = filtered(scene.there, "INPUT", "-p", "tcp", "--dport", str(PORT), "-j", "DROP")
    try:
        assert faults(examined(scene.case(), scene.here)) == {"dropped"}
    finally:
        remove()


@pytest.mark.needs("packet filter")
def test_firewall_here_drops(scene: Scene) -> None:
    remove = filtered(scene.here, "INPUT", "-p", "tcp", "--dport", str(PORT), "-j", "DROP")
    try:
        findings = examined(scene.case(), scene.here)
    finally:
        remove()
    assert faults(findings) == {"dropped-here"}
    assert all(finding.light is not Light.RED for finding in findings)  # a peer that only dials out is a full peer


@pytest.mark.needs("packet filter")
def test_firewall_before_this_host_drops(scene: Scene) -> None:
    """Like a provider's security group: the packets do not reach this host."""
    remove = filtered(scene.there, "OUTPUT", "-p", "tcp", "--dport", str(PORT), "--syn", "-j", "DROP")
    try:
        assert faults(examined(scene.case(advertise="10.77.0.2"), scene.here)) == {"dropped-before"}
    finally:
        remove()


@pytest.mark.parametrize(
    ("address", "fault"),
    [("10.77.0.1:4999", "refused"), (f"10.77.0.99:{PORT}", "no-route"), (f"nowhere.invalid:{PORT}", "name-unknown")],
    ids=["refused-port", "wrong-address", "no-such-name"],
)
def test_wrong_seed(scene: Scene, address: str, fault: str) -> None:
    assert faults(examined(scene.case(address), scene.here)) == {fault}
    among = examined(scene.case(address, f"10.77.0.1:{PORT}"), scene.here)
    assert faults(among) == {fault} and all(finding.light is not Light.RED for finding in among)


def test_wrong_secret(scene: Scene) -> None:
    case = scene.case()
    assert case.network is not None
    case = replace(case, network=Network(case.network.name, NetworkSecret.generate()))
    assert faults(examined(case, scene.here)) == {"wrong-secret"}


def test_other_version(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed_hello, "OLDEST_VERSION", signed_hello.PROTOCOL_VERSION + 1)
    assert faults(examined(scene.case(), scene.here)) == {"other-version"}


def test_clock_is_off_by_an_hour(scene: Scene) -> None:
    findings = examined(scene.case(), scene.here, wall=lambda: time.time() + 3600.0)
    assert faults(findings) == {"clock-off"}
    (finding,) = [finding for finding in findings if finding.fault == "clock-off"]
    assert finding.light is Light.RED and "60 min ahead of the member" in finding.said


@pytest.mark.needs("packet filter")
@pytest.mark.parametrize(("direction", "word"), [("INPUT", "to"), ("OUTPUT", "from")])
def test_large_packets_are_lost(scene: Scene, direction: str, word: str) -> None:
    remove = filtered(scene.there, direction, "-p", "tcp", "-m", "length", "--length", "1301:", "-j", "DROP")
    try:
        with scene.here.single_packets(), scene.there.single_packets():
            findings = examined(scene.case(), scene.here)
    finally:
        remove()
    assert faults(findings) == {"mtu-black-hole"}
    (finding,) = [finding for finding in findings if finding.fault == "mtu-black-hole"]
    assert f"{word} the member, packets of at most 1300 bytes pass and larger ones are lost" in finding.said
    other = {"to": "from", "from": "to"}[word]
    assert f"{other} the member, large messages pass" in finding.said
    assert "mtu 1300`" in finding.do


@pytest.mark.needs("packet filter")
@pytest.mark.parametrize("word", ["to", "from"])
def test_black_hole_on_one_cable__its_size_is_the_same_from_both_ends(scene: Scene, word: str) -> None:
    place = scene.here if word == "to" else scene.there
    rule = ["OUTPUT", "-o", "eth0", "-p", "tcp", "-m", "length", "--length", "1301:", "-j", "DROP"]
    with place.single_packets():
        subprocess.run(place.command(["iptables", "-w", "-I", *rule]), check=True)
        try:
            findings = examined(scene.case(), scene.here)
        finally:
            subprocess.run(place.command(["iptables", "-w", "-D", *rule]), check=True)
    (finding,) = [finding for finding in findings if finding.fault == "mtu-black-hole"]
    assert f"{word} the member, packets of at most 1300 bytes pass and larger ones are lost" in finding.said


@pytest.mark.needs("mounts")
def test_disk_is_full(scene: Scene, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        assert faults(examined(replace(scene.case(), home=disk / "home"), scene.here)) == {"disk-full"}


def test_too_few_descriptors(scene: Scene) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = ["--home", str(scene.home), "doctor", "--json", f"@{scene.founder.home / 'invite'}"]
    argv = scene.here.command([sys.executable, "-m", "peers.cli", *words])

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    began = undelayed()
    ran = subprocess.run(argv, env=environment(), capture_output=True, text=True, preexec_fn=few, check=False)
    assert undelayed() - began < WITHIN
    told = json.loads(ran.stdout)
    assert {each["fault"] for each in told["findings"]} - {"", *BUSY} == {"few-files"}
    assert (ran.returncode, told["worst"]) == (1, "red")
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_daemon_is_stopped(scene: Scene) -> None:
    assert scene.founder.daemon is not None
    scene.founder.daemon.signal(signal.SIGSTOP)
    try:
        findings = examined(of_home(scene.founder.home), scene.there)
        assert faults(findings) == {"daemon-stopped"}
        assert any(f"kill -CONT {scene.founder.daemon.pid}" in finding.do for finding in findings)
        assert faults(examined(scene.case(), scene.here)) == {"silent"}
    finally:
        scene.founder.daemon.signal(signal.SIGCONT)
    until("the founder answers again", scene.founder.status, [scene.founder])


def opens(host: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, PORT), 1.0):
        return True
    return False


@pytest.fixture
def behind(scene: Scene) -> Iterator[labs.Host]:
    """A namespace behind the second host. Its way out is a forwarder to the founder, as an address translation is.

    It ends with the test: other tests need the second host's port, and workers run tests in any order.
    """
    inside = labs.Host(0, f"{scene.here.namespace}-in", "192.168.50.2")
    router, way_out = scene.here.namespace, None
    subprocess.run(["ip", "netns", "add", inside.namespace], check=True)
    try:
        cable = f"ip -n {router} link add in0 type veth peer name eth0 netns {inside.namespace}"
        subprocess.run(cable.split(), check=True)
        for namespace, device, address in ((router, "in0", "192.168.50.1"), (inside.namespace, "eth0", inside.address)):
            for words in (f"address add {address}/24 dev {device}", f"link set {device} up", "link set lo up"):
                subprocess.run(["ip", "-n", namespace, *words.split()], check=True)
        places = [f"192.168.50.1:{PORT}", f"10.77.0.1:{PORT}"]
        way_out = subprocess.Popen(scene.here.command([sys.executable, "-I", "-S", FORWARDER, *places]))
        with inside.inside():
            until("the way out is open", lambda: opens("192.168.50.1"))
        yield inside
    finally:
        if way_out is not None:
            way_out.kill()
            way_out.wait()
        # The kernel removes it some time after the namespace.
        subprocess.run(["ip", "-n", router, "link", "delete", "in0"], check=False)
        subprocess.run(["ip", "netns", "delete", inside.namespace], check=False)


@pytest.mark.parametrize("leads_to", [0, PORT + 1], ids=["no-map", "wrong-inside-port"])
def test_port_map_with_a_wrong_port(scene: Scene, behind: labs.Host, leads_to: int) -> None:
    outside, forwarder = "10.77.0.2:33526", None
    if leads_to:
        argv = scene.here.command([sys.executable, "-I", "-S", FORWARDER, outside, f"{behind.address}:{leads_to}"])
        forwarder = subprocess.Popen(argv)
    try:
        case = scene.case(f"192.168.50.1:{PORT}", advertise=outside)
        findings = examined(case, behind)
    finally:
        if forwarder is not None:
            forwarder.kill()
            forwarder.wait()
    assert faults(findings) == {"port-map"}
    assert any(finding.light is Light.RED and outside in finding.said for finding in findings)
