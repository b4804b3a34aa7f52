"""Families of processes: members, and the order of their end. The test makes the times."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gossipdp.runtime.free_memory import Free, holders
from peers import memory, processes
from peers.processes import MARK, UNDYING, Ending, family

Start = Callable[..., subprocess.Popen[bytes]]
STUBBORN = 'trap "" TERM; echo; exec sleep 1000'


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a shell command and waits for its first line."""
    started: list[subprocess.Popen[bytes]] = []

    def shell(text: str, **variables: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sh", "-c", text], stdout=subprocess.PIPE, env={**os.environ, **variables}))
        assert started[-1].stdout is not None
        started[-1].stdout.readline()
        return started[-1]

    yield shell
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children():
                child.kill()
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("mark", "leaders"), [("", [5]), ("mark", [0]), ("mark", [1]), ("mark", [77, 1])])
def test_nobodys_mark_and_the_first_process_have_no_family(mark: str, leaders: list[int]) -> None:
    with pytest.raises(ValueError, match="leaders"):
        family(mark, leaders)


def test_family_is_who_has_the_mark_and_their_descendants(start: Start) -> None:
    marked = start("sleep 1000 & echo; wait", **{MARK: "mine-1"})
    parent = start("env -i sleep 1000 & echo; wait", **{MARK: "mine-2"})
    start("echo; exec sleep 1000", **{MARK: "other"})
    one, two = ({each.pid, psutil.Process(each.pid).children()[0].pid} for each in (marked, parent))
    assert {process.pid for process in family("mine-2")} == two
    assert {process.pid for process in family("mine-")} == one | two


def test_family_has_its_leader_without_a_mark__and_no_zombie(start: Start) -> None:
    leader = start("echo; exec sleep 1000")
    assert [process.pid for process in family("mine", [leader.pid])] == [leader.pid]
    leader.kill()
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    assert family("mine", [leader.pid]) == []


def test_ending_tells_the_leader_and_kills_after_its_grace(start: Start) -> None:
    process = start(STUBBORN)
    ending = Ending("it", lambda: family("mine", [process.pid]), 100.0, 10.0)
    assert ending.look(100.0) and ending.due == 110.0
    assert ending.look(109.9) and process.poll() is None
    ending.look(110.0)
    assert process.wait() == -signal.SIGKILL
    assert ending.look(110.1) and not ending.look(110.2)


def test_process_without_a_mark_for_an_instant_is_not_taken_for_gone(start: Start) -> None:
    process = start("echo; exec sleep 1000", **{MARK: "mine"})
    looks = [[], [psutil.Process(process.pid)], [], []]
    ending = Ending("it", lambda: looks.pop(0), 0.0, 10.0)
    assert [ending.look(now) for now in (0.0, 0.1, 0.2, 0.3)] == [True, True, True, False]
    assert process.wait() == -signal.SIGTERM


def test_ending_waits_while_the_family_is_busy(start: Start) -> None:
    process = start(STUBBORN)
    answers = [True, True, False, False]
    ending = Ending("it", lambda: family("mine", [process.pid]), 0.0, 10.0, lambda: answers.pop(0))
    assert ending.look(0.0) and len(answers) == 4
    for now in (9.0, 15.0, 20.0):
        assert ending.look(now) and process.poll() is None
    ending.look(25.0)
    assert process.wait() == -signal.SIGKILL and not answers


def test_ending_in_a_hurry_asks_nobody(start: Start) -> None:
    process = start(STUBBORN)
    ending = Ending("it", lambda: family("mine", [process.pid]), 0.0, 10.0, lambda: True)
    assert ending.look(0.0)
    ending.hurry()
    ending.look(0.1)
    assert process.wait() == -signal.SIGKILL


def test_what_cannot_be_killed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    me = psutil.Process()
    monkeypatch.setattr(psutil.Process, "kill", lambda process: None)
    ending = Ending("stuck", lambda: [me], 100.0, 0.0)
    assert ending.look(100.0) and ending.look(100.0 + UNDYING - 0.1)
    assert not ending.look(100.0 + UNDYING)


def test_processes_of_a_host_whose_proc_is_hidden__are_none_to_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "hidden"))
    monkeypatch.setattr(processes, "_LIBRARY", None)
    assert family("a mark") == [] and not processes.orphans([]) and not processes.adopt()
    assert list(holders(Free(1, 2, "this machine"))) == [] and memory.usable() > 1 << 20
