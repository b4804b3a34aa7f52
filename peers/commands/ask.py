"""`gossipdp status`, `members`, `leave` and `invite`: what the daemon of a home answers."""

from __future__ import annotations

from pathlib import Path

import click

from peers.options import find_home, home_option, json_option

__all__ = ["invite", "leave", "members", "status"]


@click.command()
@json_option
@home_option
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """What this host's peer is doing."""
    from peers import tables
    from peers.control import ask

    answer = ask(find_home(ctx), "status")
    if as_json:
        tables.print_json(answer)
        return
    tables.print_pairs(tables.STATUS_ROWS, answer)
    if answer.get("training") == "attached" and answer.get("loss") is None:
        click.echo("\nNo loss is shown until the training script says peer.report(loss=...).")
    for notice in answer.get("notices") or ():
        click.echo(f"\n{notice}")
    for code, do in (answer.get("do") or {}).items():
        click.echo(f"\n{code}: {do}")


@click.command()
@click.option("--expect", type=click.IntRange(1), metavar="N", help="Exit with 4 if fewer are alive.")
@json_option
@home_option
@click.pass_context
def members(ctx: click.Context, expect: int | None, as_json: bool) -> None:
    """Who is in the network, as this host's peer sees it."""
    from gossipdp.errors import UnreachableError
    from peers import tables
    from peers.control import ask

    rows = ask(find_home(ctx), "members").get("members") or []
    if as_json:
        tables.print_json(rows)
    else:
        tables.print_table(tables.MEMBER_COLUMNS, rows)
    alive = sum(row.get("state") == "alive" for row in rows)
    if expect is not None and alive < expect:
        raise UnreachableError(
            "GD-107",
            "fewer members than expected",
            seen=f"{alive} alive of {expect}",
            do="wait, or see `gossipdp members` and `gossipdp status` for who is missing and why",
        )


@click.command()
@home_option
@click.pass_context
def leave(ctx: click.Context) -> None:
    """Finish the chunk in flight, save, say goodbye, stop."""
    from peers.control import ask

    ask(find_home(ctx), "leave", timeout=15.0)
    click.echo("leaving")


@click.command()
@click.option("--show", is_flag=True, help="Print the invite itself, too.")
@home_option
@click.pass_context
def invite(ctx: click.Context, show: bool) -> None:
    """Write the file that lets another host in, and say how to use it."""
    from gossipdp.errors import UnreachableError
    from peers import home as homes
    from peers.control import ask

    home = find_home(ctx)
    try:
        answer = ask(home, "invite")  # the daemon knows its address, and the flags it was started with
        path, known = Path(answer.get("path") or home / "invite"), [seed for seed in answer.get("seeds", ()) if seed]
    except UnreachableError:
        config = homes.read_config(home)
        known = [seed for seed in (homes.advertised(config), *config.network.seeds) if seed]
        if not known:
            raise
        path = homes.write_invite(home, known, config)
    if not known:
        click.echo(
            "Nobody can dial this peer: add the address of a member that can be, by hand, as [network] seeds.", err=True
        )
    click.echo(f"Wrote {path}: it lets its holder in, so hand it over like a password.")
    click.echo(f"  first dialled:  {', '.join(known) or 'nobody'}")
    click.echo(f"  to use it:      scp {path} HOST:invite")
    click.echo("                  HOST$ gossipdp join @invite -- CMD")
    if show:
        click.echo(path.read_text().strip())
