"""The command line as people and scripts meet it: exit codes, texts, secrets, homes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import peers.cli
from gossipdp import config as configuration
from gossipdp.config_loading import load
from gossipdp.errors import ConfigError
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.wire.messages import PROTOCOL_VERSION
from gossipdp.runtime.network.identity import Identity, NetworkSecret
from gossipdp.runtime.storage.store import CheckpointMeta, Store
from peers import control, home, tables

ROOT = Path(peers.cli.__file__).parents[1]


class Outcome(types.SimpleNamespace):
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of an empty home directory, with nothing of gossipdp in the environment."""
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
    """What the supervisor was asked to start; nothing is started."""
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
    """Give a home a daemon that answers each verb with what is given."""
    running: list[tuple[threading.Thread, control.ControlServer]] = []
    done = threading.Event()

    def start(where: Path, answers: dict[str, Any]) -> None:
        server = control.ControlServer(where)

        def loop() -> None:
            import select

            poller = select.poll()
            poller.register(server.filenos()[0], select.POLLIN)
            while not done.is_set():
                if poller.poll(20):
                    for request in server.handle():
                        request.reply(answers[request.verb])

        thread = threading.Thread(target=loop)
        thread.start()
        running.append((thread, server))

    yield start
    done.set()
    for thread, server in running:
        thread.join(10)
        server.close()


# -- speed and help ----------------------------------------------------------------------------------------------

HEAVY = {"numpy", "numba", "zmq", "torch", "rich", "nacl", "safetensors", "msgspec", "prometheus_client", "asyncio"}


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, peers.cli\n"
        "assert peers.cli.main(['--help']) == 0 and peers.cli.main(['up', '--help']) == 0\n"
        "print('modules', *{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    assert "click" in modules and not modules & HEAVY


