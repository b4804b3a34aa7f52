"""The command line: imports, help, exit codes, version and demo."""

import json
import os
import re
import subprocess
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest

import peers.cli
from gossipdp import config as configuration
from gossipdp.config_loading import load
from gossipdp.protocol.wire.messages import PROTOCOL_VERSION
from peers import home
from peers.demo.options import Options
from peers.version import VERSION
from tests.peers.commands.running import Run

ROOT = Path(peers.cli.__file__).parents[1]


# -- speed and help ----------------------------------------------------------------------------------------------

HEAVY = {"numpy", "numba", "zmq", "torch", "rich", "nacl", "safetensors", "msgspec", "prometheus_client", "asyncio"}


def imported_by(check: str) -> set[str]:
    """Top-level modules that a new interpreter has imported once `check` holds."""
    code = (
        f"import sys, peers.cli\nassert {check}\nprint('modules', *{{name.partition('.')[0] for name in sys.modules}})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    word, *modules = done.stdout.splitlines()[-1].split()
    assert word == "modules"
    return set(modules)


def test_help_imports_nothing_heavy() -> None:
    modules = imported_by("peers.cli.main(['--help']) == 0 and peers.cli.main(['up', '--help']) == 0")
    assert "click" in modules and not modules & HEAVY


def test_questions_to_the_daemon_import_no_torch_numpy_or_zmq() -> None:
    modules = imported_by("peers.cli.main(['--home', '/nonexistent', 'status']) == 4")
    assert not modules & {"numpy", "numba", "zmq", "torch", "rich", "safetensors"}


def test_every_command_has_help_that_is_whole_at_eighty_columns(gossipdp: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    def walk(command: Any, path: tuple[str, ...]) -> None:
        done = gossipdp(*path, "--help")
        assert done.code == 0 and done.out.startswith("Usage: gossipdp"), path
        lines = done.out.splitlines()[1:]
        assert max(map(len, lines)) <= 80 and not [line for line in lines if line.endswith("...")], path
        for parameter in command.params:
            text = parameter.help if isinstance(parameter, click.Option) else "."
            assert text and text.endswith((".", ")", "]")), (path, parameter.name)
        for name, each in getattr(command, "commands", {}).items():
            walk(each, (*path, name))

    walk(peers.cli.cli, ())
    assert set(peers.cli.cli.commands) == {
        "up", "join", "relay", "invite", "members", "status", "leave", "keys", "config", "checkpoint", "demo",
        "version", "explain", "finish", "doctor", "top", "plan", "report",
    }  # fmt: skip


# -- exit codes --------------------------------------------------------------------------------------------------


def test_usage_is_two(gossipdp: Run) -> None:
    assert gossipdp("nonsense").code == 2
    assert gossipdp("up", "--").code == 2
    assert gossipdp("up", "a.toml", "b.toml").code == 2
    assert gossipdp("members", "--expect", "0").code == 2


def test_a_missing_configuration_is_three(gossipdp: Run) -> None:
    done = gossipdp("config", "check", "nowhere.toml")
    assert (done.code, done.err.partition("  more: ")[0]) == (
        3,
        "GD-313 nowhere.toml cannot be read\n  seen: No such file or directory\n  do:   name a TOML file\n",
    )


def test_a_wrong_configuration_is_three_and_names_the_line(gossipdp: Run, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[outer]\nmomentun = 0.8\n")
    done = gossipdp("config", "check", "run.toml")
    assert (done.code, done.err.partition("  more: ")[0]) == (
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


def test_config_show_as_text_and_json(gossipdp: Run, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[outer]\nlr = 0.6\n")
    out = gossipdp("config", "show", "run.toml", "--preset", "local").out
    assert re.search(r"^lr = 0\.6 +# run\.toml:2$", out, re.M) and re.search(
        r"^every = 30 +# steps; preset local$", out, re.M
    )
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


def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """What the shell is offered for the last of `words`."""
    monkeypatch.setenv("COMP_WORDS", " ".join(["gossipdp", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    monkeypatch.setenv("_GOSSIPDP_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit) as ended:
        peers.cli.main([])
    assert ended.value.code == 0
    return [line.partition(",")[2] for line in capsys.readouterr().out.splitlines()]


def test_the_shell_completes_commands_keys_presets_and_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    complete = partial(completed, monkeypatch, capsys)
    assert complete("mem") == ["members"]
    assert complete("up", "--set", "outer.") == ["outer.lr=", "outer.momentum="]
    assert complete("config", "explain", "exchange.b") == ["exchange.bits", "exchange.bandwidth"]
    assert complete("join", "--preset", "l") == ["lan", "local"]
    Path("invite").write_text("")
    assert complete("join", "@in") == ["@invite"] and complete("join", "--preset", "lan", "") == ["@invite"]
    assert complete("up", "--", "tr") == ["tr"], "the shell completes the name of a file"


@pytest.mark.parametrize("words", [["-m", "gossipdp"], ["-m", "peers.cli"]])
def test_the_package_is_the_command(words: list[str]) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, *words, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
        )
        return done.returncode, done.stdout

    assert run("--version") == (0, f"gossipdp {VERSION}\n")
    assert run("nonsense") == (2, "")


def test_version(gossipdp: Run) -> None:
    assert gossipdp("--version").out == f"gossipdp {VERSION}\n"
    shown = json.loads(gossipdp("version", "--json").out)
    assert shown["protocol"] == PROTOCOL_VERSION and set(shown) == {"gossipdp", "protocol", "python"}


def test_demo_hands_its_options_through(gossipdp: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Options] = []
    module = types.ModuleType("peers.demo.main")
    module.run = lambda options: seen.append(options) or 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "peers.demo.main", module)
    given = ("--peers", "3", "--steps", "9", "--size", "1M", "--batch", "2", "--every", "5")
    assert gossipdp("demo", *given, "--out", "x", "--no-live").code == 7 and gossipdp("demo").code == 7
    assert seen == [Options(3, 9, "1M", 2, 5, Path("x"), live=False), Options()]
