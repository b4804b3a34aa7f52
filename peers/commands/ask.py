"""`gossipdp status` and `leave`: what the daemon of a home answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from peers.options import Explained, find_home, home_option, json_option

__all__ = ["leave", "status"]


def _states() -> tuple[str, list[tuple[str, str]]]:
    from gossipdp.runtime.observability.health import STATES

    codes = {kind.exit_code: (kind.name, kind.meaning) for kind in STATES}
    codes[4] = "", "no daemon runs for this home, or it does not answer"
    lines = [(f"{code:>2} {name}", meaning) for code, (name, meaning) in sorted(codes.items())]
    return "Exit codes of --check (from 10 on, nothing needs to be mended)", lines


@click.command(cls=Explained, terms=_states)
@click.option("--check", is_flag=True, help="Show the verdict alone, and exit with 0 only if the peer is healthy.")
@json_option
@home_option
@click.pass_context
def status(ctx: click.Context, check: bool, as_json: bool) -> int:
    """Show how this host's peer is doing."""
    from gossipdp.runtime.observability.health import STATES
    from peers import tables
    from peers.control import ask

    answer = ask(find_home(ctx), "status")
    verdict = answer.get("verdict") or {}
    kind = next((kind for kind in STATES if kind.name == verdict.get("state")), None)
    if as_json:
        tables.print_json(answer)
    elif kind is not None:
        tables.print_verdict(verdict["text"], kind.colour)
    if not check and not as_json:
        _show(answer)
    return 0 if not check else 1 if kind is None else kind.exit_code


def _show(answer: Mapping[str, Any]) -> None:
    from peers import tables

    click.echo()
    tables.print_pairs(tables.STATUS_ROWS, {**answer, **tables.told_of(answer)})
    if answer.get("training") == "attached" and answer.get("loss") is None:
        tables.print_text("\nNo loss is reported yet: peer.report(loss=...) in the training script shows it here.")
    for notice in answer.get("notices") or ():
        tables.print_text(f"\n{tables.notice_told(answer, notice)}")
    for code, do in (answer.get("do") or {}).items():
        tables.print_text(f"\n{code}: {do}")


@click.command()
@home_option
@click.pass_context
def leave(ctx: click.Context) -> None:
    """Finish the chunks in flight, save, leave the network and stop.

    Return once the daemon and the training command have ended. Also end what is left of a peer whose supervisor or
    daemon was killed.
    """
    from gossipdp.errors import UnreachableError
    from peers import rest
    from peers.control import ask, runs
    from peers.daemon_questions import saving
    from peers.processes import LOOK
    from peers.waits import told

    home = find_home(ctx)
    try:
        ask(home, "leave", timeout=15.0)
    except UnreachableError:
        if not rest.leave(home, lambda: saving(home), lambda line: click.echo(line, err=True)):
            raise
    click.echo("leaving")
    with told("the daemon and training to end", lambda line: click.echo(line, err=True)):
        while rest.supervisor(home) or runs(home):
            time.sleep(LOOK)
