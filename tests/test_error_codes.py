"""The table of error codes against the code that uses them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from gossipdp import errors
from gossipdp.error_codes import ADVICE, CODES, EXITS, RESERVED

ROOT = Path(__file__).parents[1]
FILES = [path for folder in ("gossipdp", "peers") for path in (ROOT / folder).rglob("*.py")]
SOURCES = [path for path in FILES if path.parent.name != "error_codes"]
WARNINGS = {"GD-103", "GD-319", "GD-325", "GD-326", "GD-327"}
"""told as notices, and never raised"""


def raised() -> Iterator[tuple[str, int]]:
    """Each code that the source gives to an error class, with that class's exit code."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(code)), *_]) if name in dir(errors):
                    if code.startswith("GD-") and code not in WARNINGS:
                        yield code, getattr(errors, name).exit_code


def test_every_code_that_the_source_uses_has_an_entry_and_every_entry_is_used() -> None:
    used = {code for path in SOURCES for code in re.findall(r"\bGD-\d{3}\b", path.read_text("utf-8"))}
    assert used == set(CODES)


def test_entries_name_the_exit_codes_with_which_errors_are_raised() -> None:
    found = set(raised())
    assert len(found) > 30
    assert not sorted((code, exit_code) for code, exit_code in found if exit_code not in CODES[code].exits)
    assert {each for entry in CODES.values() for each in entry.exits} <= set(EXITS)


def test_every_class_of_errors_has_an_exit_code_that_is_explained() -> None:
    kinds = [
        each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.GossipdpError)
    ]
    assert {each.exit_code for each in kinds} | {errors.RETRY} <= set(EXITS)


def test_entries_are_in_order_and_written_alike() -> None:
    assert list(CODES) == sorted(CODES) and not RESERVED & CODES.keys()
    for entry in CODES.values():
        assert entry.title[0].isupper() or entry.title[0] == "`"
        assert not entry.title.endswith(".") and not entry.do.endswith(".")
        assert entry.meaning.endswith(".")
    assert set(ADVICE) < set(CODES)


def test_an_error_says_where_to_read_more_unless_it_is_a_usage_error() -> None:
    text = str(errors.ConfigError("GD-206", "an invite is damaged", seen="3 bytes", do="copy it again"))
    assert text.splitlines() == [
        "GD-206 an invite is damaged",
        "  seen: 3 bytes",
        "  do:   copy it again",
        "  more: gossipdp explain GD-206",
    ]
    assert str(errors.ConfigError("usage", "cannot listen there")) == "usage cannot listen there"
