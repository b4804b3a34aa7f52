"""A peer of which supervisor, guard or daemon is killed, and the command that its user types next.

`tests/peers/supervision/test_kills.py` kills every set of processes, with stand-ins for daemon and training.
"""

import itertools
import os
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from peers import rest
from peers.processes import ticks
from peers.supervisor_file import DAEMON, GUARD, SUPERVISOR, TRAINING, read
from tests.processes.running import Host, gossipdp, until

pytestmark = pytest.mark.processes

PARTS = (SUPERVISOR, GUARD, DAEMON, TRAINING)
KILLED = [some for count in range(1, 5) for some in itertools.combinations(PARTS, count)]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path, "h0", founder=True)
    yield made
    made.end()


def attached(host: Host) -> Callable[[], bool]:
    return lambda: host.status().get("training") == "attached"


def start(host: Host) -> None:
    """`gossipdp up` with a training process behind a shell, which passes no signal on."""
    started = host.start_supervised(["sh", "-c", f"{shlex.join(host.training_command())}; exit $?"])
    until("it has the home", lambda: rest.supervisor(host.home) == started.pid, [host])
    until("training is attached", attached(host), [host])
    # A lone peer has its model from its own checkpoint after the death of its daemon.
    until("its first checkpoint is there", lambda: bool(host.status().get("checkpoint")), [host])


def kill(host: Host, parts: Sequence[str]) -> list[int]:
    """Kill these parts at once. Return the pids of all four and of the process that trains."""
    recorded = read(host.home)
    assert recorded is not None and host.supervisor is not None
    pids = {part: recorded.living(part) for part in PARTS}
    trains = int(host.status()["trainer"])
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for part in parts:
            os.kill(pids[part], number)
    if SUPERVISOR in parts:
        host.supervisor.ended()
    return [*pids.values(), trains]


def none_of(pids: Sequence[int]) -> Callable[[], bool]:
    return lambda: not any(ticks(pid) for pid in pids)


def told(host: Host, *words: str) -> tuple[int, str]:
    said = gossipdp("--home", str(host.home), *words)
    return said.returncode, said.stdout + said.stderr


def test_all_but_training_killed__up_ends_it_and_trains_with_one_process(host: Host) -> None:
    start(host)
    pids = kill(host, (SUPERVISOR, GUARD, DAEMON))
    trains = pids[-1]
    code, said = told(host, "status", "--check")
    assert code == 4 and "its supervisor was killed, and what it started still runs" in said and str(trains) in said
    start(host)
    assert none_of(pids)()
    assert f"ending what it has left: training command (process {trains})" in host.text()
    assert host.status()["trainer"] != trains and told(host, "status", "--check")[0] == 10
    # A second training process is turned away, and both are named.
    stray, first = host.start_training(), host.status()["trainer"]
    what = f"degraded: a second training process ({stray.pid}) is turned away: process {first} is attached (GD-503)"
    until("status names it", lambda: host.status()["verdict"]["text"] == what, [host])
    assert told(host, "status", "--check")[0] == 1


@pytest.mark.long
@pytest.mark.parametrize("then", ["nothing", "up", "leave", "finish"])
@pytest.mark.parametrize("killed", KILLED, ids=lambda parts: "+".join(part.split()[0] for part in parts))
def test_killed_and_then(host: Host, killed: tuple[str, ...], then: str) -> None:
    start(host)
    pids = kill(host, killed)
    replaced = [pid for pid, part in zip(pids, PARTS, strict=False) if part in killed]
    if SUPERVISOR not in killed:
        if then == "up":
            code, said = told(host, "up")
            assert code == 7 and "GD-104" in said
        elif then == "leave":
            assert told(host, "leave")[0] == 0
            until("all end", none_of(pids), [host])
            assert read(host.home) is None
            return
        until("training is attached", lambda: none_of(replaced)() and attached(host)(), [host])
        if then == "finish":
            assert told(host, "finish")[0] == 0
            until("all end", none_of(pids), [host])
        return
    if then == "up":
        start(host)
        assert none_of(pids)()
        return
    if then == "finish":
        assert told(host, "finish")[0] in (0, 4, 8)
    left = {SUPERVISOR, GUARD, DAEMON} <= set(killed) and then != "leave"
    if then == "leave":
        assert told(host, "leave")[0] in (0, 4)
    if left:
        trains = pids.pop()
        assert ticks(trains), "it trains alone, and status says so"
        assert str(trains) in told(host, "status")[1] and told(host, "leave")[0] == 0
        pids.append(trains)
    until("all end", none_of(pids), [host])
