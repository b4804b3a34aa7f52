"""Signals, hang-ups and kills: what the supervisor ends, and when."""

import os
import signal
from collections.abc import Sequence

import psutil
import pytest

from simulations.processes.progress import until
from tests.peers.supervision.supervised import (
    DAEMON,
    LAUNCHER,
    LEAVE,
    PRELUDE,
    PYTHON,
    SAVING,
    STUBBORN,
    TRAINING,
    WAIT,
    Running,
)

pytestmark = pytest.mark.processes


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
    until("the hang-up is told", lambda: "terminal has hung up" in running.log())
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
    until("training is killed", lambda: not training.is_running())
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
