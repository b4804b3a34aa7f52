"""A stolen host is put out of a network of real daemons, as docs/members.md says."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from peers import audit_log
from tests.processes.running import Host, Network, gossipdp, until

pytestmark = pytest.mark.processes


def state_of(host: Host, member: Host) -> tuple[str, bool]:
    """State of `member` by the daemon of `host`, and whether it is excluded."""
    return next((row["state"], bool(row["excluded"])) for row in host.members() if row["name"] == member.name)


def banned_at(host: Host, member: Host) -> bool:
    done = gossipdp("members", "decisions", "--json", "--home", str(host.home))
    made = json.loads(done.stdout)["decisions"] if done.returncode == 0 else []
    return any((each["name"], each["verdict"]) == (member.name, "banned") for each in made)


def test_stolen_host_is_put_out_for_good_and_let_in_again(network: Callable[..., Network]) -> None:
    net = network(4)
    founder, thief, other, late = net.hosts
    net.settle_in()
    running = [founder, thief, other]
    for host in running:
        host.start_daemon()
        host.start_training()
    for host in running:
        until(f"{host.name} exchanges", lambda host=host: host.exchanges() >= 2, running)

    done = gossipdp("members", "ban", thief.name, "--reason", "stolen", "--home", str(founder.home))
    assert done.returncode == 0, done.stderr
    for host in (founder, other):
        until(f"{host.name} put it out", lambda host=host: state_of(host, thief) == ("failed", True), running)
    until("the thief is told", lambda: thief.status()["verdict"]["state"] == "refused", running)
    assert "(stolen)" in thief.status()["verdict"]["text"]
    before = thief.exchanges(), other.exchanges()
    until("the others go on", lambda: other.exchanges() >= before[1] + 5, running)
    assert thief.exchanges() <= before[0] + 1, "one exchange may have ended while the ban came"

    assert other.daemon is not None
    other.daemon.kill()
    other.start_daemon()
    until("the ban outlives a restart", lambda: banned_at(other, thief), running)
    late.start_daemon()
    running.append(late)
    until("a host that joins later knows of it", lambda: banned_at(late, thief), running)
    assert gossipdp("members", "ban", founder.name, "--home", str(late.home)).returncode == 3, "it lacks the key"

    assert gossipdp("members", "unban", thief.name, "--home", str(founder.home)).returncode == 0
    until("it is back", lambda: thief.exchanges() >= before[0] + 4, running)
    kinds = [record["event"] for record in audit_log.read(founder.home, 1000)]
    assert {"joined", "decided", "failed", "refused", "returned"} <= set(kinds) and kinds.count("decided") == 2
