"""`gossipdp explain`: what an error code means, without a network and without a browser."""

from __future__ import annotations

import click

from peers.options import json_option

__all__ = ["explain"]


@click.command()
@click.argument("code", required=False, metavar="[GD-101]")
@json_option
def explain(code: str | None, as_json: bool) -> None:
    """Explain an error code: what it means and what to do. Without a code, list all."""
    from gossipdp.error_codes import CODES, EXITS
    from peers import tables

    if code is None:
        if as_json:
            tables.print_json({name: entry._asdict() for name, entry in CODES.items()})
        for name, entry in () if as_json else CODES.items():
            click.echo(f"{name}  {entry.title}")
        return
    name = f"GD-{code.upper().removeprefix('GD').removeprefix('-')}"
    if name not in CODES:
        raise click.UsageError(f"there is no error code {code}; `gossipdp explain` lists all")
    entry = CODES[name]
    if as_json:
        tables.print_json({name: entry._asdict()})
        return
    click.secho(f"{name}  {entry.title}", bold=True)
    for text in (entry.meaning, f"What to do: {entry.do}."):
        click.echo("\n" + click.wrap_text(text, 79, "  ", "  "))
    click.echo("" if entry.exits else "\n  It ends no process.")
    for number in entry.exits:
        click.echo(click.wrap_text(f"Exit code {number}: {EXITS[number]}.", 79, "  ", "    "))
