"""`gossipdp members`: who is in the network, and who may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peers.options import Explained, find_home, home_option, json_option

if TYPE_CHECKING:
    from gossipdp.protocol.wire.messages import Verdict

__all__ = ["members"]

Function = Callable[..., Any]


class Members(Explained, click.Group):
    """`gossipdp members` alone lists them."""


def _columns() -> tuple[str, list[tuple[str, str]]]:
    from peers.tables import MEMBER_COLUMNS

    return "Columns", [(column.title, column.meaning) for column in MEMBER_COLUMNS]


@click.group(cls=Members, terms=_columns, invoke_without_command=True)
@click.option("--all", "show_all", is_flag=True, help="Also list members that left or failed over an hour ago.")
@click.option("--expect", type=click.IntRange(1), metavar="N", help="Exit with 4 if fewer than N are alive.")
@json_option
@home_option
@click.pass_context
def members(ctx: click.Context, show_all: bool, expect: int | None, as_json: bool) -> None:
    """List the network's members, as this host's peer sees them.

    The commands decide who may be a member. They need the operator's key.
    """
    if ctx.invoked_subcommand is not None:
        return
    from gossipdp.errors import UnreachableError
    from gossipdp.runtime.observability.health import GONE
    from peers import tables
    from peers.control import ask

    rows = ask(find_home(ctx), "members").get("members") or []
    if as_json:
        tables.print_json(rows)
    else:
        shown = [row for row in rows if show_all or (row.get("gone") or 0.0) < GONE]
        tables.print_table(tables.MEMBER_COLUMNS, [tables.member_told(row) for row in shown])
        if hidden := len(rows) - len(shown):
            click.echo(f"({hidden} that left or failed over an hour ago: --all lists them)")
    alive = sum(row.get("state") == "alive" for row in rows)
    if expect is not None and alive < expect:
        raise UnreachableError(
            "GD-107",
            "fewer members than expected",
            seen=f"{alive} alive of {expect}",
            do="wait, or see `gossipdp members` and `gossipdp status` for the missing members",
        )


def _decides(function: Function) -> Function:
    """Options of the commands that decide."""
    path = click.Path(dir_okay=False, path_type=Path)
    function = click.option("--key", type=path, metavar="FILE", help="The operator's key; by default the home's.")(
        function
    )
    function = click.option("--reason", default="", metavar="TEXT", help="Why, for every host's log (48 characters).")(
        function
    )
    return click.pass_context(home_option(function))


@members.command()
@click.argument("who", metavar="ID...", nargs=-1, required=True)
@_decides
def ban(ctx: click.Context, who: Sequence[str], reason: str, key: Path | None) -> None:
    """Put members out of the network.

    ID is a member's name, the begin of its id, or a whole id. Every host
    refuses a banned peer within seconds, and after its restarts too.
    """
    from gossipdp.protocol.wire.messages import Verdict

    for name in _decide(ctx, Verdict.BANNED, who, reason, key):
        click.echo(f"{name} is banned. This host has no link with it now, and tells the others.")
    click.echo("It still has the network's secret and its own copy of the model.")


@members.command()
@click.argument("who", metavar="ID...", nargs=-1, required=True)
@_decides
def unban(ctx: click.Context, who: Sequence[str], reason: str, key: Path | None) -> None:
    """Take back what was decided about peers."""
    from gossipdp.protocol.wire.messages import Verdict

    for name in _decide(ctx, Verdict.NONE, who, reason, key):
        click.echo(f"{name} is not banned any longer. Its peer comes back by itself if it runs.")


@members.command()
@click.argument("who", metavar="ID...", nargs=-1, required=True)
@_decides
def allow(ctx: click.Context, who: Sequence[str], reason: str, key: Path | None) -> None:
    """Name peers that a closed network takes.

    `gossipdp keys show` on the new host prints its id before it joins.
    """
    from gossipdp.protocol.wire.messages import Verdict

    for name in _decide(ctx, Verdict.ALLOWED, who, reason, key):
        click.echo(f"{name} is allowed.")


@members.command()
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_decides
def close(ctx: click.Context, yes: bool, reason: str, key: Path | None) -> None:
    """Take allowed peers alone from now on.

    All live members are allowed first. Others are refused, whatever invite
    they have.
    """
    from gossipdp.protocol.wire.messages import Verdict
    from peers.control import ask

    rows = ask(find_home(ctx), "members").get("members") or []
    present = [row for row in rows if row["state"] in ("alive", "suspect")]
    names = ", ".join(row["name"] for row in present)
    if not yes:
        click.confirm(f"Allow {len(present)} live members ({names}) and refuse all others?", abort=True)
    _decide(ctx, Verdict.ALLOWED, [row["id"] for row in present], reason, key)
    _decide(ctx, Verdict.CLOSED, [""], reason, key)
    click.echo(f"The network is closed. Allowed: {names}. `gossipdp members allow ID` lets another peer in.")


@members.command("open")
@_decides
def open_(ctx: click.Context, reason: str, key: Path | None) -> None:
    """Take every peer with the network's secret that is not banned."""
    from gossipdp.protocol.wire.messages import Verdict

    _decide(ctx, Verdict.NONE, [""], reason, key)
    click.echo("The network is open to every peer with its secret that is not banned.")


@members.command()
@json_option
@home_option
@click.pass_context
def decisions(ctx: click.Context, as_json: bool) -> None:
    """List what the operator has decided, as this host knows it."""
    from peers import tables
    from peers.control import ask

    answer = ask(find_home(ctx), "decisions")
    if as_json:
        tables.print_json(answer)
        return
    rows = [row for row in answer["decisions"] if row["id"]]
    if not answer["operator"]:
        click.echo("This host follows no operator (GD-207).")
        return
    click.echo(f"operator  {answer['operator']}")
    click.echo(
        f"network   {'closed: allowed peers alone' if answer['closed'] else 'open to every peer with its secret'}"
    )
    if rows:
        click.echo()
        tables.print_table(tables.DECISION_COLUMNS, rows)


@members.command()
@click.option("--last", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="Lines to show.")
@json_option
@home_option
@click.pass_context
def audit(ctx: click.Context, last: int, as_json: bool) -> None:
    """Show who joined, who was refused, and what was decided.

    It is what this host's peer saw, in HOME/log/audit.jsonl. No daemon needs
    to run.
    """
    from peers import audit_log, tables

    records = audit_log.read(find_home(ctx), last)
    if as_json:
        tables.print_json(records)
    for line in () if as_json else map(audit_log.told, records):
        tables.print_text(line)


def _decide(ctx: click.Context, verdict: Verdict, who: Sequence[str], reason: str, key: Path | None) -> list[str]:
    """Hand decisions to the daemon. Returns how each subject is called.

    Args:
        who: words for each subject; "" for the network.
    """
    from gossipdp.errors import ConfigError
    from peers.control import ask
    from peers.decisions import Desk, operator_key, subject_of

    home = find_home(ctx)
    rows = ask(home, "members").get("members") or []
    subjects = [subject_of(words, rows) if words else (b"", "") for words in who]
    desk = Desk(operator_key(home, key), ask(home, "decisions"))
    for subject, name in subjects:
        if not ask(home, "decide", decision=desk.decide(verdict, subject, name, reason))["stands"]:
            do = "take old decisions back with `gossipdp members unban`"
            raise ConfigError("GD-207", "the daemon did not take the decision", seen=name or subject.hex(), do=do)
    return [f"{name} ({subject.hex()[:8]})" if name else subject.hex()[:8] for subject, name in subjects]
