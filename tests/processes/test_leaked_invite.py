"""An invite has leaked, and a stranger came in by it: put out for good as docs/members.md says, with real daemons."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gossipdp.runtime.network.identity import NetworkSecret
from peers import audit_log, invites
from tests.processes.running import Host, Network, gossipdp, until

pytestmark = pytest.mark.processes


def state_of(host: Host, member: Host) -> str:
    return next((row["state"] for row in host.members() if row["name"] == member.name), "unknown")


def operate(*arguments: str, host: Host) -> str:
    done = gossipdp(*arguments, "--home", str(host.home))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_leaked_invite_is_worth_nothing_after_a_new_secret_and_training_goes_on(
    network: Callable[..., Network],
) -> None:
    net = network(5)
    founder, member, stranger, again, guest = net.hosts
    net.settle_in()  # every host holds the leaked invite
    running = [founder, member, stranger]
    for host in running:
        host.start_daemon()
        host.start_training()
    for host in running:
        until(f"{host.name} exchanges", lambda host=host: host.exchanges() >= 2, running)
    old, before = NetworkSecret.load(member.home), member.exchanges()
    links = set(member.status()["links"])

    operate("members", "ban", stranger.name, host=founder)
    told = operate("keys", "rotate", "--yes", "--grace", "0s", "--reason", "leak", host=founder)
    assert "All live members have it" in told
    assert NetworkSecret.load(member.home) == NetworkSecret.load(founder.home) != old
    assert NetworkSecret.load(stranger.home) == old, "it is not sealed for a banned peer"
    until("training goes on", lambda: member.exchanges() >= before + 5, running)
    assert set(member.status()["links"]) < links, "none is new"

    again.start_daemon()
    running.append(again)
    until("the leaked invite lets nobody in", lambda: "GD-208" in again.log.read_text(), [founder, member])
    assert state_of(founder, again) == "unknown"

    operate("invite", "--for", "guest", "--expires", "10m", host=founder)
    invite = (founder.home / "invites" / "guest").read_text()
    fresh(guest.home)
    guest.settle_in(invite)
    guest.start_daemon()
    guest.start_training()
    running.append(guest)
    until("the guest trains with the others", lambda: guest.exchanges() >= 2, [founder, member, guest])
    (listed,) = json.loads(operate("invite", "--list", "--json", host=member))
    assert listed["let_in"] == [row["id"] for row in guest.members() if row["me"]]
    assert invites.read_invite(operate("invite", "--show", host=guest).splitlines()[-1]).invite is not None
    kinds = {record["event"] for record in audit_log.read(member.home, 1000)}
    assert {"joined", "decided", "let in", "has the new secret"} <= kinds


def fresh(home: Path) -> None:
    """Forget what `settle_in` has put into a home that has not started."""
    for path in home.iterdir():
        if path.is_file():
            path.unlink()
