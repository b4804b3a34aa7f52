"""Real daemons, partners that die under load, and strangers that use up descriptors."""

import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gossipdp.protocol.wire.encoding import encode
from gossipdp.protocol.wire.messages import Lane, Ping
from gossipdp.runtime.network.events import DialFailed, LinkUp, TransportEvent
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.network.transport import Transport
from peers.control import ask
from simulations.processes.namespaces.processes import NETWORK
from tests.processes.running import Host, end, environment, until

pytestmark = pytest.mark.processes

DIALS_FAIL = 1
"""most dials of an honest host that fail during an attack, before it has a link"""
GROWS_BY = 300 << 20
"""most bytes that floods may add to a daemon's memory"""


def limited(files: int) -> Callable[[Sequence[str]], list[str]]:
    """A command with a limit of open files; 0: this process's own limit."""
    return lambda argv: ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *argv] if files else list(argv)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """`started(256)`: a daemon with a limit of 256 open files that has founded its network. It ends with the test."""
    hosts = []

    def start(files: int = 0) -> Host:
        host = Host(tmp_path, "h0", founder=True, within=limited(files))
        hosts.append(host)
        host.settle_in(None)
        host.start_daemon()
        until("the daemon answers", host.status, [host])
        return host

    yield start
    end(hosts)


def port(host: Host) -> int:
    return int(host.address.rpartition(":")[2])


def link(host: Host) -> int:
    """Let a new member get a link with `host`. Return how many of its dials failed before."""
    member = Transport(
        Identity.generate(), NetworkSecret.load(host.home), network=NETWORK, run=b"", incarnation=1, listen=None
    )
    events: list[TransportEvent] = []

    def linked() -> bool:
        member.send(b"", host.address, Lane.CONTROL, encode(Ping(1)))
        events.extend(member.poll(0.01)[0])
        return any(isinstance(event, LinkUp) for event in events)

    try:
        until("the new member has a link", linked, [host])
    finally:
        member.close(linger=0)
    return sum(isinstance(event, DialFailed) for event in events)


def kill_partners(host: Host, rounds: int, partners: int) -> None:
    """Let members connect to `host`, flood it with pings and die; see `partners`."""
    argv = [sys.executable, str(Path(__file__).with_name("partners.py")), str(port(host)), str(host.home), NETWORK]
    argv += [str(rounds), str(partners)]
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["killed"] * rounds, f"{done.stderr}\n{host.last_words()}"


@contextmanager
def strangers(host: Host, count: int, said: int) -> Iterator[None]:
    """Connections to the peer's port and its metrics port that are opened again whenever they close."""
    metrics = urlsplit(host.status()["metrics"]).port
    words = [str(count), str(said), str(port(host)), str(metrics)]
    argv = [sys.executable, str(Path(__file__).with_name("strangers.py")), *words]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline() == "open\n"
            yield
        finally:
            process.stdin.close()


def check_killed_partners(host: Host, rounds: int, partners: int) -> None:
    assert host.daemon is not None
    before = host.daemon.memory
    kill_partners(host, rounds=rounds, partners=partners)
    assert host.daemon.code is None and host.status(), host.last_words()
    assert host.daemon.memory < before + GROWS_BY


def test_fifty_partners_killed_while_they_flood__daemon_lives_and_its_memory_is_bounded(
    started: Callable[..., Host],
) -> None:
    host = started()
    check_killed_partners(host, rounds=5, partners=10)
    assert link(host) <= DIALS_FAIL


def check_strangers(host: Host, count: int, said: int) -> None:
    assert host.daemon is not None
    with strangers(host, count, said):
        joined = sorted(link(host) for _ in range(5))
        assert host.daemon.code is None and host.status(), host.last_words()
    assert joined[3] <= DIALS_FAIL, joined
    until("the daemon closes what strangers left", lambda: host.daemon.descriptors < 60, [host])  # type: ignore[union-attr]
    with urllib.request.urlopen(host.status()["metrics"]) as answer:
        assert b"gossipdp_build_info" in answer.read()
    assert "Traceback" not in host.text()


def test_more_idle_strangers_than_descriptors__honest_hosts_join(started: Callable[..., Host]) -> None:
    check_strangers(started(256), 1300, said=0)


@pytest.mark.long
@pytest.mark.parametrize("said", [0, 1])
@pytest.mark.parametrize(("files", "count"), [(256, 1300), (1024, 1300), (4096, 5000), (0, 9000)])
def test_strangers_at_every_limit__honest_hosts_join(
    started: Callable[..., Host], files: int, count: int, said: int
) -> None:
    check_strangers(started(files), count, said)


@pytest.mark.long
def test_two_hundred_partners_killed_while_they_flood__daemon_lives(started: Callable[..., Host]) -> None:
    check_killed_partners(started(), rounds=10, partners=20)


@pytest.mark.long
def test_strangers_while_a_model_comes__attached_and_saved(started: Callable[..., Host]) -> None:
    host = started(256)
    with strangers(host, 1300, said=1):
        host.start_training()
        until("it trains", lambda: host.status().get("training") == "attached", [host])
        ask(host.home, "checkpoint")
        until("a checkpoint is written", lambda: host.status().get("checkpoint"), [host])
