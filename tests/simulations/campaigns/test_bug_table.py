"""The tables of docs/bugs.md: each row names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROWS = [line for line in (ROOT / "docs" / "bugs.md").read_text().splitlines() if re.match(r"\| [A-Z].*\|$", line)]
REPLAYS = [row.rsplit("|", 2)[1].strip() for row in ROWS]
COMMAND = re.compile(r"`(?:-m long )?((?:tests/[^\s`:]+ ?)+)(?:::(\w+))?(?: ?-k (\"[^\"]+\"|[^\s`]+))?`")
MODULE = re.compile(r"`python -m simulations\.[^`]+`")
WORD = re.compile(r"[^\s()\"]+")


def test_every_row_says_how_it_is_replayed():
    assert len(ROWS) > 90
    assert [each for each in REPLAYS if not COMMAND.fullmatch(each) and not MODULE.fullmatch(each)] == []


@pytest.mark.parametrize(
    "found", list(filter(None, map(COMMAND.fullmatch, REPLAYS))), ids=lambda found: found[0].strip("`")
)
def test_replayed_tests_exist(found):
    """Every alternative of -k is in a test's name, or, as a number, among its parameters."""
    paths = [ROOT / path for path in found[1].split()]
    files = [file for path in paths for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
    text = "\n".join(file.read_text() for file in files)
    names = re.findall(r"^ *def (test_\w+)", text, re.MULTILINE)
    assert names and (found[2] is None or found[2] in names)
    for word in set(WORD.findall(found[3] or "")) - {"and", "or", "not"}:
        assert any(word in name for name in names) or re.search(rf"\b{re.escape(word)}\b", text), word
