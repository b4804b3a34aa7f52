"""A stranger that came in by a leaked invite, and a stolen host: put out as docs/members.md says, with real daemons."""

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


def standing(host: Host, member: Host) -> tuple[str, bool]:
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
        until(f"{host.name} put it out", lambda host=host: standing(host, thief) == ("failed", True), running)
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
