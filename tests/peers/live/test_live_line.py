"""The live line on a real terminal: the process that draws it, and the supervisor around it."""

import os
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from gossipdp.runtime.unix_sockets import socket_path
from peers.live import process as live
from peers.live.figures import WINDOW, Traffic, figures, fitting
from peers.live.process import text
from tests.peers.commands.conftest import answering
from tests.peers.live.emulator import Screen
from tests.peers.supervision.supervised import DAEMON, DRIVER, PRELUDE, PYTHON, TRAINING, WAIT

__all__ = ["answering"]

LEAD = "import fcntl, os, sys, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
"""makes the terminal at standard error the one that controls this session"""
SHELL = "import subprocess, sys; subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL); sys.stdin.read()"
"""lives on after its command: the end of a session's leader hangs up the terminal"""


class Terminal:
    """A terminal of 80 columns and 24 rows, and what it shows."""

    def __init__(self) -> None:
        self.screen = Screen(80, 24)
        self.said = ""
        self._ours, self.theirs = os.openpty()
        termios.tcsetwinsize(self.theirs, (24, 80))

    def start(self, argv: Sequence[str], *, leads: bool = True, **options: Any) -> subprocess.Popen[bytes]:
        words = [*PYTHON, LEAD, *argv] if leads else argv
        environment = {**os.environ, "TERM": "xterm", **options.pop("variables", {})}
        environment.pop("NO_COLOR", None)
        made = subprocess.Popen(
            words, stdout=self.theirs, stderr=self.theirs, env=environment, start_new_session=True, **options
        )
        os.close(self.theirs)
        return made

    def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            assert self.read(), self.screen.lines

    def read(self) -> bool:
        """Show what was written. False once no process has the terminal."""
        try:
            piece = os.read(self._ours, 1 << 16).decode()
        except OSError:
            return False
        self.said += piece
        self.screen.feed(piece)
        return True

    def close(self) -> None:
        os.close(self._ours)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


def drawing(home: Path) -> list[str]:
    return [sys.executable, "-m", "peers.live.process", str(home)]


def test_process_draws_until_its_input_is_closed(
    terminal: Terminal, tmp_path: Path, answering: Callable[[Path, dict[str, Any]], None]
) -> None:
    answering(tmp_path, {"status": STATUS})
    process = terminal.start(drawing(tmp_path), stdin=subprocess.PIPE)
    terminal.until(lambda: terminal.screen.lines[-1].startswith("healthy"))
    told = terminal.screen.lines[-1]
    assert WHOLE.startswith(told) and len(told) < 80 and terminal.screen.last == 22
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTSTP)
    assert process.stdin is not None
    process.stdin.close()
    while terminal.read():
        pass
    assert process.wait() == 0
    assert set(terminal.screen.lines) == {""} and terminal.screen.last == 23


class Asked(dict[str, Any]):
    """Answers of a daemon that has been asked twice once `twice` is set."""

    def __init__(self) -> None:
        super().__init__(status=STATUS)
        self.twice, self._times = threading.Event(), 0

    def __getitem__(self, verb: str) -> Any:
        self._times += 1
        if self._times == 2:
            self.twice.set()
        return super().__getitem__(verb)


def test_job_that_is_not_in_front_draws_nothing(
    terminal: Terminal, tmp_path: Path, answering: Callable[[Path, dict[str, Any]], None]
) -> None:
    """A terminal that does not control the process cannot tell that it is in front."""
    answers = Asked()
    answering(tmp_path, answers)
    process = terminal.start(drawing(tmp_path), leads=False, stdin=subprocess.PIPE)
    answers.twice.wait()
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait() == 0 and not terminal.read() and terminal.said == ""


def supervising(home: Path, training: str) -> tuple[list[str], dict[str, str]]:
    driver = DRIVER.replace("policy=policy", "policy=policy, live=True")
    argv = [sys.executable, "-c", driver, str(home), "5", PRELUDE + DAEMON + WAIT, *PYTHON, PRELUDE + training]
    return argv, {"LISTEN": str(socket_path(home)), "PRELUDE": PRELUDE}


def test_output_of_the_training_command_is_whole_beside_the_line(terminal: Terminal, tmp_path: Path) -> None:
    steps = "for step in range(30): say('step', step)\nos.write(1, b'an unfinished line')"
    argv, variables = supervising(tmp_path, f"{TRAINING}{steps}{WAIT}")
    process = terminal.start(argv, variables=variables)
    bottom = "no answer from the daemon"
    terminal.until(lambda: terminal.screen.lines[-1] == bottom and "unfinished" in terminal.said)
    process.send_signal(signal.SIGTERM)
    while terminal.read():
        pass
    assert process.wait() == 0
    lines = [*terminal.screen.gone, *terminal.screen.lines]
    first = lines.index("step 0")
    assert lines[first : first + 30] == [f"step {step}" for step in range(30)]
    assert any(line.startswith("an unfinished line") for line in lines) and "training ends" in terminal.said
    assert bottom not in lines and terminal.screen.last == 23


