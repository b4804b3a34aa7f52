"""`gossipdp config`: show and check the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from peers.options import complete_key, find_home, flags_of, flags_option, home_option, json_option

if TYPE_CHECKING:
    from gossipdp.config import Config

__all__ = ["config"]


@click.group()
def config() -> None:
    """Show, explain or check the configuration."""


@config.command("check")
@click.argument("run_toml", required=False, metavar="[RUN.toml]", type=click.Path(readable=False))
@flags_option
@json_option
@home_option
@click.pass_context
def config_check(ctx: click.Context, run_toml: str | None, as_json: bool) -> None:
    """Check the configuration. Exit with 3 and name file, line, value and range on an error."""
    from peers import tables
    from peers.announcement import inherited

    checked = _config(ctx, run_toml)
    chosen = {key: origin for key, origin in checked.origins.items() if not inherited(origin)}
    if as_json:
        tables.print_json({"network": checked.network.name, "preset": checked.preset, "set": chosen})
        return
    keys = "1 key" if len(chosen) == 1 else f"{len(chosen)} keys"
    click.echo(f"ok: network {checked.network.name}, preset {checked.preset}, {keys} set")


@config.command("show")
@click.argument("run_toml", required=False, metavar="[RUN.toml]", type=click.Path(readable=False))
@click.option("--plain", is_flag=True, help="Print TOML without the meaning of the keys.")
@flags_option
@json_option
@home_option
@click.pass_context
def config_show(ctx: click.Context, run_toml: str | None, plain: bool, as_json: bool) -> None:
    """Show every key with its meaning, unit, value and origin.

    The origin is a flag, a variable, a line of a file, a preset or the default. The output is a complete
    configuration file: `gossipdp up` accepts it as RUN.toml.
    """
    import json

    from gossipdp import config as configuration
    from peers import config_text, tables

    shown = _config(ctx, run_toml)
    if as_json:
        tables.print_json(
            {
                key: {
                    "value": json.loads(rule.show(configuration.value_of(shown, key))),
                    "origin": shown.origins.get(key, "default"),
                }
                for key, rule in configuration.RULES.items()
            }
        )
    elif plain:
        click.echo(configuration.dump(shown), nl=False)
    else:
        for line in config_text.annotated(shown):
            click.secho(line, dim=line.startswith("#"), bold=line.startswith("["))


@config.command("explain")
@click.argument("key", shell_complete=complete_key)
@json_option
@home_option
@click.pass_context
def config_explain(ctx: click.Context, key: str, as_json: bool) -> None:
    """Explain a key: what it means, and when to change it.

    It also shows the range of values, the default and how to set the key. KEY is as in `config show`, such as
    exchange.every. A key without its section, a whole section or an environment variable is also accepted.
    """
    from gossipdp.errors import ConfigError
    from peers import config_text, tables
    from peers import home as homes

    found = config_text.find_keys(key)
    if as_json:
        tables.print_json({each.name: each._asdict() for each in found})
        return
    try:
        current = _config(ctx, None)
    except ConfigError:  # a wrong value: its key is still explained
        current = None
    for number, each in enumerate(found):
        if number:
            click.echo()
        for at, line in enumerate(config_text.explained(each, current, homes.presets())):
            click.secho(line, bold=at == 0)


def _config(ctx: click.Context, run_toml: str | None) -> Config:
    from gossipdp.errors import ConfigError
    from peers import home as homes

    if run_toml is not None:
        return homes.read_config(None, flags_of(ctx), file=Path(run_toml))
    try:
        home = find_home(ctx)
    except ConfigError:  # no home, or several: show the defaults
        return homes.read_config(None, flags_of(ctx))
    return homes.read_config(home, flags_of(ctx))
