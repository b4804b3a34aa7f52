"""Fixtures of the tests of the commands."""

import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import peers.cli
from peers import control
from tests.peers.commands.running import Outcome, Run


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with an empty home directory, and no GOSSIPDP_ variable."""
    for variable in os.environ:
        if variable.startswith("GOSSIPDP_"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def gossipdp(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str | Path) -> Outcome:
        code = peers.cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code=code, out=captured.out, err=captured.err)

    return run


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The calls of the supervisor. Nothing is started."""
    calls: list[dict[str, Any]] = []

    def run(home: Path, command: list[str], **rest: Any) -> int:
        calls.append({"home": home, "command": list(command), **rest})
        return 0

    supervisor = types.ModuleType("peers.supervisor")
    supervisor.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "peers.supervisor", supervisor)
    return calls


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Callable[[Path, dict[str, Any]], None]]:
    """`answering(home, answers)`: a daemon of `home` that answers each verb from `answers`, and leaves if asked to."""
    running: list[threading.Thread] = []
    done = threading.Event()

    def start(where: Path, answers: dict[str, Any]) -> None:
        server = control.ControlServer(where)

        def loop() -> None:
            import select

            poller = select.poll()
            poller.register(server.filenos()[0], select.POLLIN)
            left = False
            while not (left or done.is_set()):
                if poller.poll(20):
                    for request in server.handle():
                        request.reply(answers[request.verb])
                        left |= request.verb == "leave"
            server.close()

        thread = threading.Thread(target=loop)
        thread.start()
        running.append(thread)

    yield start
    done.set()
    for thread in running:
        thread.join()


@pytest.fixture
def founder(gossipdp: Run, started: list[Any], tmp_path: Path) -> Path:
    """A home that founded a network with its own settings, and its invite."""
    text = """
        [network]
        name = "tiny"
        advertise = "10.0.0.1:4710"
        [exchange]
        every = 7
        bandwidth = "5mbit"
        [outer]
        lr = 0.5
    """
    (tmp_path / "run.toml").write_text(text)
    assert gossipdp("up", "run.toml", "--home", tmp_path / "founder", "--preset", "local").code == 0
    started.clear()
    return tmp_path / "founder"
