"""`gossipdp explain`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from gossipdp.error_codes import CODES
from peers.cli import cli


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
