"""`gossipdp keys`: this peer's key and the network's secret."""

from __future__ import annotations

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
