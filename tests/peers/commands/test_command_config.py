"""`gossipdp config show` and `explain`: what each key and each error code means, in 80 columns."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gossipdp import config
from gossipdp.config_help import known_keys
from gossipdp.config_loading import load
from gossipdp.error_codes import CODES
from peers import home
from peers.cli import cli
from tests.peers.commands.running import Run


def settings_of(text: str) -> dict[str, object]:
    loaded = load(text, presets=home.presets())
    return {key: config.value_of(loaded, key) for key in config.RULES} | {"preset": loaded.preset}


@pytest.mark.parametrize("form", [(), ("--plain",)])
def test_both_forms_of_show_load_again(gossipdp: Run, tmp_path: Path, form: tuple[str, ...]) -> None:
    ban = ", ".join(f'"{number:064x}"' for number in range(3))
    (tmp_path / "run.toml").write_text(
        f'preset = "lan"\n[exchange]\nbandwidth = "25mbit"\nevery = 7\n[safety]\nban = [{ban}]\n'
    )
    done = gossipdp("config", "show", "run.toml", *form)
    assert settings_of(done.out) == settings_of((tmp_path / "run.toml").read_text())
    assert ("inner steps per round" in done.out) == (not form)


def test_show_has_meaning_unit_and_origin_and_fits_eighty_columns(gossipdp: Run, tmp_path: Path) -> None:
    where = tmp_path / ("a" * 60)
    where.mkdir()
    ban = ", ".join(f'"{number:064x}"' for number in range(3))
    (where / "run.toml").write_text(f"[outer]\nlr = 0.6\n[safety]\nban = [{ban}]\n")
    lines = gossipdp("config", "show", where / "run.toml").out.splitlines()
    long = [line for line in lines if len(line) > 80]
    assert long == [f"# {where}/run.toml:2", f"# {where}/run.toml:4"], "only a path may be longer"
    at = next(number for number, line in enumerate(lines) if line.startswith("every = 50"))
    assert lines[at].split("#")[1].strip() == "steps; default"
    assert lines[at - 1] == "# H: inner steps per round of a host of typical speed."


@pytest.mark.parametrize("key", [key.name for key in known_keys()])
def test_explain_fits_eighty_columns(gossipdp: Run, key: str) -> None:
    done = gossipdp("config", "explain", key)
    assert done.code == 0 and max(map(len, done.out.splitlines())) <= 80, done.out
    assert "allowed " in done.out and "change it " in done.out


def test_explain_takes_a_key_alone_a_section_and_a_variable(gossipdp: Run) -> None:
    def names(word: str) -> list[str]:
        return list(json.loads(gossipdp("config", "explain", word, "--json").out))

    assert names("every") == ["exchange.every", "checkpoint.every"]
    assert names("outer") == ["outer.lr", "outer.momentum"]
    assert names("GOSSIPDP_OUTER_LR") == ["outer.lr"] and names("preset") == ["preset"]


def test_explain_shows_what_is_used_here_and_in_presets(gossipdp: Run, founder: Path) -> None:
    out = gossipdp("config", "explain", "exchange.every", "--home", founder).out
    assert out.startswith("exchange.every = 7\nfrom ") and f"{founder}/run.toml" in out
    assert "default      50; 30 with preset local\n" in out and "peers        values may differ\n" in out
    assert "peers        all peers need the same value\n" in gossipdp("config", "explain", "outer.lr").out


@pytest.mark.parametrize(
    ("typo", "near"),
    [("evry", "exchange.every or checkpoint.every"), ("exchange.evry", "exchange.every"), ("exchnge", "exchange")],
)
def test_a_typo_gets_the_nearest_key(gossipdp: Run, typo: str, near: str) -> None:
    done = gossipdp("config", "explain", typo)
    assert (done.code, done.err.partition("  more: ")[0]) == (
        3,
        f"GD-312 unknown key {typo}\n  do:   did you mean {near}?\n",
    )


def test_a_key_is_explained_while_the_configuration_is_wrong(gossipdp: Run, founder: Path) -> None:
    (founder / "run.toml").write_text("[outer]\nlr = 9\n")
    done = gossipdp("config", "explain", "outer.lr", "--home", founder)
    assert done.code == 0 and done.out.startswith("outer.lr\n\nalpha:") and "a number from 0.01 to 2" in done.out


def explain(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["explain", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("code", ["GD-201", "gd-201", "201"])
def test_a_code_is_explained_in_80_columns(code: str) -> None:
    shown = explain(code)
    assert shown.startswith("GD-201  Another network secret\n")
    assert "gossipdp keys show" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 79


def test_exit_codes_are_shown_where_there_are_any() -> None:
    shown = explain("GD-205")
    assert all(f"  Exit code {number}: " in shown for number in (5, 9, 75)) and "a copy of a live peer" in shown
    assert "Exit code" not in explain("GD-401") and "It ends no process." in explain("GD-401")


def test_without_a_code_all_are_listed() -> None:
    lines = explain().splitlines()
    assert [line.split()[0] for line in lines] == list(CODES)
    assert max(map(len, lines)) <= 80


def test_json() -> None:
    assert json.loads(explain("GD-204", "--json"))["GD-204"]["exits"] == [5]
    assert set(json.loads(explain("--json"))) == set(CODES)


def test_an_unknown_code_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli, ["explain", "GD-999"])
    assert result.exit_code == 2 and "lists all" in result.output


@pytest.mark.parametrize("word", ["gd101", "GD101", "gd-101", "101"])
def test_explain_takes_a_code_as_people_type_it(gossipdp: Run, word: str) -> None:
    done = gossipdp("explain", word)
    assert done.code == 0 and done.out.startswith("GD-101 ")
