"""Tells who has the network's new secret."""

from __future__ import annotations

import time

import click

from gossipdp.protocol.wire.messages import Decision
from peers import control
from peers.commands.deciding import Counter

__all__ = ["told_who_has_it"]

PATIENCE = 15.0
"""seconds to wait for the members"""
LOOK = 0.5


def told_who_has_it(counter: Counter, decision: Decision) -> None:
    """Wait until all live members have the secret, and tell who has not."""
    deadline = time.monotonic() + PATIENCE
    while lacks := _lacks(counter, decision.number):
        if time.monotonic() > deadline:
            break
        time.sleep(LOOK)
    assert decision.secret is not None
    until = time.strftime("%H:%M:%S", time.localtime(decision.secret.until))
    if lacks is None:
        click.echo("Another new secret has taken the place of this one: see `gossipdp members audit`.")
        return
    if lacks:
        click.echo(f"The network has a new secret. These members do not have it yet: {', '.join(lacks)}.")
        click.echo("Each gets it from any member. `gossipdp status` shows who lacks it.")
    else:
        click.echo("The network has a new secret. All live members have it.")
    click.echo(f"Hosts with the old secret, for example from an old invite, are let in until {until}.")
    click.echo("Next: `gossipdp invite` for hosts that should join. After that time old invites are void.")


def _lacks(counter: Counter, number: int) -> list[str] | None:
    """Names of live members without the secret of this number; None once there is a newer one."""
    state = control.ask(counter.home, "status")["secret"]
    return list(state["lacks"]) if state["newest"] == number else None