def test_killed_supervisor__the_row_is_given_back(terminal: Terminal, tmp_path: Path) -> None:
    argv, variables = supervising(tmp_path, TRAINING + WAIT)
    shell = terminal.start([*PYTHON, SHELL, *argv], variables=variables, stdin=subprocess.PIPE)
    terminal.until(lambda: terminal.screen.lines[-1] == "no answer from the daemon")
    (supervisor,) = psutil.Process(shell.pid).children()
    supervisor.kill()
    terminal.until(lambda: terminal.screen.last == 23)
    assert "no answer from the daemon" not in terminal.screen.lines
    assert shell.stdin is not None
    shell.stdin.close()
    while terminal.read():
        pass
    shell.wait()


@pytest.mark.parametrize(
    ("terminals", "kind", "suits"),
    [
        ((1, 2), "xterm", True),
        ((1,), "xterm", False),
        ((2,), "xterm", False),
        ((1, 2), "dumb", False),
        ((1, 2), "", False),
    ],
)
def test_only_a_terminal_with_a_cursor_at_both_outputs_suits(
    monkeypatch: pytest.MonkeyPatch, terminals: tuple[int, ...], kind: str, suits: bool
) -> None:
    monkeypatch.setattr(os, "isatty", lambda descriptor: descriptor in terminals)
    monkeypatch.setenv("TERM", kind)
    assert live.suits() is suits


def test_output_to_pipes__no_escape_sequence(tmp_path: Path) -> None:
    argv, variables = supervising(tmp_path, "say('trains')\nsys.exit(0)")
    environment = {**os.environ, **variables, "TERM": "xterm"}
    ran = subprocess.run(argv, env=environment, capture_output=True, check=False)
    assert b"trains" in ran.stdout and b"\x1b" not in ran.stdout + ran.stderr


STATUS: dict[str, Any] = {
    "verdict": {"state": "healthy", "text": "healthy: 3 of 3 peers"}, "members": {"alive": 3}, "round": 412,
    "samples_per_second": 800.0, "steps": 1000, "samples": 32_000, "loss": 2.43104, "consensus_ratio": 1.62,
    "recent_exchanges": [{"ago": 4.2}, {"ago": 31.0}], "received_bytes": 1000, "sent_bytes": 500,
}  # fmt: skip
WHOLE = "healthy · 3 alive · round 412 · 25 steps/s · loss 2.431 · agreement 1.6 · exchange 4 s ago · 1.2MB/s"


def test_all_figures__and_only_those_that_are_known() -> None:
    assert text(STATUS, 1.2e6, 120, colours=False) == WHOLE
    new = {"verdict": {"state": "joining"}, "members": {"alive": 1}, "round": 0, "samples": 0, "steps": 0}
    assert text(new, None, 120, colours=False) == "joining · 1 alive · round 0"
    assert text({}, None, 120, colours=False) == "no answer from the daemon"
    assert figures({**STATUS, "samples_per_second": None}, None) == [
        "3 alive", "round 412", "loss 2.431", "agreement 1.6", "exchange 4 s ago",
    ]  # fmt: skip


@pytest.mark.parametrize("width", range(1, 110))
def test_line_is_never_wider_than_the_terminal_and_has_whole_figures(width: int) -> None:
    told = text(STATUS, 1.2e6, width, colours=False)
    assert len(told) <= width and WHOLE.startswith(told)
    assert width < len("healthy") or WHOLE[len(told) :].startswith(" · ") or told == WHOLE
    assert width != 79 or told.endswith("agreement 1.6")


def test_colours_are_of_the_verdict_alone() -> None:
    assert text(STATUS, 1.2e6, 120, colours=True) == WHOLE.replace("healthy", "\x1b[32m\x1b[1mhealthy\x1b[0m")


def test_parts_that_fit() -> None:
    assert (
        fitting([], ", ", 9) == "" and fitting(["abc"], ", ", 2) == "ab" and fitting(["a", "bc", "d"], ", ", 4) == "a"
    )


def test_traffic_of_the_last_minute__and_from_anew_after_a_restart_of_the_daemon() -> None:
    def status(total: int) -> dict[str, int]:
        return {"received_bytes": total, "sent_bytes": total}

    traffic = Traffic()
    assert traffic.look(status(1000), 10.0) is None
    assert traffic.look(status(2000), 12.0) == 1000.0
    for second in range(1, 301):
        rate = traffic.look(status(2000 + 50 * second), 12.0 + second)
    assert rate == pytest.approx(100.0)
    assert traffic.look(status(2000 + 50 * 300), 12.0 + 300 + WINDOW) == 0.0
    assert traffic.look(status(10), 500.0) is None
    assert traffic.look({}, 501.0) is None
