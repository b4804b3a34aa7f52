"""The supervisor with small stand-ins for the daemon and the training command, as real processes.

Children write lines to a pipe that the test reads with a deadline; the end of that pipe proves that nobody is left.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from gossipdp.errors import ConfigError
from gossipdp.runtime.unix_sockets import socket_path
from peers import control, environment
from peers.attachment import Attachment
from peers.child import Backoff, Child, Policy
from peers.processes import Guard
from peers.supervisor import ATTACH_WITHIN, FINAL, Supervisor, run
from simulations.processes.namespaces.processes import until

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
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
LAUNCHER = """
import subprocess
def launch(code, environment=None):
    command = [sys.executable, '-I', '-S', '-c', os.environ['PRELUDE'] + code]
    return subprocess.Popen(command, env=environment, start_new_session=True)
"""
"""As torchrun does it: each rank leads a session of its own."""
SAVING = """
import socket
def save(answers):
    control = socket.socket(socket.AF_UNIX)
    control.bind(os.environ['CONTROL'])
    control.listen()
    say('daemon saves')
    for _ in range(answers):
        asker, _ = control.accept()
        asker.recv(4096)
        asker.sendall(b'{"reply": {"saving": true}}\\n')
        asker.close()
    say('daemon has saved')
    sys.exit(0)
"""
"""A daemon that says so many times that it is saving."""
DRIVER = """
import sys
from pathlib import Path
from peers.child import Policy
from peers.supervisor import run
home, grace, daemon, *command = sys.argv[1:]
policy = Policy(first=0.01, longest=0.05, grace=float(grace))
daemon = [sys.executable, "-I", "-S", "-c", daemon]
sys.exit(run(Path(home), command, founder=False, overrides={}, policy=policy, daemon=daemon))
"""
DEADLINE = 20.0


class Running:
    """A supervisor and what its children say."""

    def __init__(
        self,
        home: Path,
        daemon: str,
        training: str | Sequence[str] | None,
        *,
        grace: float = 5.0,
        within: Sequence[str] = (),
        stderr: int | None = None,
    ) -> None:
        command = [*PYTHON, PRELUDE + training] if isinstance(training, str) else list(training or ())
        variables = {"LISTEN": str(socket_path(home)), "CONTROL": str(control.socket_path(home))}
        variables |= {"GOSSIPDP_INVITE": "a secret", "PRELUDE": PRELUDE}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by the fixture)
        self.process = subprocess.Popen(
            [*within, sys.executable, "-c", DRIVER, str(home), str(grace), PRELUDE + daemon, *command],
            stdout=subprocess.PIPE,
            stderr=self._log if stderr is None else stderr,
            env={**os.environ, **variables},
        )
        self.seen: list[psutil.Process] = []
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
        return self.numbers(who)[who]

    def numbers(self, *who: str) -> dict[str, int]:
        """Read a line "who NUMBER" of each, in whatever order they come."""
        found: dict[str, int] = {}
        for _ in who:
            name, _, number = (self.line() or "").rpartition(" ")
            found[name] = int(number)
            self.watch(int(number))
        assert set(found) == set(who)
        return found

    def watch(self, number: int) -> None:
        """It ends with the test, whatever happens."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.seen.append(psutil.Process(number))

    def log(self) -> str:
        """What the supervisor has said of itself."""
        return os.pread(self._log.fileno(), 1 << 20, 0).decode()

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

    def start(daemon: str, training: str | Sequence[str] | None, **options: Any) -> Running:
        started.append(Running(tmp_path, daemon, training, **options))
        return started[-1]

    yield start  # type: ignore[misc]
    for running in started:
        running.process.kill()
        running.process.wait(DEADLINE)
        for process in running.seen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert running.process.stdout is not None
        running.process.stdout.close()
        running._log.close()


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


def test_training_script_that_is_not_there__gives_up_with_its_last_lines_and_its_code(
    supervise: type[Running], tmp_path: Path
) -> None:
    running = supervise(DAEMON + WAIT, [sys.executable, str(tmp_path / "no-such-script.py")])
    running.number("daemon")
    assert running.rest() == ["daemon leaves"]
    assert running.code() == 2
    *_, error, seen, line, do = running.log().splitlines()
    assert error.endswith("GD-316 the training command fails at each start, and is not started again")
    assert seen.startswith("  seen: it exited with 2, 3 times in a row") and "can't open file" in line
    assert do.startswith("  do: ")


