"""The home that a command chooses, and its errors without one."""

import os
from pathlib import Path
from typing import Any

import pytest

from gossipdp.errors import ConfigError
from peers import control, home
from tests.peers.commands.running import Run


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
    assert str(caught.value).partition("\n  more: ")[0] == (
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
    server._listening.socket.close()  # as a killed daemon: the socket stays
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
    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
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