def test_questions_to_the_daemon_import_no_torch_numpy_or_zmq() -> None:
    code = (
        "import sys, peers.cli\n"
        "assert peers.cli.main(['--home', '/nonexistent', 'status']) == 4\n"
        "print('modules', *{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert not set(done.stdout.split()) & {"numpy", "numba", "zmq", "torch", "rich", "safetensors"}


def test_every_command_has_help(gossipdp: Run) -> None:
    def walk(command: Any, path: tuple[str, ...]) -> None:
        if path != ("demo",):  # its options are its own
            done = gossipdp(*path, "--help")
            assert done.code == 0 and "Usage: gossipdp" in done.out, path
        for name, each in getattr(command, "commands", {}).items():
            walk(each, (*path, name))

    walk(peers.cli.cli, ())
    assert set(peers.cli.cli.commands) == {
        "up", "join", "invite", "members", "status", "leave", "keys", "config", "checkpoint", "demo", "simulate",
        "version",
    }  # fmt: skip


# -- exit codes --------------------------------------------------------------------------------------------------


def test_usage_is_two(gossipdp: Run) -> None:
    assert gossipdp("nonsense").code == 2
    assert gossipdp("up", "--").code == 2
    assert gossipdp("up", "a.toml", "b.toml").code == 2
    assert gossipdp("members", "--expect", "0").code == 2


def test_a_missing_configuration_is_three(gossipdp: Run) -> None:
    done = gossipdp("config", "check", "nowhere.toml")
    assert (done.code, done.err) == (
        3,
        "GD-313 nowhere.toml cannot be read\n  seen: No such file or directory\n  do:   name a TOML file\n",
    )


def test_a_wrong_configuration_is_three_and_names_the_line(gossipdp: Run, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[outer]\nmomentun = 0.8\n")
    done = gossipdp("config", "check", "run.toml")
    assert (done.code, done.err) == (
        3,
        "GD-312 run.toml:2: unknown key outer.momentun\n  do:   did you mean outer.momentum?\n",
    )


def test_no_daemon_is_four(gossipdp: Run, tmp_path: Path) -> None:
    for command in ("status", "members", "leave"):
        done = gossipdp(command, "--home", tmp_path)
        assert done.code == 4 and done.err.startswith("GD-105 no daemon runs for this home\n") and not done.out


def test_the_environments_fault_is_seven_without_a_traceback(gossipdp: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/x")

    monkeypatch.setattr(home, "find_home", refuse)
    done = gossipdp("status")
    assert (done.code, done.err.splitlines()[:2]) == (
        7, ["GD-505 this host refused", "  seen: [Errno 13] Permission denied: '/x'"]
    )  # fmt: skip
    assert done.err.splitlines()[2].startswith("  do:   let this user read and write there")


def test_a_bug_is_seventy_with_its_traceback(gossipdp: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "find_home", lambda *_, **__: 1 / 0)
    done = gossipdp("status")
    assert done.code == 70
    assert "ZeroDivisionError" in done.err and done.err.endswith("please report it with the lines above\n")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    code = "import sys, peers.cli; sys.exit(peers.cli.main(['config', 'show']))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, cwd=ROOT, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


# -- homes -------------------------------------------------------------------------------------------------------


def test_which_home_is_meant(tmp_path: Path) -> None:
    base = tmp_path / "user" / ".gossipdp"
    plain = {"HOME": str(tmp_path / "user")}
    assert home.find_home("x/y", "net", environment=plain) == tmp_path / "x" / "y"
    assert home.find_home(None, "net", environment=plain | {"GOSSIPDP_HOME": "/h"}) == Path("/h")
    assert home.find_home(None, "net", environment=plain) == base / "net"
    assert home.find_home(None, environment=plain | {"GOSSIPDP_NETWORK_NAME": "other"}) == base / "other"
    assert home.find_home(None, default="first", environment=plain) == base / "first"
    with pytest.raises(ConfigError, match="GD-314 there is no peer on this host"):
        home.find_home(None, environment=plain)
    for name in ("one", "two"):
        (base / name).mkdir(parents=True)
        (base / name / "network.json").write_text("{}")
        if name == "one":
            assert home.find_home(None, default="first", environment=plain) == base / "one"
    with pytest.raises(ConfigError) as caught:
        home.find_home(None, environment=plain)
    assert str(caught.value) == (
        "GD-314 there are several peers on this host\n  seen: one (does not run), two (does not run)\n"
        f"  do:   choose one: --home {base}/one"
    )


@pytest.mark.parametrize(
    ("running", "default", "meant", "named"),
    [
        ({"two"}, "", "two", ""),
        ({"two", "three"}, "", "", "three (runs), two (runs), one (does not run)"),
        ({"one"}, "gossipdp", "", "three (does not run), two (does not run), one (runs)"),
    ],
    ids=["one runs", "two run", "to be started"],
)
def test_several_homes__the_one_whose_daemon_runs_is_meant_or_named_first(
    tmp_path: Path, running: set[str], default: str, meant: str, named: str
) -> None:
    base = tmp_path / "user" / ".gossipdp"
    for name in ("one", "two", "three"):
        (base / name).mkdir(parents=True)
        (base / name / "network.json").write_text("{}")

    def find() -> Path:
        environment = {"HOME": str(tmp_path / "user")}
        return home.find_home(None, default=default, environment=environment, runs=lambda home: home.name in running)

    if meant:
        assert find() == base / meant
    else:
        with pytest.raises(ConfigError, match="GD-314") as caught:
            find()
        assert caught.value.seen == named and caught.value.do.endswith(f"--home {base}/{named.split()[0]}")


def test_home_of_a_dead_daemon__does_not_run_though_its_socket_is_there(tmp_path: Path) -> None:
    where = tmp_path / "home"
    server = control.ControlServer(where)
    assert control.runs(where)
    server._listener.close()  # as a killed daemon: the socket stays
    assert control.socket_path(where).exists() and not control.runs(where)
    server.close()


COMMANDS: list[list[str]] = [
    ["up", "--network", "tiny"], ["status"], ["members"], ["leave"], ["invite"], ["keys", "show"],
    ["keys", "rotate", "--yes"], ["checkpoint", "list"], ["checkpoint", "save"], ["checkpoint", "verify"],
    ["checkpoint", "export", "out"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_user_without_home_and_passwd_entry__code_cause_and_do(
    gossipdp: Run, started: list[Any], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    done = gossipdp(*command)
    assert done.code == 3 and done.err.startswith("GD-314 this user has no home directory\n") and not started
    assert "  seen: HOME is not set" in done.err and "  do:   name a directory for the peer: --home DIR" in done.err


def test_home_of_a_user_that_is_not_there__is_three(gossipdp: Run, started: list[Any]) -> None:
    for arguments in (["--home", "~no-such-user/x", "status"], ["join", "@~no-such-user/invite"]):
        done = gossipdp(*arguments)
        assert done.code == 3 and done.err.startswith("GD-314 ") and "~no-such-user" in done.err


@pytest.mark.parametrize("where", ["/proc/nowhere", "/proc"])
def test_home_that_cannot_be_made_or_written__is_seven_and_starts_nothing(
    gossipdp: Run, started: list[Any], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "/proc")
    done = gossipdp("--home", where, "up", "--network", "tiny")
    assert done.code == 7 and done.err.startswith("GD-505 the peer's home cannot be ") and not started
    assert "  do:   name a directory that this user can write" in done.err


def test_daemon_of_another_user__says_that_and_not_that_none_runs(
    gossipdp: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def connect(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("peers.control.socket.socket.connect", connect)
    done = gossipdp("--home", tmp_path, "status")
    assert done.code == 4 and done.err.startswith("GD-105 this user may not talk to the daemon of this home\n")


def test_up_makes_a_home_that_others_cannot_read(gossipdp: Run, started: list[Any], tmp_path: Path) -> None:
    done = gossipdp("up", "--network", "tiny", "--", "torchrun", "--nproc-per-node", "8", "train.py", "--", "-x")
    where = tmp_path / "user" / ".gossipdp" / "tiny"
    assert done.code == 0
    assert started == [
        {
            "home": where,
            "command": ["torchrun", "--nproc-per-node", "8", "train.py", "--", "-x"],
            "founder": True,
            "overrides": {"network.name": "tiny"},
            "log_format": "text",
            "verbose": False,
        }
    ]
    assert where.stat().st_mode & 0o777 == 0o700
    for name in ("identity.key", "network.secret", "network.json"):
        assert (where / name).stat().st_mode & 0o777 == 0o600
    assert home.network_of(where) == home.HomeNetwork(name="tiny", founder=True)


def test_up_again_keeps_keys_secret_and_configuration(gossipdp: Run, started: list[Any], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[network]\nname = "tiny"\n[exchange]\nevery = 7\n')
    assert gossipdp("up", "run.toml").code == 0
    where = started[0]["home"]
    before = {path.name: path.read_bytes() for path in where.iterdir() if path.is_file()}
    assert gossipdp("up").code == 0
    assert started[1]["home"] == where
    assert {path.name: path.read_bytes() for path in where.iterdir() if path.is_file()} == before
    assert home.read_config(where, environment={}).exchange.every == 7


def test_up_with_a_wrong_file_starts_and_makes_nothing(gossipdp: Run, started: list[Any], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[exchange]\nbits = 1\n")
    assert gossipdp("up", "run.toml").code == 3
    assert not started and not (tmp_path / "user").exists()


def test_flags_reach_the_daemon_as_overrides(gossipdp: Run, started: list[Any]) -> None:
    done = gossipdp(
        "up", "--preset", "local", "--seed", "a:1", "--seed", "b:2", "--set", "exchange.every=5", "--listen", "tcp://*:0",
        "--peer", "host1", "--advertise", "10.0.0.1:4710", "--log-format", "json",
    )  # fmt: skip
    assert done.code == 0
    assert started[0]["log_format"] == "json" and started[0]["overrides"] == {
        "preset": "local",
        "network.seeds": "a:1,b:2",
        "exchange.every": "5",
        "network.listen": "tcp://*:0",
        "network.peer": "host1",
        "network.advertise": "10.0.0.1:4710",
    }
    assert gossipdp("up", "--set", "exchange.every=often").code == 3
    assert gossipdp("up", "--set", "exchange.every").code == 2


def test_verbose_and_json_reach_the_daemon__and_what_is_said_is_json_too(gossipdp: Run, started: list[Any]) -> None:
    done = gossipdp("up", "--verbose", "--log-format", "json")
    assert started[0]["verbose"] is True
    (line,) = [json.loads(line) for line in done.err.splitlines()]
    assert line["level"] == "info" and "to let another host in" in line["message"]
    assert gossipdp("up").err.startswith("network gossipdp, home ") and started[1]["verbose"] is False


def test_a_home_of_one_network_is_not_used_for_another(gossipdp: Run, started: list[Any], tmp_path: Path) -> None:
    assert gossipdp("up", "--network", "one", "--home", tmp_path / "h").code == 0
    done = gossipdp("up", "--network", "two", "--home", tmp_path / "h")
    assert done.code == 3 and done.err.startswith("GD-315 this home belongs to another network\n  seen: ")
    assert len(started) == 1


# -- joining -----------------------------------------------------------------------------------------------------


@pytest.fixture
def founder(gossipdp: Run, started: list[Any], tmp_path: Path) -> Path:
    """A home that has founded a network with settings of its own, and written an invite."""
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


def test_join_brings_secret_seed_and_settings(gossipdp: Run, started: list[Any], founder: Path, tmp_path: Path) -> None:
    done = gossipdp("join", f"@{founder}/invite", "--home", tmp_path / "joiner", "--", "python", "train.py")
    assert done.code == 0, done.err
    joiner = tmp_path / "joiner"
    assert started[0] == {
        "home": joiner, "command": ["python", "train.py"], "founder": False, "overrides": {}, "log_format": "text",
        "verbose": False,
    }  # fmt: skip
    assert NetworkSecret.load(joiner) == NetworkSecret.load(founder)
    assert Identity.load(joiner).id != Identity.load(founder).id
    theirs = home.read_config(founder, {"preset": "local"}, {})
    ours = home.read_config(joiner, environment={})
    assert ours.network.name == "tiny" and ours.network.seeds == ("10.0.0.1:4710",)
    assert ours.preset == "local" and ours.exchange.every == 7 and ours.outer.lr == 0.5
    assert ours.exchange.bandwidth == float("inf"), "every host has its own line"
    assert configuration.settings_digest(ours) == configuration.settings_digest(theirs)


def test_a_home_that_joined_never_founds(gossipdp: Run, started: list[Any], founder: Path, tmp_path: Path) -> None:
    gossipdp("join", f"@{founder}/invite", "--home", tmp_path / "joiner")
    assert gossipdp("up", "--home", tmp_path / "joiner").code == 0
    assert [call["founder"] for call in started] == [False, False]


def test_an_invite_is_read_from_standard_input_or_the_environment(
    gossipdp: Run, started: list[Any], founder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (founder / "invite").read_text()
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert gossipdp("join", "-").code == 0
    assert [call["home"].name for call in started] == ["tiny"]


def test_an_invite_in_the_environment_does_not_outlive_its_reading(
    gossipdp: Run, founder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[tuple[list[str], dict[str, str]]] = []

    def execve(_path: str, arguments: list[str], environment: dict[str, str]) -> None:
        replaced.append((arguments, environment))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setenv("GOSSIPDP_INVITE", (founder / "invite").read_text())
    home = tmp_path / "joiner"
    with pytest.raises(SystemExit):
        gossipdp("join", "--home", home, "--verbose", "--set", "exchange.every=9", "--", "python", "train.py")
    arguments, environment = replaced[0]
    assert "GOSSIPDP_INVITE" not in environment
    assert arguments[:7] == [sys.executable, "-P", "-m", "peers.cli", "up", "--home", str(home)]
    assert arguments[-6:] == ["--verbose", "--set", "exchange.every=9", "--", "python", "train.py"]


def test_a_secret_in_argv_is_refused_with_the_three_ways(gossipdp: Run, started: list[Any], founder: Path) -> None:
    token = (founder / "invite").read_text().strip()
    done = gossipdp("join", token)
    assert done.code == 2 and not started
    assert "an invite holds a secret" in done.err and "@FILE" in done.err and "GOSSIPDP_INVITE" in done.err
    assert token not in done.err


@pytest.mark.parametrize(
    "change", [lambda t: t[:-9], lambda t: t.replace("gdp1_", "gdp1_A"), lambda t: "", lambda t: t + "!"]
)
def test_a_damaged_invite_is_three_and_never_repeated(
    gossipdp: Run, started: list[Any], founder: Path, tmp_path: Path, change: Callable[[str], str]
) -> None:
    text = change((founder / "invite").read_text().strip())
    (tmp_path / "damaged").write_text(text)
    done = gossipdp("join", "@damaged", "--home", tmp_path / "j")
    assert done.code == 3 and not started
    assert re.match(r"GD-(206|31\d) ", done.err)
    assert not text or text[5:40] not in done.err


def test_an_invite_file_that_cannot_be_read_says_what_to_do(gossipdp: Run, started: list[Any], tmp_path: Path) -> None:
    done = gossipdp("join", f"@{tmp_path}/nowhere")
    assert done.code == 3 and not started
    assert done.err.startswith("GD-206 the invite cannot be read\n  seen: ") and "\n  do:   name the file" in done.err


def test_an_invite_file_open_to_other_users__is_refused_as_a_key_would_be(
    gossipdp: Run, started: list[Any], founder: Path, tmp_path: Path
) -> None:
    assert gossipdp("invite", "--home", founder).code == 0
    (founder / "invite").chmod(0o644)
    done = gossipdp("--home", tmp_path / "joiner", "join", f"@{founder}/invite")
    assert (
        done.code == 3
        and done.err.startswith("GD-206 other users can read the invite, which is a secret\n")
        and not started
    )
    assert f"has mode 644\n  do:   chmod 600 {founder}/invite" in done.err
    (founder / "invite").chmod(0o600)
    assert gossipdp("--home", tmp_path / "joiner", "join", f"@{founder}/invite").code == 0 and started


def test_an_invite_cannot_set_what_a_host_decides(founder: Path) -> None:
    import base64

    token = (founder / "invite").read_text().partition(".")[0]
    hostile = base64.urlsafe_b64encode(b'[checkpoint]\ndir = "/"\n').decode().rstrip("=")
    with pytest.raises(ConfigError, match="its settings are damaged"):
        home.read_invite(f"{token}.{hostile}")
    assert home.read_invite(token).settings == "", "an invite without settings is whole"


def test_nothing_secret_is_printed_unless_asked_for(gossipdp: Run, founder: Path) -> None:
    done = gossipdp("invite", "--home", founder)
    token = (founder / "invite").read_text().strip()
    assert done.code == 0 and token not in done.out + done.err
    assert "gossipdp join @invite -- CMD" in done.out and "10.0.0.1:4710" in done.out
    assert (founder / "invite").stat().st_mode & 0o777 == 0o600
    assert token in gossipdp("invite", "--home", founder, "--show").out


def test_an_invite_without_daemon_or_address_is_four(gossipdp: Run, started: list[Any], tmp_path: Path) -> None:
    gossipdp("up", "--home", tmp_path / "h")
    assert gossipdp("invite", "--home", tmp_path / "h").code == 4


def test_keys_are_shown_without_the_secret_and_rotated(gossipdp: Run, founder: Path) -> None:
    shown = json.loads(gossipdp("keys", "show", "--json", "--home", founder).out)
    assert shown["id"] == Identity.load(founder).id.hex()
    old = NetworkSecret.load(founder)
    assert shown["fingerprint"] == old.fingerprint
    done = gossipdp("keys", "rotate", "--yes", "--home", founder)
    assert done.code == 0 and "GD-201" in done.out
    new = NetworkSecret.load(founder)
    assert new != old and Identity.load(founder).id.hex() == shown["id"]
    assert new.reveal().hex() not in done.out
    assert not (founder / "invite").exists(), "the old invite lets nobody in any more"


def test_joining_again_after_a_rotation_takes_the_new_secret(
    gossipdp: Run, started: list[Any], founder: Path, tmp_path: Path
) -> None:
    gossipdp("join", f"@{founder}/invite", "--home", tmp_path / "j")
    gossipdp("keys", "rotate", "--yes", "--home", founder)
    gossipdp("invite", "--home", founder)
    assert gossipdp("join", f"@{founder}/invite", "--home", tmp_path / "j").code == 0
    assert NetworkSecret.load(tmp_path / "j") == NetworkSecret.load(founder)


# -- reading -----------------------------------------------------------------------------------------------------

ROWS = [
    {
        "name": "host1", "id": "ab" * 32, "state": "alive", "address": "10.0.0.1:4710", "path": "direct", "rtt": 0.0123,
        "round": 41, "samples_per_second": 1234.5, "lag": 0, "sent": 1_500_000, "received": 2_000, "last_exchange": 3.2,
        "strikes": 0, "version": "0.1.0",
    },
    {"name": "host2\x1b[31m[red]", "id": "cd" * 32, "state": "failed", "rtt": None},
]  # fmt: skip


def test_members_as_text_and_json(gossipdp: Run, answering: Any, tmp_path: Path) -> None:
    answering(tmp_path, {"members": {"members": ROWS}})
    lines = gossipdp("members", "--home", tmp_path).out.splitlines()
    assert lines[0].split() == [column.title for column in tables.MEMBER_COLUMNS]
    assert lines[1].split() == (
        [
            "host1",
            "abababab",
            "alive",
            "10.0.0.1:4710",
            "direct",
            "12.3ms",
            "41",
            "1.23k",
            "0",
            "2k",
            "1.5M",
            "3s",
            "0",
            "0.1.0",
        ]
    )
    assert lines[2].split() == ["host2?[31m[red]", "cdcdcdcd", "failed", *["-"] * 11]
    assert json.loads(gossipdp("members", "--json", "--home", tmp_path).out) == ROWS


def test_members_expect_counts_the_living(gossipdp: Run, answering: Any, tmp_path: Path) -> None:
    answering(tmp_path, {"members": {"members": ROWS}})
    assert gossipdp("members", "--expect", "1", "--home", tmp_path).code == 0
    done = gossipdp("members", "--expect", "2", "--home", tmp_path)
    assert done.code == 4 and done.out
    assert done.err.startswith("GD-107 fewer members than expected\n  seen: 1 alive of 2\n  do:   ")


def test_status_copes_with_what_is_not_there(gossipdp: Run, answering: Any, tmp_path: Path) -> None:
    answers = {"name": "host1", "state": "ready", "members": {"alive": 3, "failed": 1}, "loss": None, "uptime": 3725,
               "sent_bytes": 12_345_678, "notices": ["GD-401 no partner"], "do": {"GD-401": "look"}}  # fmt: skip
    answering(tmp_path, {"status": answers})
    out = gossipdp("status", "--home", tmp_path).out
    shown = dict(re.findall(r"^(\S[\w ]*?) {2,}(.*)$", out, re.M))
    assert shown["peer"] == "host1" and shown["members"] == "alive 3, failed 1" and shown["uptime"] == "1h 2m"
    assert shown["loss"] == "-" and shown["round"] == "-" and shown["sent"] == "12.3MB"
    assert out.endswith("\nGD-401 no partner\n\nGD-401: look\n") and "peer.report" not in out
    assert json.loads(gossipdp("status", "--json", "--home", tmp_path).out) == answers


def test_status_of_a_training_that_reports_no_loss_says_how_to(gossipdp: Run, answering: Any, tmp_path: Path) -> None:
    answering(tmp_path, {"status": {"training": "attached", "loss": None}})
    assert "peer.report(loss=...)" in gossipdp("status", "--home", tmp_path).out


@pytest.mark.parametrize(("started", "code"), [(True, 0), (False, 8)])
def test_checkpoint_save_asks_the_daemon(
    gossipdp: Run, answering: Any, tmp_path: Path, started: bool, code: int
) -> None:
    answering(tmp_path, {"checkpoint": {"saved": "/h/checkpoints/checkpoint-00000001" if started else ""}})
    done = gossipdp("checkpoint", "save", "--home", tmp_path)
    assert done.code == code and (done.out if started else done.err).startswith("saved /h/" if started else "GD-602 ")


def test_leave_asks_the_daemon(gossipdp: Run, answering: Any, tmp_path: Path) -> None:
    answering(tmp_path, {"leave": {"leaving": True}})
    assert gossipdp("--home", tmp_path, "leave").out == "leaving\n"


def test_an_invite_of_a_running_daemon_has_the_address_it_found(gossipdp: Run, answering: Any, founder: Path) -> None:
    answering(founder, {"invite": {"path": str(founder / "invite"), "seeds": ["192.0.2.7:4711"]}})
    assert "192.0.2.7:4711" in gossipdp("invite", "--home", founder).out


def test_a_narrow_terminal_gets_the_columns_that_matter(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    tables.print_table(tables.MEMBER_COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert {"name", "id", "state", "rtt", "round", "samples/s", "last"} <= set(lines[0].split())
    assert "host2?[31m[red]" in lines[2], "a name is text, never markup"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (7.25, "7.25"), (999, "999"), (1000, "1k"), (1_234_567, "1.23M"), (2.5e13, "25T")]
)
def test_quantities(value: float, text: str) -> None:
    assert tables.quantity(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.25, "250ms"), (59, "59s"), (61, "1m 1s"), (90_000, "1d 1h")])
def test_durations(value: float, text: str) -> None:
    assert tables.duration(value) == text


def test_config_show_as_text_and_json(gossipdp: Run, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[outer]\nlr = 0.6\n")
    out = gossipdp("config", "show", "run.toml", "--preset", "local").out
    assert re.search(r"^lr = 0\.6 +# run\.toml:2$", out, re.M) and re.search(r"^every = 30 +# preset local$", out, re.M)
    shown = json.loads(gossipdp("config", "show", "run.toml", "--json").out)
    assert shown["outer.lr"] == {"value": 0.6, "origin": "run.toml:2"}
    assert shown["exchange.bandwidth"] == {"value": "unlimited", "origin": "default"}


def test_config_check_counts_what_was_set_and_not_what_preset_or_network_brought(
    gossipdp: Run, founder: Path, tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text('preset = "local"\n')
    assert gossipdp("config", "check", "run.toml").out == "ok: network gossipdp, preset local, 0 keys set\n"
    (tmp_path / "run.toml").write_text("[outer]\nlr = 0.6\n")
    assert gossipdp("config", "check", "run.toml").out.endswith(", 1 key set\n")
    done = gossipdp("config", "check", "run.toml", "--set", "outer.momentum=0.5", "--json")
    shown = json.loads(done.out)
    assert shown["set"].pop("outer.momentum").startswith("flag")
    assert shown == {"network": "gossipdp", "preset": "wan", "set": {"outer.lr": "run.toml:2"}}
    (founder / "run.toml").unlink(missing_ok=True)
    assert json.loads(gossipdp("config", "check", "--home", founder, "--json").out)["set"] == {}
    (tmp_path / "run.toml").write_text("[outer]\nlr = 9\n")
    done = gossipdp("config", "check", "run.toml", "--json")
    assert (done.code, done.out) == (3, "") and "run.toml:2" in done.err


def test_every_preset_is_a_valid_configuration_that_says_what_differs() -> None:
    presets = home.presets()
    assert set(presets) == {"local", "lan", "wan"}
    for name, text in presets.items():
        loaded = load(presets=presets, flags={"preset": name})
        assert loaded.membership.timing == name
        for key, origin in load(text).origins.items():
            default = configuration.value_of(configuration.Config(), key)
            said = key in ("membership.timing",) or configuration.value_of(loaded, key) != default
            assert said, f"preset {name} repeats the default of {key} ({origin})"


def test_version(gossipdp: Run) -> None:
    shown = json.loads(gossipdp("version", "--json").out)
    assert shown["protocol"] == PROTOCOL_VERSION and set(shown) == {"gossipdp", "protocol", "python"}


def test_demo_hands_its_options_through(gossipdp: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    module = types.ModuleType("peers.demo.main")
    module.main = lambda arguments: seen.append(arguments) or 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "peers.demo.main", module)
    assert gossipdp("demo", "--peers", "3", "--no-live", "--help").code == 7
    assert seen == [["--peers", "3", "--no-live", "--help"]]


def test_simulate_hands_its_options_through(gossipdp: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from simulations import main as simulate

    seen: list[tuple[str, simulate.Options]] = []
    monkeypatch.setattr(simulate, "simulate", lambda name, options: seen.append((name, options)) or 1)
    given = ("--seed", "7", "--peers", "4", "--out", "x", "--no-picture", "--json", "--until-failure", "--seeds", "9")
    assert gossipdp("simulate", "churn", *given, "--shrink", "0", "--replay", "y").code == 1
    options = simulate.Options(
        seed=7, peers=4, out=Path("x"), picture=False, as_json=True, until_failure=True, seeds=9, shrink=0.0,
        replay=Path("y"),
    )  # fmt: skip
    assert seen == [("churn", options)]
    assert gossipdp("simulate", "churn").code == 1 and seen[1] == ("churn", simulate.Options())


def test_simulate_without_a_scenario_says_which_there_are(gossipdp: Run) -> None:
    done = gossipdp("simulate")
    assert done.code == 0 and len(done.out.splitlines()) >= 8
    assert "partition    What becomes of a network that is cut in two?" in done.out


def test_simulate_an_unknown_scenario_is_a_usage_error(gossipdp: Run) -> None:
    done = gossipdp("simulate", "nonsense")
    assert done.code == 2 and "no scenario 'nonsense'; there are chaos, churn" in done.err


def test_simulate_where_only_the_package_is_installed_says_what_to_do(
    gossipdp: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "simulations.main", None)
    done = gossipdp("simulate", "chaos")
    assert done.code == 7 and "GD-504 the simulator is not installed" in done.err
    assert "do:   run this command in a checkout" in done.err and "Traceback" not in done.err


# -- checkpoints -------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(founder: Path) -> Path:
    schema = Schema.of([("w", (2, 3), "float32", "parameter"), ("b", (3,), "bfloat16", "parameter")])
    store = Store(founder / "checkpoints")
    for round in (1, 2):
        meta = CheckpointMeta(
            network="tiny", run="", peer="", incarnation=1, round=round, clock=50 * round, steps=50, samples=400,
            schema=schema.digest.hex(),
        )  # fmt: skip
        store.save(
            {"anchor": np.full(9, round, np.float32), "momentum": np.zeros(9, np.float32)}, meta, schema.to_bytes()
        )
    return founder


def test_checkpoints_are_listed_verified_and_exported(gossipdp: Run, saved: Path, tmp_path: Path) -> None:
    rows = json.loads(gossipdp("checkpoint", "list", "--json", "--home", saved).out)
    assert [(row["name"], row["state"], row["round"]) for row in rows] == [
        ("checkpoint-00000001", "ok", 1),
        ("checkpoint-00000002", "ok", 2),
    ]
    assert gossipdp("checkpoint", "list", "--home", saved).out.splitlines()[2].startswith("checkpoint-00000002  ok")
    assert gossipdp("checkpoint", "verify", "--home", saved).code == 0
    one = gossipdp("checkpoint", "export", "old.safetensors", "--checkpoint", "checkpoint-00000001", "--home", saved)
    assert (one.code, one.out) == (0, "wrote old.safetensors: 2 tensors of round 1\n")
    header = (tmp_path / "old.safetensors").read_bytes()
    assert b'"BF16"' in header
    (saved / "checkpoints/checkpoint-00000002/state.safetensors").write_bytes(b"torn")
    done = gossipdp("checkpoint", "export", "new.safetensors", "--home", saved)
    assert done.code == 0 and done.err.startswith("GD-601 checkpoint ") and "of round 1" in done.out
    assert (tmp_path / "new.safetensors").read_bytes() == header


@pytest.mark.parametrize("out", ["models/new/", "models"])
def test_export_to_a_directory__a_file_in_it(gossipdp: Run, saved: Path, tmp_path: Path, out: str) -> None:
    (tmp_path / "models").mkdir()
    done = gossipdp("checkpoint", "export", out, "--home", saved)
    path = Path(out) / "model.safetensors"
    assert (done.code, done.out) == (0, f"wrote {path}: 2 tensors of round 2\n") and (tmp_path / path).is_file()


def test_checkpoints_are_looked_for_where_the_peer_was_told_to_keep_them(
    gossipdp: Run, saved: Path, tmp_path: Path
) -> None:
    (saved / "checkpoints").rename(tmp_path / "elsewhere")
    there = ("--home", saved, "--set", f"checkpoint.dir={tmp_path / 'elsewhere'}")
    assert len(json.loads(gossipdp("checkpoint", "list", "--json", *there).out)) == 2
    assert gossipdp("checkpoint", "verify", *there).code == 0
    assert "of round 2" in gossipdp("checkpoint", "export", tmp_path / "out.safetensors", *there).out
    assert gossipdp("checkpoint", "verify", "--home", saved).code == 8
    assert gossipdp("checkpoint", "list", "--home", saved, "--set", "checkpoint.dirr=x").code == 3


def test_list_shows_which_checkpoints_are_pinned_and_why(gossipdp: Run, saved: Path) -> None:
    store = Store(saved / "checkpoints")
    store.pin(store.list()[0], "GD-605 the network's model is of step 80 of its clock")
    rows = json.loads(gossipdp("checkpoint", "list", "--json", "--home", saved).out)
    assert [row["pinned"] for row in rows] == ["GD-605 the network's model is of step 80 of its clock", None]
    lines = gossipdp("checkpoint", "list", "--home", saved).out.splitlines()
    assert [line.split()[-1] for line in lines[:3]] == ["pinned", "yes", "-"]
    assert lines[3:] == ["checkpoint-00000001 is pinned: GD-605 the network's model is of step 80 of its clock"]
    (store.list()[1] / "pinned").write_bytes(b"")
    (store.list()[0] / "pinned").write_bytes(b"\x1b[2Jgone")
    assert gossipdp("checkpoint", "list", "--home", saved).out.splitlines()[3:] == [
        "checkpoint-00000001 is pinned: ?[2Jgone",
        "checkpoint-00000002 is pinned: its reason is lost",
    ]


def test_verify_of_a_named_checkpoint_says_ok_or_is_eight(gossipdp: Run, saved: Path) -> None:
    done = gossipdp("checkpoint", "verify", "checkpoint-00000001", "--home", saved)
    assert done.code == 0 and done.out.startswith("ok: ") and "round 1" in done.out and done.out.count("ok: ") == 1
    done = gossipdp("checkpoint", "verify", "checkpoint-00000009", "--home", saved)
    assert done.code == 8 and done.err.startswith("GD-601 checkpoint ")


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_list_before_the_first_checkpoint_is_empty__of_no_home_it_is_eight(
    gossipdp: Run, founder: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = gossipdp("checkpoint", "list", *words, "--home", founder)
    assert (done.code, len(done.out.splitlines())) == (0, 1)
    done = gossipdp("checkpoint", "list", *words, "--home", tmp_path / "nowhere")
    assert (done.code, done.out) == (8, "") and done.err.startswith("GD-604 there is no checkpoint to list")


@pytest.mark.parametrize("words", [(), ("--json",)])
@pytest.mark.parametrize("home", ["founded", "nowhere"])
def test_no_checkpoint_to_verify_is_eight_in_an_empty_home_and_in_none(
    gossipdp: Run, founder: Path, tmp_path: Path, home: str, words: tuple[str, ...]
) -> None:
    where = founder if home == "founded" else tmp_path / "nowhere"
    done = gossipdp("checkpoint", "verify", *words, "--home", where)
    assert (done.code, done.out) == (8, "")
    assert done.err.startswith(f"GD-604 there is no checkpoint to verify\n  seen: {where}/checkpoints")
    assert "\n  do:   " in done.err and not (tmp_path / "nowhere").exists()


def test_verify_as_json_has_a_row_a_checkpoint_and_the_same_code(gossipdp: Run, saved: Path) -> None:
    done = gossipdp("checkpoint", "verify", "--json", "--home", saved)
    assert done.code == 0 and [(row["name"], row["state"], row["round"]) for row in json.loads(done.out)] == [
        ("checkpoint-00000001", "ok", 1),
        ("checkpoint-00000002", "ok", 2),
    ]
    (saved / "checkpoints/checkpoint-00000002/state.safetensors").write_bytes(b"torn")
    done = gossipdp("checkpoint", "verify", "--home", saved, "--json")
    rows = json.loads(done.out)
    assert done.code == 8 and done.err.startswith("GD-601 checkpoint ")
    assert [(row["state"], row.get("code")) for row in rows] == [("ok", None), ("damaged", "GD-601")]
    assert rows[1]["seen"]
    [row] = json.loads(gossipdp("checkpoint", "verify", "checkpoint-00000001", "--json", "--home", saved).out)
    assert (row["path"], row["round"]) == (str(saved / "checkpoints/checkpoint-00000001"), 1)


def test_a_damaged_checkpoint_is_eight(gossipdp: Run, saved: Path) -> None:
    (saved / "checkpoints/checkpoint-00000002/manifest.json").write_text("{}")
    done = gossipdp("checkpoint", "verify", "--home", saved)
    assert done.code == 8 and done.out.count("ok: ") == 1 and done.err.startswith("GD-601 checkpoint ")
    rows = json.loads(gossipdp("checkpoint", "list", "--json", "--home", saved).out)
    assert [row["state"] for row in rows] == ["ok", "damaged"]


def test_no_checkpoint_to_export_is_eight(gossipdp: Run, founder: Path) -> None:
    done = gossipdp("checkpoint", "export", "x.safetensors", "--home", founder)
    assert done.code == 8 and done.err.startswith("GD-604 there is no checkpoint to export\n")