def test_training_killed_at_each_start__gives_up_at_the_fifth_with_the_shells_code(supervise: type[Running]) -> None:
    training = "say('starts'); print('no device', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)"
    running = supervise(DAEMON + WAIT, training)
    running.number("daemon")
    assert running.rest() == ["starts"] * 5 + ["daemon leaves"]
    assert running.code() == 128 + 9
    assert running.log().count("\nno device") == 5, "what it writes is passed on"
    assert (
        "was ended by SIGKILL, 5 times in a row; its last lines on standard error:\n        no device" in running.log()
    )


def test_training_that_the_system_does_not_start__gives_up_and_says_why(
    supervise: type[Running], tmp_path: Path
) -> None:
    command = tmp_path / "command"
    command.write_bytes(b"no program")
    command.chmod(0o700)
    running = supervise(DAEMON + WAIT, [str(command)])
    running.number("daemon")
    assert running.rest() == ["daemon leaves"]
    assert running.code() == 126
    assert "GD-316" in running.log() and "Exec format error" in running.log().splitlines()[-2]


COUNTS = """
import socket
def answer(attaches):
    control = socket.socket(socket.AF_UNIX)
    control.bind(os.environ['CONTROL'])
    control.listen()
    listen()
    for count in attaches:
        asker, _ = control.accept()
        asker.recv(4096)
        asker.sendall(b'{"reply": {"incarnation": 1, "attaches": %d}}\\n' % count)
        asker.close()
"""


@pytest.mark.parametrize(("attaches", "told"), [((3, 3), True), ((3, 4), False)])
def test_training_ends_well__told_whether_it_never_attached(
    supervise: type[Running], attaches: tuple[int, int], told: bool
) -> None:
    running = supervise(COUNTS + DAEMON.replace("listen()", f"answer({attaches})") + WAIT, "say('trained')")
    running.number("daemon")
    assert running.rest() == ["trained", "daemon leaves"]
    assert running.code() == 0
    assert ("warning: GD-503 the training command has not attached" in running.log()) == told


class Attached(Attachment):
    """What the daemon would say, in turn."""

    def __init__(self, *answers: bool | None) -> None:
        self.answers = list(answers)

    def begin(self) -> None:
        pass

    def seen(self) -> bool | None:
        return self.answers.pop(0)


class Runs(Child):
    """A child that has started and runs."""

    def start(self, now: float) -> None:
        self.running_now = True

    def reap(self, now: float, grace: float) -> int | None:
        return None

    @property
    def quiet(self) -> bool:
        return not getattr(self, "running_now", False)


def test_training_runs_for_a_minute_without_attaching__told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy, guard = Policy(), cast(Guard, None)
    daemon, training = (Runs(name, [], {}, guard, Backoff(policy), "") for name in ("daemon", "training"))
    attached = Attached(None, False)
    supervisor = Supervisor(daemon, training, tmp_path / "none", policy, attached)
    monkeypatch.setattr(supervisor, "_daemon_listens", lambda: True)
    told = []
    for now in (0.0, ATTACH_WITHIN - 1, ATTACH_WITHIN, 2 * ATTACH_WITHIN - 1, 2 * ATTACH_WITHIN, 100 * ATTACH_WITHIN):
        supervisor._reap(now)
        supervisor._start(now)
        told.append(caplog.text.count("GD-503"))
    assert told == [0, 0, 0, 0, 1, 1] and attached.answers == []


@pytest.mark.parametrize(("does", "code"), [("sys.exit(1)", 1), ("os.kill(os.getpid(), signal.SIGSEGV)", 139)])
def test_daemon_that_crashes_at_each_start__is_given_up_at_the_tenth(
    supervise: type[Running], does: str, code: int
) -> None:
    running = supervise(f"say('daemon'); {does}", TRAINING + WAIT)
    assert running.rest() == ["daemon"] * 10
    assert running.code() == code
    assert "crashed at each of its 10 starts, before it listened" in running.log()


@pytest.mark.parametrize("code", [5, 6])
def test_daemon_turned_away_by_all_in_its_first_start_ends_the_run(supervise: type[Running], code: int) -> None:
    daemon = f"on('SIGUSR1', lambda: sys.exit({code}))\n" + DAEMON + WAIT
    running = supervise(daemon, None)
    first = running.number("daemon")
    until("it has been seen to listen", lambda: "listens" in running.log(), DEADLINE)
    os.kill(first, signal.SIGUSR1)
    assert running.rest() == []
    assert running.code() == code


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


