"""What the supervisor hands to its children, and which processes it leaves alone."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from gossipdp.errors import ConfigError
from peers import environment
from peers.supervisor import run
from simulations.processes.progress import until
from tests.peers.supervision.supervised import DAEMON, LAUNCHER, TRAINING, WAIT, Running

pytestmark = pytest.mark.processes


def test_orphan_of_the_training_command_leaves_no_zombie(supervise: type[Running]) -> None:
    orphan = "on('SIGUSR1', lambda: (say('orphan ends'), sys.exit(0))); say('orphan', os.getpid())\n" + WAIT
    training = LAUNCHER + f"if os.fork() == 0: launch({orphan!r}); os._exit(0)\nos.wait()\n" + TRAINING + WAIT
    running = supervise(DAEMON + WAIT, training)
    running.number("daemon")
    orphan = running.numbers("training", "orphan")["orphan"]
    until("it is adopted", lambda: psutil.Process(orphan).ppid() == running.process.pid)
    os.kill(orphan, signal.SIGUSR1)
    assert running.line() == "orphan ends"
    until("it is buried", lambda: not psutil.pid_exists(orphan))


def test_process_that_the_supervisor_did_not_start_is_left_alone(supervise: type[Running]) -> None:
    """A container's entry point may start a process, and then become the supervisor."""
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
    """The process that `run` would have started."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[str], dict[str, str]]]:
    """Command line and environment of the daemon that `run` would start."""

    def popen(argv: list[str], *, env: dict[str, str], **_: object) -> None:
        raise Found(argv, env)

    def start(home: Path, **options: Any) -> tuple[list[str], dict[str, str]]:
        with pytest.raises(Found) as found:
            run(home, [], **{"overrides": {}, **options})
        argv, env = found.value.args
        return argv, env

    monkeypatch.setattr("peers.child.subprocess.Popen", popen)
    monkeypatch.setattr("peers.supervisor.logs.configure", lambda *_, **__: None)
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
            *(sys.executable, "-P", "-m", "gossipdp.launch"),
            "peers.daemon",
            "--home",
            str(tmp_path),
            "--log-format",
            "text",
            "--verbose",
            "--set",
            "exchange.every=7",
            "--supervisor",
            str(os.getpid()),
        ]
    ]


def test_command_that_does_not_exist_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"GD-316 .*\n.*no-such-trainer"):
        run(tmp_path, ["no-such-trainer"], overrides={})


def test_port_map_that_a_session_over_ssh_lacks_comes_from_the_first_process(tmp_path: Path) -> None:
    first = tmp_path / "environ"
    first.write_bytes(b"PUBLIC_IPADDR=8.8.4.4\0VAST_TCP_PORT_4710=33526\0SECRET=x\0RUNPOD_POD_ID=of first\0")
    inherited = {"PATH": "/bin", "RUNPOD_POD_ID": "inherited"}
    assert environment.of_container(inherited, first) == {
        "PATH": "/bin",
        "PUBLIC_IPADDR": "8.8.4.4",
        "VAST_TCP_PORT_4710": "33526",
        "RUNPOD_POD_ID": "inherited",
    }
    assert environment.of_container(inherited, tmp_path / "none") == inherited
    assert environment.of_daemon({"VAST_TCP_PORT_4710": "33526"}, tmp_path)["VAST_TCP_PORT_4710"] == "33526"
