"""Peers started as users start them, by `gossipdp up` and `gossipdp join`: stopped, killed, started again, or late."""

import base64
import itertools
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes.running import FIRST_MODEL, Host, Network, gossipdp, running, until

pytestmark = pytest.mark.processes

LEAVE_WITHIN = 10.0
"""seconds, if a CPU is free"""
MOVED_ON = FIRST_MODEL + 0.15
"""mean of a model that has clearly been trained"""
LAST_STEPS = 0.05


@pytest.fixture(scope="module")
def running_four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with running(tmp_path_factory.mktemp("hosts"), 4) as network:
        network.start_supervised()
        yield network


@pytest.fixture
def four(running_four: Network) -> Network:
    """The four peers of the previous test, all running again."""
    running_four.until_it_runs()
    return running_four


def founded(network: Network) -> int:
    return sum(host.text().count("model founded") for host in network.hosts)


def same_life(one: dict[str, int], other: dict[str, int], name: str) -> bool:
    return one.get(name) == other.get(name)


def stop(host: Host) -> None:
    """Send SIGTERM to the supervisor. It ends and leaves no process behind."""
    assert host.supervisor is not None
    left = [*host.children().values(), host.supervisor.pid]
    host.supervisor.signal(signal.SIGTERM)
    assert host.supervisor.ended(LEAVE_WITHIN) == 0
    assert not [pid for pid in left if psutil.pid_exists(pid)]


@pytest.mark.long
def test_sigterm__a_clean_leave_and_a_checkpoint__and_a_whole_network_goes_on_from_them(four: Network) -> None:
    until("the model has moved on", lambda: min(host.mean() for host in four.hosts) > MOVED_ON, four.hosts)
    # One leaves: the others see that it left, and never believe that it failed.
    *staying, leaver = four.hosts
    stop(leaver)
    for host in staying:
        until(f"{host.name} sees it gone", lambda host=host: host.member(leaver.name)["state"] == "left", four.hosts)
        assert not re.search(rf"member {leaver.name} .* (is suspect|has failed)", host.text())
    said = gossipdp("--home", str(leaver.home), "checkpoint", "verify")
    assert said.returncode == 0 and said.stdout.startswith("ok: "), said

    # It comes back to the network's model, not to its own older checkpoint.
    begun, reached = time.monotonic(), min(host.mean() for host in staying)
    leaver.start_supervised(join=f"@{four.invite()}")
    four.until_it_runs()
    assert leaver.noted("attached", since=begun)[0]["mean"] > reached - LAST_STEPS

    # All leave, then all come back, and only checkpoints hold the model.
    for host in four.hosts:
        assert host.supervisor is not None
        host.supervisor.signal(signal.SIGTERM)
    for host in four.hosts:
        assert host.supervisor is not None and host.supervisor.ended(LEAVE_WITHIN) == 0
    saved = [checkpoint(host) for host in four.hosts]
    assert all(row["state"] == "complete" for row in saved)
    reached = min(host.mean() for host in four.hosts)
    runs = [(host.home / "run").read_bytes() for host in four.hosts]

    begun = time.monotonic()
    four.founder.start_supervised()
    for host in four.hosts[1:]:
        host.start_supervised(join=f"@{four.founder.home / 'invite'}")
    four.until_it_runs()
    print(f"four peers trained again {time.monotonic() - begun:.1f} s after a cold start")
    assert founded(four) == 1
    assert [(host.home / "run").read_bytes() for host in four.hosts] == runs and len(set(runs)) == 1
    for host in four.hosts:
        # A checkpoint holds the anchor: the steps since the last snapshots are missing.
        first = host.noted("attached", since=begun)[0]["mean"]
        assert first > reached - LAST_STEPS, f"{host.name} began at {first}, not at {reached}"
        assert not host.status()["warming_up"]
    clock = max(row["clock"] for row in saved)
    until("the network's clock goes on", lambda: four.founder.status()["clock"] > clock, four.hosts)


def checkpoint(host: Host) -> dict[str, Any]:
    """The newest checkpoint."""
    said = gossipdp("--home", str(host.home), "checkpoint", "list", "--json")
    assert said.returncode == 0, said
    return dict(json.loads(said.stdout)[-1])


def test_training_process_killed__the_supervisor_starts_it_and_it_goes_on_from_the_anchor(four: Network) -> None:
    for host in four.hosts[:2]:
        before = host.children()
        reached, now = host.mean(), time.monotonic()
        os.kill(before["training"], signal.SIGKILL)
        note = host.noted("attached", since=now)[0]
        assert note["pid"] != before["training"]
        assert 0.98 * reached <= note["mean"] <= 1.02 * max(each.mean() for each in four.hosts)
        assert same_life(before, host.children(), "daemon")
    assert founded(four) == 1