@pytest.mark.parametrize("environment", ["None", "{}"], ids=["own", "no"])
def test_launcher_killed__training_starts_again_when_its_ranks_of_other_sessions_are_gone(
    supervise: type[Running], tmp_path: Path, environment: str
) -> None:
    slot = f"import fcntl; slot = open({str(tmp_path / 'slot')!r}, 'w')\n"
    rank = STUBBORN + slot + "fcntl.flock(slot, fcntl.LOCK_EX); say('rank', os.getpid())\n" + WAIT
    training = f"""
if os.environ['GOSSIPDP_ATTEMPT'] == '1':
    {slot.strip()}
    fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB); say('again'); sys.exit(0)
launch({rank!r}, {environment})
say('launcher', os.getpid())
"""
    running = supervise(DAEMON + WAIT, LAUNCHER + training + WAIT, grace=0.3)
    running.number("daemon")
    numbers = running.numbers("launcher", "rank")
    os.kill(numbers["launcher"], signal.SIGKILL)
    assert running.rest() == ["again", "daemon leaves"]
    assert running.code() == 0


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


@pytest.mark.parametrize("code", [0, 2, 3, 5, 6, 7, 8])
def test_daemon_ended_for_good_before_it_ever_listened_ends_the_run_with_its_code(
    supervise: type[Running], code: int
) -> None:
    running = supervise(f"say('daemon'); sys.exit({code})", TRAINING + WAIT)
    assert running.rest() == ["daemon"]
    assert running.code() == code


def test_daemon_that_has_left_ends_training(supervise: type[Running]) -> None:
    running = supervise("on('SIGUSR1', lambda: sys.exit(0))\n" + DAEMON + WAIT, TRAINING + WAIT)
    daemon = running.number("daemon")
    running.number("training")
    os.kill(daemon, signal.SIGUSR1)
    assert running.rest() == ["training ends"]
    assert running.code() == 0


@pytest.mark.parametrize("training", [None, "on('SIGUSR1', lambda: (say('trained'), sys.exit(0)))\n" + TRAINING + WAIT])
def test_daemon_that_has_listened_once_is_started_again_after_any_failure_while_training_goes_on(
    supervise: type[Running], training: str | None
) -> None:
    daemon = """
attempt = int(os.environ['GOSSIPDP_ATTEMPT'])
if 0 < attempt < 7: say('code', [2, 3, 5, 6, 7, 8][attempt - 1]); sys.exit([2, 3, 5, 6, 7, 8][attempt - 1])
on('SIGUSR1', lambda: sys.exit(7))
"""
    running = supervise(daemon + DAEMON + WAIT, training)
    first = running.number("daemon")
    trainer = running.number("training") if training is not None else 0
    until("it has been seen to listen", lambda: "listens" in running.log(), DEADLINE)
    os.kill(first, signal.SIGUSR1)
    assert [running.line() for _ in range(6)] == [f"code {code}" for code in (2, 3, 5, 6, 7, 8)]
    assert running.number("daemon") != first
    os.kill(trainer or running.process.pid, signal.SIGUSR1 if trainer else signal.SIGTERM)
    assert running.rest() == (["trained"] if trainer else []) + ["daemon leaves"]
    assert running.code() == 0
    assert [f"exited with {code}; again" in running.log() for code in (2, 3, 5, 6, 7, 8)] == [True] * 6


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_while_the_daemon_starts_is_a_clean_end(supervise: type[Running], number: int) -> None:
    running = supervise("say('daemon', os.getpid())\n" + WAIT, TRAINING + WAIT)
    running.number("daemon")
    running.process.send_signal(number)
    assert running.rest() == []
    assert running.code() == 0


def test_terminal_hangs_up__the_peer_goes_on_if_its_output_goes_elsewhere(supervise: type[Running]) -> None:
    running = supervise(DAEMON + WAIT, TRAINING + WAIT)
    running.number("daemon")
    running.number("training")
    running.process.send_signal(signal.SIGHUP)
    until("the hang-up is told", lambda: "terminal has hung up" in running.log(), DEADLINE)
    running.process.send_signal(signal.SIGTERM)
    assert sorted(running.rest()) == ["daemon leaves", "training ends"]
    assert running.code() == 0


def test_terminal_that_gets_the_output_hangs_up__a_clean_end(supervise: type[Running]) -> None:
    terminal, output = os.openpty()
    running = supervise(DAEMON + WAIT, TRAINING + WAIT, stderr=output)
    os.close(output)
    running.number("daemon")
    running.number("training")
    os.close(terminal)  # from now on each write to it fails
    running.process.send_signal(signal.SIGHUP)
    assert sorted(running.rest()) == ["daemon leaves", "training ends"]
    assert running.code() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
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
    stubborn = STUBBORN + "say('training', os.getpid())\n" + WAIT
    running = supervise(DAEMON + WAIT, stubborn, grace=0.3)
    running.number("daemon")
    running.number("training")
    running.process.send_signal(signal.SIGTERM)
    assert running.rest() == ["daemon leaves"]
    assert running.code() == 0


