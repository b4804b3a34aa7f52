"""The process that shows the live line: it asks the daemon about once a second, and draws.

It is a process of its own because an answer may take its time, and the supervisor must not wait. It ends once its
standard input is closed, so it gives the row back also if the supervisor is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from gossipdp import launch
from gossipdp.errors import GossipdpError
from gossipdp.runtime.observability.health import STATES
from peers.control import ask
from peers.live.figures import Traffic, figures, fitting
from peers.processes import MARK

__all__ = ["Row", "shown", "suits", "text"]


SAVE, RESTORE = "\x1b7", "\x1b8"
ALL_ROWS: Final = "\x1b[r"
BELOW: Final = "\x1b[J"
"""clears all after the cursor"""
OFF_LAST: Final = "\x1bD\x1b[A"
"""scrolls if the cursor is in the last row, and keeps it at its place in the text"""
FEWEST: Final = 4
"""rows of a terminal that has room for the row"""


class Row:
    """The last row of a terminal, kept free of other output.

    All other output scrolls in the rows above (DECSTBM). Several processes write it, and none has to know of the row.
    Each drawing is one write. It saves the cursor, draws, and restores the cursor.

    Args:
        descriptor: of the terminal.
        size: tells columns and rows of the terminal; by default as the kernel knows them.
    """

    def __init__(self, descriptor: int, size: Callable[[int], os.terminal_size] = os.get_terminal_size) -> None:
        self._descriptor, self._measure = descriptor, size
        self._size: os.terminal_size | None = None
        """of the last drawing; None while the row is not shown"""

    def draw(self, text: Callable[[int], str]) -> None:
        """Show a text, which is asked for with the number of characters that fit.

        Raises:
            OSError: the terminal is gone.
        """
        size = self._measure(self._descriptor)
        if size.lines < FEWEST:
            self.clear()
            return
        made = ""
        if size != self._size:
            made = SAVE + ALL_ROWS + RESTORE + (BELOW if self._size else "") + OFF_LAST
            self._size = size
        made += f"{SAVE}\x1b[1;{size.lines - 1}r\x1b[{size.lines};1H\x1b[2K{text(size.columns - 1)}{RESTORE}"
        os.write(self._descriptor, made.encode())

    def clear(self) -> None:
        """Give the row back to other output.

        Raises:
            OSError: the terminal is gone.
        """
        if self._size is None:
            return
        if self._measure(self._descriptor) == self._size:
            made = f"{SAVE}{ALL_ROWS}\x1b[{self._size.lines};1H\x1b[2K{RESTORE}"
        else:
            made = SAVE + ALL_ROWS + RESTORE + BELOW
        self._size = None
        os.write(self._descriptor, made.encode())


EVERY: Final = 1.0
"""seconds between two looks"""
PATIENCE: Final = 2.0
"""seconds for an answer of the daemon"""
ENDS_WITHIN: Final = 3.0
"""seconds"""
TERMINAL: Final = 2
"""standard error, where the log goes"""


def suits() -> bool:
    """Whether standard output and error are a terminal with a cursor."""
    return os.isatty(1) and os.isatty(TERMINAL) and os.environ.get("TERM") not in (None, "", "dumb")


@contextlib.contextmanager
def shown(home: Path, environment: Mapping[str, str], mark: str) -> Iterator[None]:
    """Show the live line of the peer of `home` meanwhile.

    Args:
        environment: variables of the process.
        mark: tells the process from descendants of the peer's other processes.
    """
    argv = [*launch.command("peers.live.process"), str(home)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, env={**environment, MARK: mark})
    assert process.stdin is not None
    try:
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:  # the terminal takes nothing, as after Ctrl-S
            process.kill()
            process.wait()


def text(status: Mapping[str, Any], traffic: float | None, room: int, *, colours: bool) -> str:
    """The line for an answer to `status`, which is empty if there was none.

    Args:
        traffic: bytes a second.
        room: characters.
        colours: whether the verdict has the colour of its state.
    """
    if not status:
        return "no answer from the daemon"[:room]
    state = str((status.get("verdict") or {}).get("state"))
    told = fitting([state, *figures(status, traffic)], " · ", room)
    if not colours:
        return told
    colour = next((kind.colour for kind in STATES if kind.name == state), None)
    return click.style(told[: len(state)], fg=colour, bold=True) + told[len(state) :]


def main(home: Path) -> None:
    """Draw until standard input is closed, or the terminal is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)  # meant for the supervisor, whose end closes standard input
    row, traffic, colours = Row(TERMINAL), Traffic(), not os.environ.get("NO_COLOR")
    said: Mapping[str, Any] = {}
    rate: float | None = None

    def draw(*_: object) -> None:
        if _in_foreground():
            row.draw(lambda room: text(said, rate, room, colours=colours))
        else:
            row.clear()

    signal.signal(signal.SIGWINCH, draw)
    with contextlib.suppress(OSError):
        while not select.select([sys.stdin], [], [], EVERY)[0]:
            said = _look(home)
            rate = traffic.look(said, time.monotonic()) if said else None
            draw()
        row.clear()


def _look(home: Path) -> Mapping[str, Any]:
    try:
        return ask(home, "status", timeout=PATIENCE)
    except GossipdpError:
        return {}


def _in_foreground() -> bool:
    """Whether the terminal is this job's. A shell in front of a job in the background has all rows."""
    try:
        return os.tcgetpgrp(TERMINAL) == os.getpgrp()
    except OSError:  # not the terminal that controls this process
        return False


if __name__ == "__main__":
    main(Path(sys.argv[1]))
