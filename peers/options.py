"""Options that several commands share. Only click is imported here, so that `--help` stays quick."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

__all__ = [
    "WithCommand",
    "command_of",
    "find_home",
    "flags_of",
    "flags_option",
    "home_option",
    "json_option",
    "log_format_option",
    "set_option",
    "verbose_option",
]

_COMMAND = "gossipdp.command"
_FLAGS = "gossipdp.flags"


class WithCommand(click.Command):
    """A command that takes ``-- CMD...``. Plain click would read CMD as the command's first argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, command = args[:at], args[at + 1 :]
            if not command:
                raise click.UsageError("no command after --", ctx)
            ctx.meta[_COMMAND] = command
        return super().parse_args(ctx, args)


def home_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Accept --home before and after the command's name."""

    def keep(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.obj = value

    return click.option("--home", metavar="DIR", expose_value=False, callback=keep, help="The peer's home.")(function)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def _flag(name: str, key: str, metavar: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A flag that sets the configuration key `key`, or any key if it is "*". `flags_of` collects the values."""

    def keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        found = ctx.meta.setdefault(_FLAGS, {})
        if key == "*":
            for item in value:
                setting, equals, text = item.partition("=")
                if not equals:
                    raise click.BadParameter("write SECTION.KEY=VALUE", ctx, parameter)
                found[setting.strip()] = text.strip()
        elif value:
            found[key] = ",".join(value) if isinstance(value, tuple) else value

    multiple = key in ("*", "network.seeds")
    return click.option(name, metavar=metavar, multiple=multiple, expose_value=False, callback=keep, help=text)


set_option = _flag("--set", "*", "SECTION.KEY=VALUE", "Set any key of the configuration; repeatable.")


def flags_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--set, and flags for single keys."""
    function = set_option(function)
    for name, key, metavar, text in (
        ("--seed", "network.seeds", "HOST:PORT", "A member to dial first; repeatable."),
        ("--advertise", "network.advertise", "HOST[:PORT]", "The address that other peers dial."),
        ("--listen", "network.listen", "tcp://HOST:PORT", "The address to listen on."),
        ("--peer", "network.peer", "NAME", "This peer's name in the list of members."),
        ("--preset", "preset", "NAME", "local, lan or wan (the default)."),
    ):
        function = _flag(name, key, metavar, text)(function)
    return function


def flags_of(ctx: click.Context) -> dict[str, str]:
    """The given flags, key -> text, for `gossipdp.config_loading.load`."""
    return dict(ctx.meta.get(_FLAGS, {}))


def command_of(ctx: click.Context) -> list[str]:
    """The words after ``--``."""
    return list(ctx.meta.get(_COMMAND, []))


def find_home(ctx: click.Context, network: str | None = None) -> Path:
    """The home that --home, the environment or the name of the `network` selects."""
    from peers import home
    from peers.control import runs

    return home.find_home(ctx.obj, network, runs=runs)


log_format_option = click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", help="Format of the daemon's log."
)

verbose_option = click.option("--verbose", is_flag=True, help="Log every exchange.")
