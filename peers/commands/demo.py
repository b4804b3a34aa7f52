"""`gossipdp demo`: peers on this machine train a small GPT together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from peers.demo.options import MOST_PEERS, SIZES, Options

__all__ = ["demo"]

DEFAULTS = Options()


def _count(name: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        f"--{name}", metavar="N", type=click.IntRange(1), default=getattr(DEFAULTS, name), show_default=True, help=text
    )


@click.command()
@click.option("--peers", metavar="N", type=click.IntRange(2, MOST_PEERS), default=DEFAULTS.peers, show_default=True,
              help="Number of peers.")  # fmt: skip
@_count("steps", "Optimizer steps of each replica.")
@click.option("--size", type=click.Choice(SIZES), default=DEFAULTS.size, show_default=True,
              help="Parameters of the model.")  # fmt: skip
@_count("batch", "Windows of text per step and replica.")
@_count("every", "Steps per round (H).")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), default=DEFAULTS.out, show_default=True,
              help="Folder for the files of this demo only.")  # fmt: skip
@click.option("--no-live", is_flag=True, help="Print plain lines instead of a live table.")
def demo(no_live: bool, **chosen: Any) -> int:
    """Train a small GPT with several peers on this machine.

    Each peer has its own daemon and training process. One more replica trains alone, for comparison. N peers use N
    times the compute of that replica. The folder of --out gets the report, its figures, a picture of the losses and the
    logs.
    """
    from peers.demo.main import run

    return run(Options(live=not no_live, **chosen))
