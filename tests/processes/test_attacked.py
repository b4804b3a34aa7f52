"""Real daemons among partners that die under load and among strangers that take up descriptors."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from running import Host, Network, environment, until

from gossipdp.protocol.messages import Lane, Ping
from gossipdp.protocol.wire import encode
from gossipdp.runtime.identity import Identity, NetworkSecret
from gossipdp.runtime.transport import LinkUp, Transport
from simulations.wan.processes import NETWORK

pytestmark = pytest.mark.processes

JOINS_WITHIN = 2.0
"""seconds in which an honest host has a link, whatever others do"""
GROWS_BY = 300 << 20
"""bytes: what floods may leave in a daemon's memory"""


def started(network: Network) -> Host:
    """A daemon without a training process, which has founded its network."""
    network.settle_in()
    host = network.founder
    host.start_daemon()
    until("the daemon answers", host.status, 30, [host])
    return host


def port(host: Host) -> int:
    return int(host.address.rpartition(":")[2])


def link(host: Host) -> float:
    """Seconds until a new member has a link with `host`."""
    member = Transport(
        Identity.generate(), NetworkSecret.load(host.home), network=NETWORK, run=b"", incarnation=1, listen=None
    )
    begun = time.monotonic()
    try:
        while (waited := time.monotonic() - begun) < 20:
            member.send(b"", host.address, Lane.CONTROL, encode(Ping(1)))
            if any(isinstance(event, LinkUp) for event in member.poll(0.01)[0]):
                return time.monotonic() - begun
        return waited
    finally:
        member.close(linger=0)


def kill_partners(host: Host, rounds: int, partners: int) -> None:
    """Have members link with `host`, flood it with pings and die; see `partners`."""
    secret = NetworkSecret.load(host.home).reveal().hex()
    argv = [sys.executable, str(Path(__file__).with_name("partners.py")), str(port(host)), secret, NETWORK]
    argv += [str(rounds), str(partners)]
    done = subprocess.run(
        argv, env=environment(), capture_output=True, text=True, timeout=60 + 10 * rounds, check=False
    )
    assert done.stdout.split() == ["killed"] * rounds, f"{done.stderr}\n{host.last_words()}"


def test_fifty_partners_killed_while_they_flood__daemon_lives_and_its_memory_is_bounded(
    network: Callable[..., Network],
) -> None:
    host = started(network(1))
    assert host.daemon is not None
    before = host.daemon.memory
    kill_partners(host, rounds=5, partners=10)
    assert host.daemon.code is None and host.status(), host.last_words()
    assert host.daemon.memory < before + GROWS_BY
    assert link(host) < JOINS_WITHIN
