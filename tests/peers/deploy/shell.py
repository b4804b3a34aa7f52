"""Runs the scripts of peers/deploy where a stand-in for `gossipdp` records how it is called. Not a test."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.peers.deploy.files import Line, parsed

RECORD = """
import json, os, sys
given = "" if sys.stdin.isatty() else sys.stdin.read()
with open({record!r}, "a") as file:
    print(json.dumps([sys.argv[1:], given, dict(os.environ)]), file=file)
"""


class Call(NamedTuple):
    """A call of `gossipdp`: its line, its standard input and its variables."""

    line: Line
    given: str
    variables: Mapping[str, str]


def program(path: Path, script: str, interpreter: str = "/bin/sh") -> Path:
    """Make an executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{interpreter}\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class Shell:
    """A folder with programs that come first in PATH. `gossipdp` is one that records its calls."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._bin, self._record = folder, folder / "bin", folder / "record"
        self.add("gossipdp", RECORD.format(record=str(self._record)), sys.executable)

    def add(self, name: str, script: str, interpreter: str = "/bin/sh") -> Path:
        return program(self._bin / name, script, interpreter)

    def run(self, *argv: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with an empty standard input."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("GOSSIPDP_", "SLURM_"))}
        path = f"{self._bin}:{os.environ['PATH']}"
        return subprocess.run(
            argv,
            env={**kept, "PATH": path, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
        )

    def calls(self) -> list[Call]:
        """The calls of `gossipdp` so far."""
        text = self._record.read_text() if self._record.exists() else ""
        found = [json.loads(line) for line in text.splitlines()]
        return [Call(parsed(words, variables), given, variables) for words, given, variables in found]
