"""`gossipdp members`: who is in the network, and who may be."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from peers.options import Explained, decides, find_home, home_option, json_option

__all__ = ["members"]


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


@members.command()
@click.argument("who", metavar="ID...", nargs=-1, required=True)
@decides
def ban(ctx: click.Context, who: Sequence[str], reason: str, key: Path | None) -> None:
    """Ban members from the network.

    ID is a member's name, the start of its id, or a whole id. Every host
    refuses a banned peer within seconds, also after a restart.
    """
    from gossipdp.protocol.wire.messages import Verdict
    from peers.commands.deciding import Counter, called

    counter = Counter(ctx, key)
    own = [row["name"] for row in counter.rows if row.get("me") and bytes.fromhex(row["id"]) in counter.meant(who)]
    if own:
        raise click.UsageError(f"{own[0]} is this host's own peer: ban it on another member, with --key FILE")
    for peer, name in counter.meant(who).items():
        counter.hand_in(counter.desk.about_peer(Verdict.BANNED, peer, name, reason))
        click.echo(f"{called(peer, name)} is banned. This host has no link with it now, and tells the others.")
    click.echo("It still has its own copy of the model, and the secret until `gossipdp keys rotate`.")


@members.command()
@click.argument("who", metavar="ID...", nargs=-1, required=True)
@decides
def unban(ctx: click.Context, who: Sequence[str], reason: str, key: Path | None) -> None:
    """Lift bans."""
    from gossipdp.protocol.wire.messages import Verdict
    from peers.commands.deciding import Counter, called

    counter = Counter(ctx, key)
    for peer, name in counter.meant(who).items():
        counter.hand_in(counter.desk.about_peer(Verdict.NONE, peer, name, reason))
        shut = counter.desk.closed and peer not in counter.desk.allowed
        then = "The network is closed: also allow it." if shut else "Its peer comes back by itself if it runs."
        click.echo(f"{called(peer, name)} is no longer banned. {then}")


@members.command()
@click.argument("who", metavar="ID...", nargs=-1, required=True)
@decides
def allow(ctx: click.Context, who: Sequence[str], reason: str, key: Path | None) -> None:
    """Name peers that the network admits while it is closed.

    After its first try to join, `gossipdp keys show` on the new host prints
    its id.
    """
    from peers.commands.deciding import Counter, called

    counter = Counter(ctx, key)
    desk, meant = counter.desk, counter.meant(who)
    counter.hand_in(desk.about_network(reason, closed=desk.closed, allowed=desk.allowed | meant.keys()))
    for peer, name in meant.items():
        still = " It is still banned: see `gossipdp members unban`." if peer in desk.banned else ""
        click.echo(f"{called(peer, name)} is allowed.{still}")
    if not desk.closed:
        click.echo("The network is open: this counts once it is closed.")


@members.command()
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@decides
def close(ctx: click.Context, yes: bool, reason: str, key: Path | None) -> None:
    """Admit only allowed peers from now on.

    All live members that this host has heard are allowed, and all that were
    allowed before. Others are refused, whatever invite they have.
    """
    from peers.commands.deciding import Counter, called

    counter = Counter(ctx, key)
    present = counter.present()
    if not yes:
        click.echo("Allowed:")
        for peer, name in present.items():
            click.echo(f"  {called(peer, name)}")
        for peer, name in counter.unheard(present).items():
            click.echo(f"Not {called(peer, name)}, which this host has never heard: see `gossipdp members allow`.")
        click.confirm(f"Refuse all but these {len(present)} peers?", abort=True)
    counter = Counter(ctx, key)  # what was decided during the question holds
    counter.hand_in(counter.desk.about_network(reason, closed=True, allowed=present))
    banned = sorted(name or peer.hex()[:8] for peer, name in present.items() if peer in counter.desk.banned)
    click.echo(f"The network is closed to all but {len(present) - len(banned)} peers.")
    if banned:
        click.echo(f"Still banned: {', '.join(banned)}.")
    click.echo("`gossipdp members allow ID` lets another peer in.")


@members.command("open")
@decides
def open_(ctx: click.Context, reason: str, key: Path | None) -> None:
    """Admit every unbanned peer with the network's secret."""
    from peers.commands.deciding import Counter

    counter = Counter(ctx, key)
    counter.hand_in(counter.desk.about_network(reason, closed=False, allowed=counter.desk.allowed))
    click.echo("The network is open to every peer that has its secret and is not banned.")


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
    rows = [row for row in answer["decisions"] if len(row["id"]) == 64]
    renewed = next((row["time"] for row in answer["decisions"] if row["verdict"] == "renewed"), 0)
    if not answer["operator"]:
        click.echo("This host follows no operator (GD-207).")
        return
    click.echo(f"operator  {answer['operator']}")
    count = len(answer["allowed"])
    closed = f"closed to all but {count} peer{'s' * (count != 1)}"
    click.echo(f"network   {closed if answer['closed'] else 'open to every peer with its secret'}")
    if renewed:
        click.echo(f"secret    of {time.strftime('%Y-%m-%d %H:%M', time.localtime(renewed))}")
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
