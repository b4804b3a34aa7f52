"""The supervisor with small stand-ins for the daemon and the training command, as real processes.

Children write lines to a pipe that the test reads with a deadline; the end of that pipe proves that nobody is left.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gossipdp.errors import ConfigError
from gossipdp.runtime.link_socket import socket_path
from peers.supervisor import FINAL, Backoff, Policy, run

pytestmark = pytest.mark.processes

PYTHON = [sys.executable, "-I", "-S", "-c"]
PRELUDE = """
import os, signal, sys, time
def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def on(name, do): signal.signal(getattr(signal, name), lambda *_: do())
def listen():
    path = os.environ["LISTEN"]
    if os.path.exists(path): os.unlink(path)
    open(path, "w").close()
"""
LEAVE = "say('daemon leaves'), sys.exit(0)"
DAEMON = f"on('SIGTERM', lambda: ({LEAVE})); say('daemon', os.getpid()); listen()\n"
WAIT = "\nwhile True: signal.pause()"
TRAINING = "on('SIGTERM', lambda: (say('training ends'), sys.exit(1))); say('training', os.getpid())\n"
DRIVER = """
import sys
from pathlib import Path
from peers.supervisor import Policy, run
home, grace, daemon, *command = sys.argv[1:]
policy = Policy(first=0.01, longest=0.05, grace=float(grace))
daemon = [sys.executable, "-I", "-S", "-c", daemon]
sys.exit(run(Path(home), command, founder=False, overrides={}, policy=policy, daemon=daemon))
"""
DEADLINE = 20.0


class Running:
    """A supervisor and what its children say."""

    def __init__(self, home: Path, daemon: str, training: str | Sequence[str] | None, *, grace: float = 5.0) -> None:
        command = [*PYTHON, PRELUDE + training] if isinstance(training, str) else list(training or ())
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(home), str(grace), PRELUDE + daemon, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "GOSSIPDP_INVITE": "a secret", "LISTEN": str(socket_path(home))},
        )
        assert self.process.stdout is not None
        self._pipe = self.process.stdout.fileno()
        self._text = b""

    def line(self) -> str | None:
        """The next line any child says; None when no child, grandchild or guard is left to say one."""
        deadline = time.monotonic() + DEADLINE
        while b"\n" not in self._text:
            readable, _, _ = select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"nobody said anything; so far {self._text!r}"
            more = os.read(self._pipe, 4096)
            if not more:
                return None
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()

    def number(self, who: str) -> int:
        """Read a line "who NUMBER"."""
        line = self.line()
        assert line is not None
        name, _, number = line.rpartition(" ")
        assert name == who
        return int(number)

    def rest(self) -> list[str]:
        return list(iter(self.line, None))

    def code(self) -> int:
        return self.process.wait(DEADLINE)


@pytest.fixture(autouse=True)
def hangup() -> Iterator[None]:
    """SIGHUP is not ignored, though these tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[type[Running]]:
    started: list[Running] = []

    def start(daemon: str, training: str | Sequence[str] | None, **options: float) -> Running:
        started.append(Running(tmp_path, daemon, training, **options))
        return started[-1]

    yield start  # type: ignore[misc]
    for running in started:
        running.process.kill()
        running.process.wait(DEADLINE)
        assert running.process.stdout is not None
        running.process.stdout.close()


@pytest.mark.parametrize(
    ("lives", "delays"),
    [
        ([0, 0, 0, 0, 0, 0, 0, 0], [0.5, 1, 2, 4, 8, 16, 30, 30]),
        ([0, 0, 61, 0], [0.5, 1, 0.5, 1]),
        ([59.9] * 3, [0.5, 1, 2]),
        ([0] * 2000, [0.5, 1, 2, 4, 8, 16] + [30] * 1994),
    ],
)
def test_waiting_doubles_until_a_child_has_lived_well(lives: list[float], delays: list[float]) -> None:
    backoff = Backoff(Policy())
    assert [backoff.after(life) for life in lives] == delays


def test_final_codes_are_those_of_the_error_tree() -> None:
    assert sorted(FINAL) == [2, 3, 5, 6, 7, 8]


