"""Checks a change within a minute: style and types, then the tests that mirror the changed files.

    make quick                  what differs from the last commit, with new files
    make quick BASE=main        what differs from the commit where this branch left main

It stops at the first failure. Tests that start processes or networks, and long ones, are left to `make test`.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"gossipdp": "tests", "peers": "tests/peers", "simulations": "tests/simulations"}
PAGES = ["tests/test_citations.py", "tests/test_docs.py"]
MARKS = "not long and not processes"
FAILED = re.compile(r"\d (failed|error)")
NONE_RAN = 5
"""exit code of pytest: all tests of these modules have such a mark"""
LIMIT, LEAST = 46.0, 20.0
"""seconds of everything, and seconds that tests have after a first run of mypy; stopped workers may take 10 s more"""


def changed(base: str) -> list[str]:
    def git(*arguments: str) -> list[str]:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()

    [since] = git("merge-base", base, "HEAD")
    return sorted({*git("diff", "--name-only", since), *git("ls-files", "--others", "--exclude-standard")})


def tests_of(name: str, root: Path = ROOT) -> list[str]:
    """The test modules of one changed file, those that bear its name first."""
    path = Path(name)
    if path.suffix == ".md":
        return PAGES
    if path.suffix != ".py":
        return []
    if path.parts[0] == "tests":
        if path.name.startswith("test_"):
            return [name] if (root / name).exists() else []
        return _in(path.parent, root) if path.name == "conftest.py" else _importers(path, root)
    if path.parts[0] not in PACKAGES:
        return _named(path.stem, Path("tests"), root)
    top = Path(PACKAGES[path.parts[0]])
    folder, stem = top.joinpath(*path.parent.parts[1:]), path.stem if path.stem != "__init__" else path.parent.name
    while not (root / folder).is_dir():
        folder, stem = folder.parent, folder.name
    others = _importers(path, root) if folder == top else _in(folder, root)
    return list(dict.fromkeys([*_named(stem, folder, root), *others]))


def _in(folder: Path, root: Path) -> list[str]:
    return sorted(str(each.relative_to(root)) for each in (root / folder).glob("test_*.py"))


def _named(stem: str, folder: Path, root: Path) -> list[str]:
    """`config_rules.py` is tested by test_config*.py: a name without a test loses its last word."""
    while stem:
        if found := [each for each in _in(folder, root) if Path(each).name.startswith(f"test_{stem}")]:
            return found
        stem = stem.rpartition("_")[0]
    return []


def _importers(path: Path, root: Path) -> list[str]:
    dotted, package = ".".join(path.with_suffix("").parts), ".".join(path.parent.parts)
    line = rf"^\s*(from {dotted} import|import {dotted}\b|from {package} import .*\b{path.stem}\b)"
    modules = sorted((root / "tests").rglob("test_*.py"))
    return [str(each.relative_to(root)) for each in modules if re.search(line, each.read_text(), re.MULTILINE)]


def check(files: Sequence[str]) -> int:
    began, python = time.monotonic(), [name for name in files if name.endswith(".py") and (ROOT / name).exists()]
    tool = [sys.executable, "-m"]
    style = ["--force-exclude", *python]
    for step in ([*tool, "ruff", "check", *style], [*tool, "ruff", "format", "--check", *style], [*tool, "mypy"]):
        if python and (code := subprocess.run(step, cwd=ROOT, check=False).returncode):
            return code
    checked, cut = time.monotonic() - began, False
    found = {name: tests_of(name) for name in files}
    tests = list(dict.fromkeys(test for modules in found.values() for test in modules))
    if tests:
        code, cut = run([*tool, "pytest", "-x", "-n", "2", "-m", MARKS, *tests], max(LEAST, LIMIT - checked))
        if code:
            return code
    seconds, without = time.monotonic() - began, ", ".join(name for name in files if not found[name])
    if without:
        print(f"No test mirrors {without}.")
    if cut:
        folders = " ".join(sorted({str(Path(test).parent) for test in tests}))
        print(f"Time ran out. Run them all: .venv/bin/python -m pytest -m 'not long' {folders}")
    rest = "the rest of these tests, " if cut else ""
    print(
        f"{seconds:.0f} s: style and types {checked:.0f} s, {len(tests)} test modules {seconds - checked:.0f} s. "
        f"Left out: {rest}those marked long, processes or namespaces, and other folders."
    )
    return 0


def run(command: Sequence[str], limit: float) -> tuple[int, bool]:
    """The exit code, and whether time ran out before a test failed."""
    last = ""
    # A shell that starts jobs in the background has SIGINT ignored, and a process that it starts would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        timer = threading.Timer(limit, tests.send_signal, [signal.SIGINT])
        timer.start()
        for last in tests.stdout:
            print(last, end="", flush=True)
        cut = not timer.is_alive()
        timer.cancel()
    if cut:
        return int(FAILED.search(last) is not None), True
    return (0 if tests.returncode == NONE_RAN else tests.returncode), False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", default="HEAD")
    return check(changed(parser.parse_args().base))


if __name__ == "__main__":
    sys.exit(main())
