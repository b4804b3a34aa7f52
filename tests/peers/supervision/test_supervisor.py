"""The supervisor with real processes in place of the daemon and the training command.

Children write lines to a pipe that the test reads. The end of the pipe proves that all are gone."""

import math
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from gossipdp.runtime.unix_sockets import socket_path
from peers.child import Backoff, Child, Policy
from peers.daemon_questions import AttachWatch
from peers.processes import Guard
from peers.supervisor import ATTACH_WITHIN, FINAL, Supervisor
from simulations.processes.progress import until
from tests.peers.supervision.supervised import DAEMON, LAUNCHER, STUBBORN, TRAINING, WAIT, Running

pytestmark = pytest.mark.processes


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
    *_, error, seen, line, do, more = running.log().splitlines()
    assert error.endswith("GD-316 the training command fails at each start, and is not started again")
    assert seen.startswith("  seen: it exited with 2, 3 times in a row") and "can't open file" in line
    assert do.startswith("  do: ") and more.startswith("  more: ")


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
    assert "GD-316" in running.log() and "Exec format error" in running.log().splitlines()[-3]


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
    assert ("supervisor: GD-503 the training command has not attached" in running.log()) == told


FINISHES = """
import socket
def answer():
    control = socket.socket(socket.AF_UNIX)
    if os.path.exists(os.environ['CONTROL']): os.unlink(os.environ['CONTROL'])
    control.bind(os.environ['CONTROL'])
    control.listen()
    listen()
    verb, count = b'', 0
    while b'finish' not in verb:
        asker, _ = control.accept()
        verb = asker.recv(4096)
        count += 1
        asker.sendall(b'{"reply": {"incarnation": 1, "attaches": %d}}\\n' % count)
        asker.close()
    say('daemon finishes'); sys.exit(0)
"""


def test_training_ends_well__the_daemon_finishes_the_run_by_itself(supervise: type[Running]) -> None:
    daemon = FINISHES + DAEMON.replace("listen()", "") + "answer()"
    running = supervise(daemon, "say('trained')")
    running.number("daemon")
    assert running.rest() == ["trained", "daemon finishes"]
    assert running.code() == 0
    assert "this peer averages the final model with the others" in running.log()


def test_daemon_that_finishes_ends_training_for_good_and_then_itself(supervise: type[Running]) -> None:
    daemon = DAEMON + "on('SIGUSR2', lambda: sys.exit(0))" + WAIT
    running = supervise(daemon, TRAINING + WAIT)
    started = running.numbers("daemon", "training")
    os.kill(running.process.pid, signal.SIGUSR1)
    assert running.line() == "training ends"
    os.kill(started["daemon"], signal.SIGUSR2)
    assert running.rest() == [], "training is not started again"
    assert running.code() == 0 and ", because the run finishes" in running.log()
    assert "stopping: the peer has left the network" in running.log()


def test_another_process_stays_attached__given_up_with_its_number(supervise: type[Running]) -> None:
    answer = FINISHES.replace("""b'{"reply": {"incarnation": 1, "attaches": %d}}\\n' % count""", "OCCUPIED")
    answer = answer.replace("b'finish' not in verb", "True")
    answer += """OCCUPIED = b'{"reply": {"incarnation": 1, "attaches": 1, "trainer": 4242}}\\n'\n"""
    running = supervise(answer + DAEMON.replace("listen()", "") + "answer()", "say('starts'); sys.exit(1)")
    running.number("daemon")
    assert running.rest() == ["starts"] * 5 + ["daemon leaves"] and running.code() == 1
    assert "GD-503 another training process is attached to this peer" in running.log()
    assert "process 4242 is attached; the training command exited with 1, 5 times in a row" in running.log()


TELLS = FINISHES.replace("%d}}", '%d, "reasons": %d, "reason": REASON}}').replace("% count", "% (count, count)")
"""A daemon to which each start of the training command tells `REASON`."""


def test_training_told_the_daemon_that_gossipdp_refused_it__given_up_whatever_its_exit_code(
    supervise: type[Running],
) -> None:
    reason = '{"code": "GD-403", "text": "only NaN", "exit": 8, "alone": false}'
    answer = TELLS.replace("REASON", reason).replace("b'finish' not in verb", "True")
    running = supervise(answer + DAEMON.replace("listen()", "") + "answer()", "say('starts'); sys.exit(1)")
    running.number("daemon")
    assert running.rest() == ["starts", "daemon leaves"] and running.code() == 1
    assert "seen: it exited with 1, because of GD-403" in running.log()


def test_training_that_went_on_alone_to_its_end__not_finished_and_the_code_says_why(supervise: type[Running]) -> None:
    reason = '{"code": "GD-320", "text": "the ranks differ", "exit": 6, "alone": true}'
    answer = TELLS.replace("REASON", reason).replace("b'finish' not in verb", "True")
    running = supervise(answer + DAEMON.replace("listen()", "") + "answer()", "say('trained')")
    running.number("daemon")
    assert running.rest() == ["trained", "daemon leaves"] and running.code() == 6
    assert "GD-320 training went on alone until its end" in running.log() and "the ranks differ" in running.log()


