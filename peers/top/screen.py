"""The loop of the live view: asks the daemon about once a second, reads keys, draws."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.live import Live

from gossipdp.errors import GossipdpError
from peers.control import ask
from peers.live.figures import Traffic
from peers.top.choice import Choice, keys, pressed
from peers.top.view import View

__all__ = ["look", "once", "run"]

EVERY: Final = 1.0
"""seconds between two looks"""
PATIENCE: Final = 2.0
"""seconds for one answer of the daemon"""


def look(home: Path, traffic: Traffic) -> View:
    """Ask the daemon of `home`. Raises GossipdpError GD-105: it does not answer."""
    status = ask(home, "status", timeout=PATIENCE)
    members = ask(home, "members", timeout=PATIENCE).get("members") or []
    return View(status, members, traffic=traffic.look(status, time.monotonic()))


def once(home: Path) -> None:
    """Print one view, without keys."""
    console = Console()
    console.print(look(home, Traffic()).drawn(Choice(), console.width, 10_000))


def run(home: Path) -> None:
    """Show the view until the user quits. A daemon that does not answer is asked again.

    Raises:
        GossipdpError: GD-105, the daemon does not answer at the first look.
    """
    console, choice, traffic = Console(), Choice(), Traffic()
    view = look(home, traffic)
    with _single_keys(sys.stdin.fileno()), Live(console=console, screen=True, auto_refresh=False) as live:
        while not choice.ended:
            live.update(view.drawn(choice, console.width, console.height), refresh=True)
            due = time.monotonic() + EVERY
            while not choice.ended and (left := due - time.monotonic()) > 0.0:
                if not select.select([sys.stdin], [], [], left)[0]:
                    break
                choice = _read(choice, len(view.rows(choice)))
                live.update(view.drawn(choice, console.width, console.height), refresh=True)
            view = _next(home, traffic, view) if not choice.ended else view


def _read(choice: Choice, rows: int) -> Choice:
    """The choice after the keys that wait. A terminal that is gone ends the view."""
    data = os.read(sys.stdin.fileno(), 64)
    for key in keys(data):
        choice = pressed(choice, key, rows)
    return choice if data else replace(choice, ended=True)


def _next(home: Path, traffic: Traffic, view: View) -> View:
    try:
        return look(home, traffic)
    except GossipdpError as error:
        return view.without_answer(f"{error.cause}: {error.seen}")


@contextmanager
def _single_keys(descriptor: int) -> Iterator[None]:
    """Read keys as they are pressed. Ctrl-C is a key, so the screen is always restored."""
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    settings = termios.tcgetattr(descriptor)
    settings[3] &= ~termios.ISIG
    termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
