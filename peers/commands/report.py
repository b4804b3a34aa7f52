"""`gossipdp report`: one HTML file about a run."""

from __future__ import annotations

import time
from pathlib import Path

import click

from peers.options import find_home, home_option

__all__ = ["report"]


@click.command()
@click.argument("homes", nargs=-1, metavar="[HOME...]", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("report.html"),
              show_default=True, metavar="FILE", help="The file to write.")  # fmt: skip
@home_option
@click.pass_context
def report(ctx: click.Context, homes: tuple[Path, ...], out: Path) -> None:
    """Write one HTML file about the run.

    It shows who trained what, losses, agreement, traffic, faults and settings. It is made from the homes of one or
    several peers, by default this host's, and needs no daemon. The file is complete
    in itself, so it can be sent. It names peers and settings, and holds no key or secret.
    """
    from peers.report.write import write

    size = write(list(homes) or [find_home(ctx)], out, time.time())
    click.echo(f"{out} ({size / 1e3:.0f} kB)")
