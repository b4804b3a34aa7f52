"""`gossipdp up`: the home it makes and what it starts."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gossipdp.errors import ConfigError
from gossipdp.runtime.network.identity import OPERATOR_FILE, Identity
from peers import home, invites
from tests.peers.commands.running import Run


def test_up_makes_a_home_that_others_cannot_read(gossipdp: Run, started: list[Any], tmp_path: Path) -> None:
    done = gossipdp("up", "--network", "tiny", "--", "torchrun", "--nproc-per-node", "8", "train.py", "--", "-x")
    where = tmp_path / "user" / ".gossipdp" / "tiny"
    assert done.code == 0
    assert started == [
        {
            "home": where,
            "command": ["torchrun", "--nproc-per-node", "8", "train.py", "--", "-x"],
            "overrides": {"network.name": "tiny"},
            "log_format": "text",
            "verbose": False,
            "live": True,
        }
    ]
    assert where.stat().st_mode & 0o777 == 0o700
    for name in ("identity.key", "network.secret", "network.json"):
        assert (where / name).stat().st_mode & 0o777 == 0o600
    assert home.network_of(where) == home.HomeNetwork(
        name="tiny", founder=True, operator=Identity.load(where, OPERATOR_FILE).id.hex()
    )


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
        "up", "--network", "tiny", "--preset", "local", "--seed", "a:1", "--seed", "b:2",
        "--set", "exchange.every=5", "--listen", "tcp://*:0",
        "--peer", "host1", "--advertise", "10.0.0.1:4710", "--log-format", "json",
    )  # fmt: skip
    assert done.code == 0
    assert started[0]["log_format"] == "json" and started[0]["overrides"] == {
        "network.name": "tiny",
        "preset": "local",
        "network.seeds": "a:1,b:2",
        "exchange.every": "5",
        "network.listen": "tcp://*:0",
        "network.peer": "host1",
        "network.advertise": "10.0.0.1:4710",
    }
    assert gossipdp("up", "--set", "exchange.every=often").code == 3
    assert gossipdp("up", "--set", "exchange.every").code == 2


def test_invite_of_a_founder_also_names_the_members_that_it_dials(gossipdp: Run, started: list[Any]) -> None:
    """Nobody may be able to dial the founder; it finds out later."""
    words = ["--advertise", "10.0.0.1:4710", "--seed", "relay:443", "--seed", "10.0.0.1:4710"]
    assert gossipdp("up", "--network", "tiny", *words).code == 0
    invite = invites.read_invite((started[0]["home"] / "invite").read_text()).invite
    assert invite.seeds == ("10.0.0.1:4710", "relay:443")


def test_verbose_and_json_reach_the_daemon__and_what_is_said_is_json_too(gossipdp: Run, started: list[Any]) -> None:
    done = gossipdp("up", "--network", "tiny", "--verbose", "--no-live", "--log-format", "json")
    assert started[0]["verbose"] is True and started[0]["live"] is False
    (line,) = [json.loads(line) for line in done.err.splitlines()]
    assert line["level"] == "info" and "lets another host join" in line["message"]
    assert gossipdp("up").err.startswith("founding network tiny; home ") and started[1]["verbose"] is False


def test_a_home_of_one_network_is_not_used_for_another(gossipdp: Run, started: list[Any], tmp_path: Path) -> None:
    assert gossipdp("up", "--network", "one", "--home", tmp_path / "h").code == 0
    done = gossipdp("up", "--network", "two", "--home", tmp_path / "h")
    assert done.code == 3 and done.err.startswith("GD-315 this home belongs to another network\n  seen: ")
    assert len(started) == 1


@pytest.mark.parametrize("words", [[], ["--preset", "local"], ["--home", "h"]])
def test_up_on_a_host_without_a_peer_founds_nothing_by_mistake(
    gossipdp: Run, started: list[Any], tmp_path: Path, words: list[str]
) -> None:
    """The line that starts a peer again after a crash, on another host: it would found a network and train alone."""
    done = gossipdp("up", *words, "--", "python", "my train.py")
    where = tmp_path / "h" if "--home" in words else tmp_path / "user" / ".gossipdp"
    assert done.code == 3 and not started and not where.exists()
    assert done.err.splitlines()[:3] == [
        "GD-314 there is no peer here to start again",
        f"  seen: {where} has no home",
        "  do:   found a network: `gossipdp up --network NAME -- python 'my train.py'`; or join one:"
        " `gossipdp join @invite -- python 'my train.py'`",
    ]


@pytest.mark.parametrize("name", ["variable", "--set", "file"])
def test_a_name_or_a_file_founds_on_purpose(
    gossipdp: Run, started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    words = {"variable": [], "--set": ["--set", "network.name=tiny"], "file": ["run.toml"]}[name]
    (tmp_path / "run.toml").write_text('preset = "local"\n')
    if name == "variable":
        monkeypatch.setenv("GOSSIPDP_NETWORK_NAME", "tiny")
    assert gossipdp("up", *words).code == 0 and len(started) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "code"), [("tiny\n", 0), ("\n", 3)])
def test_up_asks_on_a_terminal_for_the_name_of_a_network_to_found(
    gossipdp: Run, started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, code: int
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    done = gossipdp("up")
    assert done.code == code and "Name of a network to found" in done.out + done.err
    assert [call["home"] for call in started] == [tmp_path / "user" / ".gossipdp" / "tiny"] * (code == 0)


@pytest.mark.parametrize("command", ["up", "join"])
def test_a_home_of_a_command_that_failed_at_once_is_removed(
    gossipdp: Run, started: list[Any], founder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def fail(*_: Any, **__: Any) -> int:
        raise ConfigError("GD-316", "the training command cannot be found", seen="pyhton")

    monkeypatch.setattr(sys.modules["peers.supervisor"], "run", fail)
    words = ["up", "--network", "other"] if command == "up" else ["join", f"@{founder}/invite"]
    made, mkdir = tmp_path / "made", tmp_path / "mkdir"
    mkdir.mkdir()
    for where in (made, mkdir):
        assert gossipdp(*words, "--home", where).code == 3
        assert home.network_of(where) is None
    assert not made.exists() and mkdir.exists()
    before = home.network_of(founder)
    assert gossipdp("up", "--home", founder).code == 3 and home.network_of(founder) == before is not None
