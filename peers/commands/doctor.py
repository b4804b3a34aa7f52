"""`gossipdp doctor`: what is wrong with this host, or with its way to the network, and what to do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peers.options import find_home, home_option, json_option

if TYPE_CHECKING:
    from peers.doctor.case import Case

__all__ = ["doctor"]


@click.command()
@click.argument("target", required=False, metavar="[@FILE|-|HOST:PORT]")
@click.option("--peer", metavar="PEER", help="Visit only this member: its name, or the start of its id.")
@click.option("--speed", is_flag=True, help="Also measure the throughput to the first member, for 2 s each way.")
@click.option(
    "--parameters", type=click.IntRange(0), default=0, metavar="N", help="Size of the model, for memory and disk."
)
@json_option
@home_option
@click.pass_context
def doctor(
    ctx: click.Context, target: str | None, peer: str | None, speed: bool, parameters: int, as_json: bool
) -> int:
    """Find what is wrong on this host or on its way to the network.

    Each finding says what to do, and nothing is changed.

    Before a join, give the invite (@FILE, or - for standard input) or one HOST:PORT to visit. After it, the home names
    the members to visit. Exit with 1 if something is wrong.
    """
    from peers.doctor import show
    from peers.doctor.examination import examine

    began = time.monotonic()
    findings = examine(_case(ctx, target, peer or "", parameters), fast=speed)
    seconds = time.monotonic() - began
    if as_json:
        from peers import tables

        tables.print_json(show.as_json(findings, seconds))
    else:
        show.show(findings, seconds)
    return show.exit_code(findings)


def _case(ctx: click.Context, target: str | None, peer: str, parameters: int) -> Case:
    from peers import invites
    from peers.commands.invite_argument import invite_text
    from peers.doctor import case

    if target is not None and (target.startswith("@") or target == "-" or ":" not in target):
        if peer:
            raise click.UsageError("--peer names a member of this home's network: give no invite with it", ctx)
        network = invites.read_invite(invite_text(target))
        return case.of_invite(network, find_home(ctx, network.invite.network), parameters)
    home = _home(ctx)
    if home is None:
        return case.of_host([target] if target else [], parameters)
    return case.of_home(home, parameters, target or "", peer)


def _home(ctx: click.Context) -> Path | None:
    """The home of this host's peer; None if it has none."""
    from gossipdp.errors import ConfigError
    from peers import home as homes

    try:
        home = find_home(ctx)
    except ConfigError:
        if ctx.obj:
            raise
        return None
    return home if homes.network_of(home) is not None else None
