"""Hides each program of `.ci/programs` in turn: the tests that need it skip and name it, and none fails.

    make programs

A program is hidden by a PATH of one folder, which has links to all other programs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from simulations.processes.needs import ABILITIES, PROGRAMS, programs_of  # noqa: E402

MARK = re.compile(r"mark\.needs\(([^)]*)\)")
SUMMARY = re.compile(r"\d+ skipped(, \d+ deselected)? in .*")


def users(program: str) -> list[Path]:
    """The files of tests that need a program."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        needs = re.findall(r'"([^"]+)"', " ".join(MARK.findall(path.read_text("utf-8"))))
        known = [need for need in needs if need in PROGRAMS or need in ABILITIES]
        if any(program in programs_of(need) for need in known):
            found.append(path.relative_to(ROOT))
    return found


def hide(names: Iterable[str], folder: Path) -> None:
    """Fill a folder with links to all programs on PATH but these."""
    for place in map(Path, os.environ["PATH"].split(os.pathsep)):
        for path in place.iterdir() if place.is_dir() else ():
            link = folder / path.name
            if path.name not in names and not link.is_symlink():
                link.symlink_to(path.absolute())


def fault(program: str) -> str:
    """What is wrong where a program is missing; "" if the tests that need it skip and name it."""
    files = users(program)
    if not files:
        return "no test needs it"
    with tempfile.TemporaryDirectory() as folder:
        hide(PROGRAMS[program].names, Path(folder))
        argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--needs", program, *map(str, files)]
        environment = {**os.environ, "PATH": folder}
        ran = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = ran.stdout.splitlines()
    reasons = [line for line in lines if line.startswith("SKIPPED")]
    named = all(f"{program} (" in reason for reason in reasons)
    return "" if not ran.returncode and named and SUMMARY.fullmatch(lines[-1]) else ran.stdout[-5000:] + ran.stderr


def main() -> int:
    began = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = {program: said for program, said in zip(PROGRAMS, pool.map(fault, PROGRAMS), strict=True) if said}
    for program, said in faults.items():
        print(f"--- without {program}\n{said}")
    print(f"{len(PROGRAMS)} programs hidden, {len(faults)} faults, {time.monotonic() - began:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