def test_exit_code_of_the_scripts_own_that_gossipdp_has_too__started_again(supervise: type[Running]) -> None:
    training = "attempt = int(os.environ['GOSSIPDP_ATTEMPT']); say('starts'); sys.exit((8, 3, 6, 0)[attempt])"
    running = supervise(DAEMON + WAIT, training)
    running.number("daemon")
    assert running.rest() == ["starts"] * 4 + ["daemon leaves"] and running.code() == 0


def test_daemon_that_crashes_while_it_finishes_is_told_again(supervise: type[Running]) -> None:
    crash = FINISHES.replace("sys.exit(0)", "sys.exit(0 if os.environ['GOSSIPDP_ATTEMPT'] == '1' else 70)")
    running = supervise(crash + DAEMON.replace("listen()", "") + "answer()", "say('trained')")
    running.number("daemon")
    assert [running.line(), running.line()] == ["trained", "daemon finishes"]
    running.number("daemon")
    assert running.rest() == ["daemon finishes"] and running.code() == 0


class Attached(AttachWatch):
    """The answers of a daemon, in turn."""

    def __init__(self, *answers: bool | None, size: int = 0) -> None:
        self.answers, self.other, self.size = list(answers), 0, size

    def parameters(self) -> int:
        return self.size

    def begin(self, *, again: bool = False) -> None:
        pass

    def seen(self) -> bool | None:
        return self.answers.pop(0)


class Runs(Child):
    """A child that runs from its start on."""

    given = math.nan
    """seconds that it got to end"""

    def start(self, now: float) -> None:
        self.running_now = True

    def stop(self, now: float, grace: float) -> None:
        self.given = grace

    def reap(self, now: float, grace: float) -> int | None:
        return None

    @property
    def quiet(self) -> bool:
        return not getattr(self, "running_now", False)


def test_training_runs_for_long_without_attaching__told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy, guard = Policy(), cast(Guard, None)
    daemon, training = (Runs(name, [], {}, guard, Backoff(policy), "") for name in ("daemon", "training"))
    attached = Attached(None, False)
    supervisor = Supervisor(daemon, training, tmp_path / "none", policy, attached, lambda: True)
    monkeypatch.setattr(supervisor, "_daemon_listens", lambda: True)
    told = []
    for now in (0.0, ATTACH_WITHIN - 1, ATTACH_WITHIN, 2 * ATTACH_WITHIN - 1, 2 * ATTACH_WITHIN, 100 * ATTACH_WITHIN):
        supervisor._reap(now)
        supervisor._start(now)
        told.append(caplog.text.count("GD-503 "))
    assert told == [0, 0, 0, 0, 1, 1] and attached.answers == []


@pytest.mark.parametrize(("size", "seconds"), [(0, 11.5), (1_000_000_000, 31.5)])
def test_training_of_a_large_model_has_longer_to_hand_over_its_last_steps(
    tmp_path: Path, size: int, seconds: float
) -> None:
    policy, guard = Policy(), cast(Guard, None)
    daemon, training = (Runs(name, [], {}, guard, Backoff(policy), "") for name in ("daemon", "training"))
    supervisor = Supervisor(daemon, training, tmp_path / "none", policy, Attached(size=size), lambda: True)
    supervisor._stop(0, "SIGTERM")
    assert (training.given, daemon.given) == (seconds, 11.5)


def test_what_the_supervisor_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, guard = Policy(), cast(Guard, None)
    daemon, training = (Runs(name, [], {}, guard, Backoff(policy), "") for name in ("daemon", "training"))
    supervisor = Supervisor(daemon, training, tmp_path / "none", policy, Attached(), lambda: True)
    assert supervisor._waits_for() == ""
    daemon.start(0.0)
    daemon.process = cast(Any, object())
    assert supervisor._waits_for() == "the daemon to listen"
    monkeypatch.setattr(supervisor, "_daemon_listens", lambda: True)
    training.start(0.0)
    assert supervisor._waits_for() == ""
    daemon.process = None
    supervisor._stop(0, "SIGTERM")
    assert supervisor._waits_for() == "the daemon and the training to end"


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
    until("it has been seen to listen", lambda: "listens" in running.log())
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


def test_daemon_without_memory_for_the_networks_model_ends_the_run(supervise: type[Running]) -> None:
    running = supervise("on('SIGUSR1', lambda: sys.exit(7))\n" + DAEMON + WAIT, TRAINING + WAIT)
    daemon = running.number("daemon")
    running.number("training")
    until("it has been seen to listen", lambda: "listens" in running.log())
    os.kill(daemon, signal.SIGUSR1)
    assert running.rest() == ["training ends"]
    assert running.code() == 7


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
on('SIGUSR1', lambda: sys.exit(70))
"""
    running = supervise(daemon + DAEMON + WAIT, training)
    first = running.number("daemon")
    trainer = running.number("training") if training is not None else 0
    until("it has been seen to listen", lambda: "listens" in running.log())
    os.kill(first, signal.SIGUSR1)
    assert [running.line() for _ in range(6)] == [f"code {code}" for code in (2, 3, 5, 6, 7, 8)]
    assert running.number("daemon") != first
    os.kill(trainer or running.process.pid, signal.SIGUSR1 if trainer else signal.SIGTERM)
    assert running.rest() == (["trained"] if trainer else []) + ["daemon leaves"]
    assert running.code() == 0
    assert [f"exited with {code}; again" in running.log() for code in (2, 3, 5, 6, 7, 8)] == [True] * 6