def test_training_finished_daemon_leaves_and_the_run_ends_with_0(supervise: type[Running]) -> None:
    running = supervise(DAEMON + WAIT, "say('trained')")
    running.number("daemon")
    assert running.rest() == ["trained", "daemon leaves"]
    assert running.code() == 0


def test_training_waits_for_the_daemon_and_not_for_a_socket_left_behind(
    supervise: type[Running], tmp_path: Path
) -> None:
    left = socket_path(tmp_path)
    left.parent.mkdir(exist_ok=True)
    left.touch()
    running = supervise("say('not yet')\n" + DAEMON + WAIT, "say('trained')")
    assert running.line() == "not yet"
    running.number("daemon")
    assert running.rest() == ["trained", "daemon leaves"]


def test_training_died_is_restarted_and_told_its_attempt(supervise: type[Running]) -> None:
    training = "attempt = int(os.environ['GOSSIPDP_ATTEMPT']); say('attempt', attempt)\n"
    training += "if attempt == 0: sys.exit(1)\nif attempt == 1: os.kill(os.getpid(), signal.SIGKILL)"
    running = supervise(DAEMON + WAIT, training)
    running.number("daemon")
    assert running.rest() == ["attempt 0", "attempt 1", "attempt 2", "daemon leaves"]
    assert running.code() == 0


def test_training_died_takes_its_own_children_along(supervise: type[Running]) -> None:
    training = """
if os.environ['GOSSIPDP_ATTEMPT'] == '1': say('again'); sys.exit(0)
r, w = os.pipe()
if os.fork() == 0:
    on('SIGTERM', lambda: (say('rank ends'), os._exit(0))); os.write(w, b'x')
    while True: signal.pause()
os.read(r, 1); sys.exit(1)
"""
    running = supervise(DAEMON + WAIT, training)
    running.number("daemon")
    assert running.rest() == ["rank ends", "again", "daemon leaves"]


def test_daemon_killed_is_restarted_while_training_goes_on(supervise: type[Running]) -> None:
    running = supervise(DAEMON + WAIT, "on('SIGUSR1', lambda: (say('trained'), sys.exit(0)))\n" + TRAINING + WAIT)
    first = running.number("daemon")
    training = running.number("training")
    os.kill(first, signal.SIGKILL)
    assert running.number("daemon") != first
    os.kill(training, signal.SIGUSR1)
    assert running.rest() == ["trained", "daemon leaves"]
    assert running.code() == 0


def test_daemon_ended_with_a_code_that_may_pass_is_restarted(supervise: type[Running]) -> None:
    daemon = "if os.environ['GOSSIPDP_ATTEMPT'] == '0': say('daemon unreachable'); sys.exit(4)\n" + DAEMON + WAIT
    running = supervise(daemon, "say('trained')")
    assert running.line() == "daemon unreachable"
    running.number("daemon")
    assert running.rest() == ["trained", "daemon leaves"]


@pytest.mark.parametrize("code", [0, 3, 5, 6, 7, 8])
def test_daemon_ended_for_good_ends_training_with_its_code(supervise: type[Running], code: int) -> None:
    running = supervise(f"on('SIGUSR1', lambda: sys.exit({code}))\n" + DAEMON + WAIT, TRAINING + WAIT)
    daemon = running.number("daemon")
    running.number("training")
    os.kill(daemon, signal.SIGUSR1)
    assert running.rest() == ["training ends"]
    assert running.code() == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_ends_training_and_daemon_cleanly(supervise: type[Running], number: int) -> None:
    running = supervise(DAEMON + WAIT, TRAINING + WAIT)
    running.number("daemon")
    running.number("training")
    running.process.send_signal(number)
    assert sorted(running.rest()) == ["daemon leaves", "training ends"]
    assert running.code() == 0


def test_signal_with_no_training_command_ends_the_daemon(supervise: type[Running]) -> None:
    running = supervise(DAEMON + WAIT, None)
    running.number("daemon")
    running.process.send_signal(signal.SIGTERM)
    assert running.rest() == ["daemon leaves"]
    assert running.code() == 0


