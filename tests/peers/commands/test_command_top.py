"""`gossipdp top` on a terminal, and without one."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
MEMBERS = [{"name": "anna", "id": "aa" * 32, "me": True, "state": "alive", "trains": True, "round": 9}]
STATUS = {"network": "tiny", "verdict": {"state": "healthy", "text": "healthy"}, "members": {"alive": 1}, "round": 9}


def test_command_on_a_terminal__keys_work_and_the_terminal_is_as_before(
    answering: Callable[..., Any], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    answering(home, {"status": STATUS, "members": {"members": MEMBERS}})
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    argv = [sys.executable, "-m", "peers.cli", "--home", str(home), "top"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24", "NO_COLOR": "1"}
    command = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=ROOT)
    try:
        assert "sort: name" in read_until(ours, "quit")
        os.write(ours, b"s")
        assert "sort: round" in read_until(ours, "sort: round")
        os.write(ours, b"\x03")
        read_until(ours, "\x1b[?1049l")
        assert command.wait() == 0
    finally:
        command.kill()
        command.wait()
    assert termios.tcgetattr(theirs) == before


def read_until(descriptor: int, wanted: str) -> str:
    text = ""
    while wanted not in text:
        text += os.read(descriptor, 65536).decode(errors="replace")
    return text


def test_command_without_a_terminal(
    gossipdp: Callable[..., Any], answering: Callable[..., Any], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    answering(home, {"status": STATUS, "members": {"members": MEMBERS}})
    refused = gossipdp("--home", home, "top")
    assert refused.code == 2 and "--once" in refused.err
    done = gossipdp("--home", home, "top", "--once")
    assert done.code == 0 and "anna" in done.out