def test_signal_to_a_launcher_that_ignores_it_kills_its_ranks_too(supervise: type[Running]) -> None:
    rank = STUBBORN + "say('rank', os.getpid())\n" + WAIT
    launcher = LAUNCHER + STUBBORN + f"launch({rank!r}); say('launcher', os.getpid())\n" + WAIT
    running = supervise(DAEMON + WAIT, launcher, grace=0.3)
    running.number("daemon")
    running.numbers("launcher", "rank")
    running.process.send_signal(signal.SIGTERM)
    assert running.rest() == ["daemon leaves"]
    assert running.code() == 0


def test_signal_reaches_a_launcher_alone__its_ranks_are_its_own_to_end(supervise: type[Running]) -> None:
    rank = "on('SIGTERM', lambda: say('rank is told')); on('SIGUSR1', lambda: (say('rank ends'), sys.exit(0)))\n"
    rank += "say('rank', os.getpid())\n" + WAIT
    ends = "rank.send_signal(signal.SIGUSR1), rank.wait(), say('launcher ends'), sys.exit(1)"
    launcher = LAUNCHER + f"rank = launch({rank!r}); on('SIGTERM', lambda: ({ends})); say('launcher', os.getpid())\n"
    running = supervise(DAEMON + WAIT, launcher + WAIT)
    running.number("daemon")
    running.numbers("launcher", "rank")
    running.process.send_signal(signal.SIGTERM)
    said = running.rest()
    said.remove("daemon leaves")
    assert said == ["rank ends", "launcher ends"]


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


SAVES = SAVING + DAEMON.replace(LEAVE, "save(3)") + WAIT


def test_daemon_that_says_it_is_saving_has_the_time_it_takes__training_has_not(supervise: type[Running]) -> None:
    stubborn = STUBBORN + "say('training', os.getpid())\n" + WAIT
    running = supervise(SAVES, stubborn, grace=2.0)
    running.number("daemon")
    training = psutil.Process(running.number("training"))
    running.process.send_signal(signal.SIGTERM)
    assert running.line() == "daemon saves"
    until("training is killed", lambda: not training.is_running(), DEADLINE)
    assert running.rest() == ["daemon has saved"]
    assert running.code() == 0


def test_second_interrupt_kills_a_daemon_that_is_saving(supervise: type[Running]) -> None:
    running = supervise(SAVES.replace("save(3)", "save(10**9)"), None, grace=2.0)
    running.number("daemon")
    running.process.send_signal(signal.SIGINT)
    assert running.line() == "daemon saves"
    running.process.send_signal(signal.SIGINT)
    assert running.rest() == []
    assert running.code() == 70


def test_supervisor_killed__a_daemon_that_says_it_is_saving_has_the_time_it_takes(supervise: type[Running]) -> None:
    running = supervise(SAVES, None, grace=2.0)
    running.number("daemon")
    running.process.kill()
    assert running.rest() == ["daemon saves", "daemon has saved"]


@pytest.mark.parametrize(("does", "code"), [("sys.exit(8)", 8), ("os.kill(os.getpid(), signal.SIGKILL)", 70)])
def test_daemon_that_fails_to_leave_gives_the_run_its_code(supervise: type[Running], does: str, code: int) -> None:
    running = supervise(DAEMON.replace(LEAVE, does) + WAIT, None)
    running.number("daemon")
    running.process.send_signal(signal.SIGTERM)
    assert running.rest() == []
    assert running.code() == code


@pytest.mark.parametrize("within", [["sh", "-c", '"$@" & wait', "sh"], ["env", "-i"]], ids=["shell", "no-environment"])
def test_supervisor_killed_leaves_nobody_behind(supervise: type[Running], within: Sequence[str]) -> None:
    stubborn = STUBBORN + "say('training', os.getpid())\n" + WAIT
    shell = [*within, *PYTHON, PRELUDE + stubborn]
    running = supervise(DAEMON + WAIT, shell, grace=0.3)
    running.number("daemon")
    running.number("training")
    running.process.kill()
    assert running.rest() == ["daemon leaves"]
    assert running.code() == -signal.SIGKILL


