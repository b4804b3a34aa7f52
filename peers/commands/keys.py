"""`gossipdp keys`: this peer's key, the operator's key, and the network's secret."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from peers.options import DURATION, decides, find_home, home_option, json_option

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
            do="run `gossipdp up` or `gossipdp join` first",
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
    """Show the operator whose decisions this host follows.

    `gossipdp up` makes the operator's key on the host that founds a network.
    Invites carry its public part. Keep a copy of operator.key elsewhere. Its
    holder can ban every member.
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
@click.option("--grace", type=DURATION, default="10m", show_default=True, help="How long the old secret lets hosts in.")
@click.option("--also", multiple=True, metavar="ID", help="Also give it to this member, which is down or unheard.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@decides
def keys_rotate(
    ctx: click.Context, grace: float, also: Sequence[str], yes: bool, reason: str, key: Path | None
) -> None:
    """Give the network a new secret without stopping it.

    It is sealed for every live member that this host has heard, and for each
    that --also names.
    Earlier invites work until the grace is over. First ban members that you
    do not trust: see docs/members.md.
    """
    import secrets

    from gossipdp.runtime.network.key_files import KEY_BYTES
    from peers import decisions
    from peers.commands.deciding import Counter, called
    from peers.commands.renewal import told_who_has_it

    counter = Counter(ctx, key)
    counter.check_renewable()
    named = counter.present() | counter.meant(also)
    if not yes:
        click.echo("The new secret is for:")
        for peer, name in named.items():
            click.echo(f"  {called(peer, name)}")
        for peer, name in counter.unheard(named).items():
            click.echo(f"Not for {called(peer, name)}, which this host has never heard: see --also.")
        for row in counter.down(named):
            away = "has left" if row["state"] == "left" else "is down"
            click.echo(f"Not for {called(bytes.fromhex(row['id']), row['name'])}, which {away}: see --also.")
        click.confirm(f"Give {len(named)} peer{'s' * (len(named) != 1)} a new secret?", abort=True)
    counter = Counter(ctx, key)  # what was decided during the question holds
    counter.check_renewable()
    secret, holders = secrets.token_bytes(KEY_BYTES), named.keys() - counter.desk.banned
    decision = counter.desk.about_secret(secret, holders, grace, reason)
    counter.hand_in(decisions.encode(decision))
    told_who_has_it(counter, decision)