def test_signal_to_a_training_that_ignores_it_kills_it(supervise: type[Running]) -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN); say('training', os.getpid())\n" + WAIT
    running = supervise(DAEMON + WAIT, stubborn, grace=0.3)
    running.number("daemon")
    running.number("training")
    running.process.send_signal(signal.SIGTERM)
    assert running.rest() == ["daemon leaves"]
    assert running.code() == 0


def test_second_interrupt_kills_at_once(supervise: type[Running]) -> None:
    training = "on('SIGTERM', lambda: say('training stays')); say('training', os.getpid())\n" + WAIT
    running = supervise(DAEMON.replace(LEAVE, "say('daemon stays')") + WAIT, training, grace=60.0)
    running.number("daemon")
    running.number("training")
    running.process.send_signal(signal.SIGINT)
    assert sorted([running.line() or "", running.line() or ""]) == ["daemon stays", "training stays"]
    running.process.send_signal(signal.SIGINT)
    assert running.rest() == []
    assert running.code() == 70


@pytest.mark.parametrize(("does", "code"), [("sys.exit(8)", 8), ("os.kill(os.getpid(), signal.SIGKILL)", 70)])
def test_daemon_that_fails_to_leave_gives_the_run_its_code(supervise: type[Running], does: str, code: int) -> None:
    running = supervise(DAEMON.replace(LEAVE, does) + WAIT, None)
    running.number("daemon")
    running.process.send_signal(signal.SIGTERM)
    assert running.rest() == []
    assert running.code() == code


def test_supervisor_killed_leaves_nobody_behind(supervise: type[Running]) -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN); say('training', os.getpid())\n" + WAIT
    shell = ["sh", "-c", '"$@" & wait', "sh", *PYTHON, PRELUDE + stubborn]
    running = supervise(DAEMON + WAIT, shell, grace=0.3)
    running.number("daemon")
    running.number("training")
    running.process.kill()
    assert running.rest() == ["daemon leaves"]
    assert running.code() == -signal.SIGKILL


def test_children_inherit_the_home_and_no_invite(supervise: type[Running], tmp_path: Path) -> None:
    look = "say('invite' if 'GOSSIPDP_INVITE' in os.environ else 'none', os.environ['GOSSIPDP_HOME'])\n"
    running = supervise(look + DAEMON + WAIT, look)
    assert running.line() == f"none {tmp_path}"
    running.number("daemon")
    assert running.rest() == [f"none {tmp_path}", "daemon leaves"]


@pytest.mark.parametrize(("said", "found"), [(None, "1"), ("0", "0")])
def test_torchrun_keeps_no_store_of_dead_ranks_over_a_restart__unless_the_user_says_so(
    supervise: type[Running], monkeypatch: pytest.MonkeyPatch, said: str | None, found: str
) -> None:
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    monkeypatch.delenv(name, raising=False)
    if said is not None:
        monkeypatch.setenv(name, said)
    running = supervise(DAEMON + WAIT, f"say('store', os.environ['{name}'])\n")
    running.number("daemon")
    assert running.rest() == [f"store {found}", "daemon leaves"]


def test_daemon_command_line_carries_home_format_and_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    class Found(Exception):
        pass

    def start(argv: list[str], **_: object) -> None:
        started.append(argv)
        raise Found

    monkeypatch.setattr("peers.supervisor.subprocess.Popen", start)
    monkeypatch.setattr("peers.supervisor.logs.configure", lambda *_: None)
    with pytest.raises(Found):
        run(tmp_path, [], founder=True, overrides={"exchange.every": "7"}, log_format="auto")
    assert started == [
        [
            sys.executable,
            "-m",
            "peers.daemon",
            "--home",
            str(tmp_path),
            "--log-format",
            "text",
            "--set",
            "exchange.every=7",
        ]
    ]


def test_command_that_does_not_exist_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"GD-316 .*\n.*no-such-trainer"):
        run(tmp_path, ["no-such-trainer"], founder=False, overrides={})
