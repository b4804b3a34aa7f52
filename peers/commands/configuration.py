"""`gossipdp config`: show and check the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from peers.options import find_home, flags_of, flags_option, home_option, json_option

if TYPE_CHECKING:
    from gossipdp.config import Config

__all__ = ["config"]


@click.group()
def config() -> None:
    """Show or check the configuration."""


@config.command("check")
@click.argument("run_toml", required=False, metavar="[RUN.toml]")
@flags_option
@json_option
@home_option
@click.pass_context
def config_check(ctx: click.Context, run_toml: str | None, as_json: bool) -> None:
    """Check the configuration. Exit with 3 and name file, line, value and range on an error."""
    from peers import tables

    checked = _config(ctx, run_toml)
    chosen = {key: origin for key, origin in checked.origins.items() if not _inherited(origin)}
    if as_json:
        tables.print_json({"network": checked.network.name, "preset": checked.preset, "set": chosen})
        return
    keys = "1 key" if len(chosen) == 1 else f"{len(chosen)} keys"
    click.echo(f"ok: network {checked.network.name}, preset {checked.preset}, {keys} set")


def _inherited(origin: str) -> bool:
    """Whether a value comes from a preset or the home's network, and not from the operator."""
    from peers.home import NETWORK

    return origin.startswith("preset ") or origin.endswith(f"/{NETWORK}")


@config.command("show")
@click.argument("run_toml", required=False, metavar="[RUN.toml]")
@flags_option
@json_option
@home_option
@click.pass_context
def config_show(ctx: click.Context, run_toml: str | None, as_json: bool) -> None:
    """Show every key, its value, and the origin of the value."""
    import json

    from gossipdp import config as configuration
    from peers import tables

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
    else:
        click.echo(configuration.dump(shown), nl=False)


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
