"""The mark `needs` of a test: programs and abilities of its machine. Without them the test skips, and says why.

    @pytest.mark.needs("promtool", "namespaces")

`.ci/programs` has the programs, `simulations/processes/needs.py` the abilities. A test that calls a program which
neither its marks nor the sets below name fails: on another machine it would fail or skip without a word.
`--needs PROGRAM` selects the tests that need a program.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import pytest

from simulations.processes.needs import ABILITIES, PROGRAMS, found, lacks, programs_of

EVERYWHERE = {"bash", "sh", "sleep"}
"""every Debian system has them"""
DISPENSABLE = {"git"}
"""what calls them does without them: the commit on a page of results is unknown then"""
PLACES = {place: name for name in PROGRAMS for place in (*PROGRAMS[name].names, found(name)) if place}


class Running:
    """The programs that the running test may call; None between tests."""

    allowed: frozenset[str] | None = None


def needs_of(item: pytest.Item) -> list[str]:
    return [need for mark in item.iter_markers("needs") for need in mark.args]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--needs", metavar="PROGRAM", choices=sorted(PROGRAMS), help="only tests that need this program")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*names): programs and abilities without which the test skips")
    start = subprocess.Popen.__init__

    @functools.wraps(start)
    def judged(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        _judge(args)
        start(self, args, *rest, **options)

    subprocess.Popen.__init__ = judged  # an audit hook would hear every call of id(), too


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if unknown := [need for need in needs_of(item) if need not in PROGRAMS and need not in ABILITIES]:
            raise pytest.UsageError(f"{item.nodeid} needs what no table has: {', '.join(unknown)}")
    if program := config.getoption("--needs"):
        others = [item for item in items if not any(program in programs_of(need) for need in needs_of(item))]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    Running.allowed = frozenset(program for need in needs_of(item) for program in programs_of(need))
    try:
        return (yield)
    finally:
        Running.allowed = None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if reason := lacks(*needs_of(item)):
        pytest.skip(reason)


def _judge(argv: Any) -> None:
    """Judge a start of a process while a test runs. Libraries know what to do without a program."""
    if Running.allowed is None or _of_a_library():
        return
    words = [argv] if isinstance(argv, (str, bytes, os.PathLike)) else argv
    if name := _not_named([os.fsdecode(word) for word in words]):
        pytest.fail(f"calls `{name}`: name it in the mark `needs` of the test, and in .ci/programs")


def _of_a_library() -> bool:
    frame: FrameType | None = sys._getframe(3)
    while frame and frame.f_code.co_filename == subprocess.__file__:
        frame = frame.f_back
    return frame is not None and f"{os.sep}lib{os.sep}python3" in frame.f_code.co_filename


def _not_named(words: Sequence[str]) -> str:
    if named := PLACES.get(words[0]):
        if named not in (Running.allowed or ()):
            return named
        return _not_named(words[4:]) if words[1:3] == ["netns", "exec"] else ""
    return "" if "/" in words[0] or words[0] in EVERYWHERE | DISPENSABLE else words[0]