def test_supervisor_killed_leaves_no_rank_of_another_session_behind(supervise: type[Running]) -> None:
    rank = STUBBORN + "say('rank', os.getpid())\n" + WAIT
    launcher = LAUNCHER + f"launch({rank!r}); say('launcher', os.getpid())\n" + WAIT
    running = supervise(DAEMON + WAIT, launcher, grace=0.3)
    running.number("daemon")
    running.numbers("launcher", "rank")
    running.process.kill()
    assert running.rest() == ["daemon leaves"]


def test_orphan_of_the_training_command_leaves_no_zombie(supervise: type[Running]) -> None:
    orphan = "on('SIGUSR1', lambda: (say('orphan ends'), sys.exit(0))); say('orphan', os.getpid())\n" + WAIT
    training = LAUNCHER + f"if os.fork() == 0: launch({orphan!r}); os._exit(0)\nos.wait()\n" + TRAINING + WAIT
    running = supervise(DAEMON + WAIT, training)
    running.number("daemon")
    orphan = running.numbers("training", "orphan")["orphan"]
    until("it is adopted", lambda: psutil.Process(orphan).ppid() == running.process.pid, DEADLINE)
    os.kill(orphan, signal.SIGUSR1)
    assert running.line() == "orphan ends"
    until("it is buried", lambda: not psutil.pid_exists(orphan), DEADLINE)


def test_process_that_the_supervisor_did_not_start_is_left_alone(supervise: type[Running]) -> None:
    """A container's entry point may start something of its own, and then become the supervisor."""
    training = "attempt = os.environ['GOSSIPDP_ATTEMPT']; say('attempt', attempt); sys.exit(attempt == '0')"
    shell = ["sh", "-c", 'sleep 1000 >/dev/null & echo other $!; exec "$@"', "sh"]
    running = supervise(DAEMON + WAIT, training, within=shell)
    other = psutil.Process(running.number("other"))
    running.number("daemon")
    assert running.rest() == ["attempt 0", "attempt 1", "daemon leaves"]
    assert other.is_running() and other.status() != psutil.STATUS_ZOMBIE


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


class Found(Exception):
    """What would have been started."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[str], dict[str, str]]]:
    """Command line and environment of the daemon that `run` would start."""

    def popen(argv: list[str], *, env: dict[str, str], **_: object) -> None:
        raise Found(argv, env)

    def start(home: Path, **options: Any) -> tuple[list[str], dict[str, str]]:
        with pytest.raises(Found) as found:
            run(home, [], founder=True, **{"overrides": {}, **options})
        argv, env = found.value.args
        return argv, env

    monkeypatch.setattr("peers.child.subprocess.Popen", popen)
    monkeypatch.setattr("peers.supervisor.logs.configure", lambda *_: None)
    return start


@pytest.mark.parametrize(
    ("before", "kept", "after"),
    [("", True, None), ("", False, "HOME/compiled"), ("/fast", True, "/fast"), ("/fast", False, "HOME/compiled")],
)
def test_daemon_keeps_what_it_compiles_in_its_home_if_there_is_no_other_place(
    started: Callable[..., tuple[list[str], dict[str, str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    kept: bool,
    after: str | None,
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    if before:
        monkeypatch.setenv("NUMBA_CACHE_DIR", before)
    monkeypatch.setattr(os, "access", lambda path, mode: kept)
    _, inherited = started(tmp_path)
    assert inherited.get("NUMBA_CACHE_DIR") == (after and after.replace("HOME", str(tmp_path)))


@pytest.mark.parametrize(
    "name",
    ["PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir", "NUMBA_DISABLE_JIT", "PYTHONINSPECT", "PYTHONOPTIMIZE"],
)
def test_variable_that_changes_a_library__reaches_training_and_not_the_daemon(
    started: Callable[..., tuple[list[str], dict[str, str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    _, daemon = started(tmp_path)
    assert name not in daemon and daemon["NUMBA_CPU_NAME"] == "generic"
    assert environment.of_training(os.environ, tmp_path)[name] == "1"


def test_daemon_command_line_carries_home_format_and_overrides__and_finds_no_module_in_the_users_folder(
    started: Callable[..., tuple[list[str], dict[str, str]]], tmp_path: Path
) -> None:
    argv, _ = started(tmp_path, overrides={"exchange.every": "7"}, log_format="auto", verbose=True)
    assert [argv] == [
        [
            sys.executable,
            "-P",
            "-m",
            "peers.daemon",
            "--home",
            str(tmp_path),
            "--log-format",
            "text",
            "--verbose",
            "--set",
            "exchange.every=7",
        ]
    ]


def test_command_that_does_not_exist_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"GD-316 .*\n.*no-such-trainer"):
        run(tmp_path, ["no-such-trainer"], founder=False, overrides={})
