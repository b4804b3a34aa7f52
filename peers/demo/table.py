"""Progress of the demo: a live table on a terminal, else plain lines every ten seconds.

Figures come from the peers' answers and logs; none may be computed here.
"""

from __future__ import annotations

import contextlib
import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from peers.demo.options import Options
from peers.tables import TERMINAL_WIDTH, quantity

if TYPE_CHECKING:
    from rich.table import Table

    from peers.demo.process import Process

__all__ = ["live", "plain", "table"]

Show = Callable[[Sequence["Process"], float], None]
PLAIN_EVERY = 10.0
"""seconds between two plain reports"""
WIDTHS = {
    "peer": 6, "state": 8, "round": 5, "steps": 6, "loss": 5, "partner": 7, "received": 8, "sent": 7, "distance": 8
}  # fmt: skip
"""smallest width of each column, so that the table does not move; with two spaces between them 76 characters"""
FIXED_SPACE = "\N{NO-BREAK SPACE}"


@contextlib.contextmanager
def live(options: Options) -> Iterator[Show]:
    """Yield a function that shows the processes, called with them and the seconds since the start."""
    if not options.live or not sys.stdout.isatty():
        last = -math.inf

        def show(processes: Sequence[Process], seconds: float) -> None:
            nonlocal last
            if seconds - last >= PLAIN_EVERY:
                last = seconds
                print(plain(processes, seconds), flush=True)

        yield show
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(), refresh_per_second=4, transient=True) as display:
        yield lambda processes, seconds: display.update(table(processes, options, seconds))


def plain(processes: Sequence[Process], seconds: float) -> str:
    """Step and loss of each process. A name and its figures stay on one line."""
    parts = []
    for process in processes:
        line = process.last_line()
        figures = f"{line['step']}:{line['loss']:.3f}" if line else _state(process)
        parts.append(f"{process.name} {figures}".replace(" ", FIXED_SPACE))
    text = textwrap.fill(
        "  ".join(parts), TERMINAL_WIDTH, initial_indent=f"{seconds:5.0f} s  ", subsequent_indent=" " * 9
    )
    return text.replace(FIXED_SPACE, " ")


def table(processes: Sequence[Process], options: Options, seconds: float) -> Table:
    """One row per process, from its newest line of the training log and its daemon's status."""
    from rich.table import Table

    shown = Table(title=f"byte_gpt {options.size}, {seconds:.0f} s", title_justify="left", box=None, pad_edge=False)
    for name, width in WIDTHS.items():
        left = name in ("peer", "state", "partner")
        shown.add_column(name, justify="left" if left else "right", no_wrap=True, min_width=width)
    names = {process.status.get("id", ""): process.name for process in processes if process.status}
    for process in processes:
        line, status = process.last_line(), process.status
        partner = status.get("partner") or status.get("last_partner") or ""
        shown.add_row(
            process.name,
            _state(process),
            str(status.get("round", "")),
            str(line.get("step", "")),
            f"{line['loss']:.3f}" if line else "",
            names.get(partner, partner[:8]),
            _bytes(status, "received_bytes"),
            _bytes(status, "sent_bytes"),
            f"{status['consensus_distance']:.1e}" if status.get("consensus_distance") else "",
        )
    return shown


def _state(process: Process) -> str:
    code = process.child.poll()
    if code is not None:
        return "done" if code == 0 else f"exit {code}"
    if process.home is None:
        return "alone" if process.last_line() else "starting"
    if not process.status:
        return "starting"
    return "warm-up" if process.status.get("warming_up") else str(process.status.get("state"))


def _bytes(status: Mapping[str, Any], key: str) -> str:
    return quantity(status[key], "B") if key in status else ""
