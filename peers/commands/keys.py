"""`gossipdp keys`: this peer's key and the network's secret."""

from __future__ import annotations

import re

import click

from peers.options import find_home, home_option, json_option

__all__ = ["keys"]


@click.group()
def keys() -> None:
    """Show this peer's key, or replace the network's secret."""


@keys.command("show")
@json_option
@home_option
@click.pass_context
def keys_show(ctx: click.Context, as_json: bool) -> None:
    """Show the peer's id and the fingerprint of the network's secret."""
    from gossipdp.errors import ConfigError
    from gossipdp.runtime.network.identity import Identity, NetworkSecret
    from peers import tables

    home = find_home(ctx)
    try:
        shown = {
            "id": Identity.load(home).id.hex(),
            "fingerprint": NetworkSecret.load(home).fingerprint,
            "home": str(home),
        }
    except FileNotFoundError as error:
        raise ConfigError(
            "GD-314",
            "there is no peer in this home",
            seen=str(error.filename),
            do="`gossipdp up` or `gossipdp join` first",
        ) from None
    if as_json:
        tables.print_json(shown)
    else:
        tables.print_pairs([tables.Column(key, key) for key in shown], shown)


@keys.command("operator")
@click.option("--new", is_flag=True, help="Make a key here, and follow it. For a network that has no operator.")
@click.option("--trust", metavar="KEY", help="Follow the operator with this public key from the next start on.")
@json_option
@home_option
@click.pass_context
def keys_operator(ctx: click.Context, new: bool, trust: str | None, as_json: bool) -> None:
    """Show whose decisions about members this host follows.

    `gossipdp up` makes the operator's key on the host that founds a network.
    Invites carry its public part. Keep a copy of operator.key elsewhere: who
    holds it can ban every member.
    """
    from gossipdp.errors import ConfigError
    from gossipdp.runtime.network.identity import OPERATOR_FILE, Identity
    from peers import home as homes
    from peers import tables

    home = find_home(ctx)
    known = homes.network_of(home)
    if known is None or (new and trust):
        raise click.UsageError("give --new or --trust" if known else f"{home} belongs to no network")
    if new and known.operator:
        seen, do = known.operator, "use that key, or --trust another one"
        raise ConfigError("GD-207", "this host follows an operator already", seen=seen, do=do)
    if new:
        homes.follow(home, Identity.load_or_create(home, OPERATOR_FILE).id)
    if trust is not None:
        if not re.fullmatch("[0-9a-f]{64}", trust):
            raise click.UsageError("KEY has 64 hexadecimal digits: `gossipdp keys operator` on the operator's host")
        homes.follow(home, bytes.fromhex(trust))
    follows = (homes.network_of(home) or known).operator
    shown = {"follows": follows, "key": str(home / OPERATOR_FILE) if (home / OPERATOR_FILE).exists() else ""}
    if as_json:
        tables.print_json(shown)
    else:
        tables.print_pairs([tables.Column(key, key) for key in shown], {k: v or None for k, v in shown.items()})
    if new or trust:
        click.echo("\nRestart this host's peer. On every other host, do this once, and restart it too:")
        click.echo(f"  gossipdp keys operator --trust {follows}")


@keys.command("rotate")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@home_option
@click.pass_context
def keys_rotate(ctx: click.Context, yes: bool) -> None:
    """Make a new network secret. Every other host then needs a new invite."""
    from peers import home as homes

    home = find_home(ctx)
    if homes.network_of(home) is None:
        raise click.UsageError(f"{home} belongs to no network")
    if not yes:
        click.confirm("Every peer must join again with a new invite. Continue?", abort=True)
    secret = homes.rotate_secret(home)
    homes.invite_file(home).unlink(missing_ok=True)
    click.echo(f"New network secret, fingerprint {secret.fingerprint}.")
    click.echo("Peers with the old one refuse this peer (GD-201).")
    click.echo("Next: restart this peer, and write a new invite: `gossipdp invite`.")
    click.echo("      On every other host: `gossipdp leave`, then `gossipdp join @invite -- CMD`.")
    click.echo("      Keys, state and run stay.")
