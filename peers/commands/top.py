"""`gossipdp top`: a live view of the network."""

from __future__ import annotations

import os
import sys

import click

from peers.options import find_home, home_option

__all__ = ["top"]


@click.command()
@click.option("--once", is_flag=True, help="Print one view and exit.")
@home_option
@click.pass_context
def top(ctx: click.Context, once: bool) -> None:
    """Watch the network: members, exchanges and notices.

    Keys: s sorts, / filters by name or state, j and k or arrows move, Enter opens a member, Esc goes back, q quits.
    NO_COLOR=1 switches colours off.
    """
    home = find_home(ctx)
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb")
    if not once and not on_terminal:
        raise click.UsageError("top needs a terminal with a cursor: use --once, or `gossipdp status`", ctx)
    from peers.top import screen

    if once:
        screen.once(home)
    else:
        screen.run(home)