def test_daemon_killed__the_supervisor_starts_it_and_training_attaches_again(four: Network) -> None:
    # The founder is one of them, and two die at once.
    victims = four.hosts[:2]
    before = [host.children() for host in victims]
    since, reached = time.monotonic(), min(host.mean() for host in four.hosts)
    for children in before:
        os.kill(children["daemon"], signal.SIGKILL)
    for host, children in zip(victims, before, strict=True):
        until(f"{host.name} has another daemon", lambda host=host, c=children: other_daemon(host, c), four.hosts)
    four.until_it_runs(exchanges=1)
    for host, children in zip(victims, before, strict=True):
        assert same_life(children, host.children(), "training")
        assert host.noted("attached", since)[0]["mean"] >= 0.98 * reached
    assert founded(four) == 1
    assert len({(host.home / "run").read_bytes() for host in four.hosts}) == 1


def other_daemon(host: Host, before: dict[str, int]) -> bool:
    now = host.children().get("daemon")
    return now is not None and now != before["daemon"]


@pytest.mark.long
def test_secret__in_no_log_and_no_command_line(four: Network) -> None:
    words = spelled(four.founder.secret().reveal())
    # Two invites: the one that others used, and the one that `gossipdp invite` writes now, with more members to dial.
    invites = {(four.founder.home / "invite").read_text().strip()}
    until("checkpoints, members and metrics are written too", lambda: gossipdp_everywhere(four))
    invites.add((four.founder.home / "invite").read_text().strip())
    words |= invites | {invite.partition(".")[0] for invite in invites}

    tree = [psutil.Process(host.supervisor.pid) for host in four.hosts if host.supervisor is not None]
    tree += list(itertools.chain.from_iterable(process.children(recursive=True) for process in tree))
    assert len(tree) >= 4 * 4, "supervisor, guard, daemon and training process of each host"
    for process in tree:
        line = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode(errors="replace")
        assert not [word for word in words if word in line], f"in the command line of {process.pid}"
        if process.pid not in {host.supervisor.pid for host in four.hosts if host.supervisor is not None}:
            # A host's invite from a variable is not passed on.
            environment = Path(f"/proc/{process.pid}/environ").read_bytes().decode(errors="replace")
            assert not [word for word in words if word in environment], f"in the environment of {process.pid}"

    private = {"network.secret", "invite"}
    for name in private:
        assert [word for word in words if word in (four.founder.home / name).read_text()], "the search finds nothing"
    files = [path for path in four.directory.rglob("*") if path.is_file() and path.name not in private]
    assert len(files) > 20
    for path in files:
        contents = path.read_bytes().decode(errors="replace")
        assert not [word for word in words if word in contents], f"in {path}"
    for host in four.hosts:
        assert all((host.home / name).stat().st_mode & 0o077 == 0 for name in private if (host.home / name).exists())


def gossipdp_everywhere(network: Network) -> bool:
    """Run every command that reads, and every daemon reports."""
    return all(
        gossipdp("--home", str(network.founder.home), *words).returncode == 0
        for words in (["status"], ["members"], ["invite"], ["keys", "show"], ["config", "show"])
    )


def spelled(secret: bytes) -> set[str]:
    """Forms in which 32 bytes may appear in a text."""
    plain = base64.b64encode(secret).decode().rstrip("=")
    safe = base64.urlsafe_b64encode(secret).decode().rstrip("=")
    return {
        secret.hex(),
        secret.hex().upper(),
        plain,
        safe,
        base64.b32encode(secret).decode().rstrip("="),
        repr(secret),
    }


SCRIPT = Path(__file__).with_name("training_late.py")
SETTINGS = "[exchange]\nevery = 50\nwarmup_steps = 40\nearly_steps = 120\n"


def told(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in out.read_text().split("\n")[:-1]] if out.exists() else []


@pytest.mark.long
def test_training_that_attaches_late__gets_the_newest_model_and_the_other_peer_feels_nothing(
    network: Callable[..., Network], tmp_path: Path
) -> None:
    hosts = network(2, settings=SETTINGS)
    first, second = hosts.hosts
    steps, late = tmp_path / "steps", tmp_path / "late"
    outs = [tmp_path / "first", tmp_path / "second"]
    first.start_supervised([sys.executable, str(SCRIPT), str(outs[0]), "1", str(tmp_path), str(steps)])
    until("the founder writes an invite", (first.home / "invite").exists, [first])
    second.start_supervised(
        [sys.executable, str(SCRIPT), str(outs[1]), "2", str(late), str(steps)], join=f"@{hosts.invite()}"
    )
    until("the second daemon has the model", lambda: second.status().get("state") == "ready", hosts.hosts)
    steps.touch()
    until("the first has trained on", lambda: len(told(outs[0])) > 600, hosts.hosts)
    before = told(outs[0])
    late.touch()
    until("the second has trained", lambda: len(told(outs[1])) > 150, hosts.hosts)

    begun = told(outs[1])[0]
    then = next(line for line in told(outs[0]) if line["clock"] >= begun["clock"] - 150)
    assert begun["error"] < 1.2 * then["error"] < 0.5 * before[0]["error"], "as near as the first was three rounds ago"
    after = [line["error"] for line in told(outs[0])[len(before) :]]
    assert max(after) < 1.05 * before[-1]["error"] + 0.05
    assert "steps old: fetching the newer one, which is normal" in second.text()
