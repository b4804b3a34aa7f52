"""The table of bugs in simulations/README.md: whoever replays a row plays something."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TABLE = (ROOT / "simulations" / "README.md").read_text().split("## Bugs found")[1].split("\n## ")[0]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ")][1:]
COMMAND = re.compile(r"`pytest (?:-m long )?((?:tests/[^\s`:]+ ?)+)(?:::(\w+))?(?: ?-k (\"[^\"]+\"|[^\s`]+))?`")
WORD = re.compile(r"[^\s()\"]+")


def test_every_row_says_how_it_is_replayed():
    assert len(ROWS) > 90 and [row for row in ROWS if "`p" not in row.rsplit("|", 2)[1]] == []


def test_every_command_of_pytest_is_understood_here():
    commands = re.findall(r"`pytest [^`]+`", TABLE)
    assert [command for command in commands if not COMMAND.fullmatch(command)] == []


@pytest.mark.parametrize("found", list(COMMAND.finditer(TABLE)), ids=lambda found: found[0].strip("`"))
def test_replayed_tests_exist(found):
    """Every alternative of -k is in a test's name, or, as a number, among its parameters."""
    paths = [ROOT / path for path in found[1].split()]
    files = [file for path in paths for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
    text = "\n".join(file.read_text() for file in files)
    names = re.findall(r"^ *def (test_\w+)", text, re.MULTILINE)
    assert names and (found[2] is None or found[2] in names)
    for word in set(WORD.findall(found[3] or "")) - {"and", "or", "not"}:
        assert any(word in name for name in names) or re.search(rf"\b{re.escape(word)}\b", text), word
