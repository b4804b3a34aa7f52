"""Options that several commands share. Only click is imported here, so that `--help` stays quick."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

__all__ = [
    "DURATION",
    "Explained",
    "WithCommand",
    "command_of",
    "complete_key",
    "decides",
    "find_home",
    "flags_of",
    "flags_option",
    "home_option",
    "json_option",
    "live_option",
    "log_format_option",
    "set_option",
    "verbose_option",
]

_COMMAND = "gossipdp.command"
_FLAGS = "gossipdp.flags"


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


if TYPE_CHECKING:
    _FloatType = click.ParamType[float]
else:
    _FloatType = click.ParamType  # a generic class only in later versions


class _Duration(_FloatType):
    """A number and a unit, as 30s, 10m, 2h or 7d; in seconds."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        read = re.fullmatch(r"(\d{1,6})([smhd])", str(value))
        if read is None:
            self.fail(f"{value!r} is not a time: give a number with s, m, h or d, such as 90s or 2h", param, ctx)
        return int(read[1]) * _UNITS[read[2]]


DURATION = _Duration()
"""type of an option that takes a time"""


def decides(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options of the commands that need the operator's key."""
    path = click.Path(dir_okay=False, path_type=Path)
    function = click.option(
        "--key", type=path, metavar="FILE", help="The operator's key; by default that of the home."
    )(function)
    function = click.option(
        "--reason", default="", metavar="TEXT", help="Reason, for every host's log (48 characters)."
    )(function)
    return click.pass_context(home_option(function))


class Explained(click.Command):
    """A command whose help ends with a list of terms. `terms` is called for the help alone."""

    def __init__(self, *args: Any, terms: Callable[[], tuple[str, list[tuple[str, str]]]], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._terms = terms

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        title, terms = self._terms()
        with formatter.section(title):
            formatter.write_dl(terms)


class WithCommand(click.Command):
    """A command with at most one argument that takes ``-- CMD...``. Plain click would read CMD as that argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = args[: args.index("--")] if "--" in args else args
        if not ctx.resilient_parsing:
            self._check_separator(ctx, own, args)
        if len(own) < len(args):
            command = args[len(own) + 1 :]
            if not command and not ctx.resilient_parsing:
                raise click.UsageError("no command after --", ctx)
            ctx.meta[_COMMAND] = command
        return super().parse_args(ctx, own)

    def _check_separator(self, ctx: click.Context, own: list[str], args: list[str]) -> None:
        """Raise UsageError with the corrected line if CMD begins in `own`, before any ``--``."""
        at = self._command_at(own)
        if at is None:
            return
        home = ["--home", ctx.obj] if ctx.obj else []
        before = shlex.join(["gossipdp", *home, str(ctx.info_name), *args[:at]])
        command = shlex.join(["python", *args[at:]] if args[at].endswith(".py") else args[at:])
        raise click.UsageError(f"write -- before the training command:\n\n  {before} -- {command}", ctx)

    def _command_at(self, own: list[str]) -> int | None:
        """Where CMD begins in `own`; None if it does not."""
        switches = {name for option in self.params if getattr(option, "is_flag", False) for name in option.opts}
        known = {name for option in self.params for name in option.opts}
        arguments, at = 0, 0
        while at < len(own):
            word = own[at]
            if word.startswith("-") and word != "-":
                if word.partition("=")[0] not in known:
                    return None
                at += 1 if word in switches or "=" in word else 2
                continue
            if word.endswith(".py") or shutil.which(word) or (arguments and len(own) > at + 1):
                return at
            arguments += 1
            at += 1
        return None


def home_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Accept --home before and after the command's name."""

    def keep(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.obj = value

    kind = click.Path(file_okay=False, readable=False)
    return click.option("--home", metavar="DIR", type=kind, expose_value=False, callback=keep, help="The peer's home.")(
        function
    )


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def complete_key(_ctx: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Completion of the shell: configuration keys that begin with `typed`. An option gets them with "="."""
    from gossipdp.config import RULES

    end = "=" if isinstance(parameter, click.Option) else ""
    return [f"{key}{end}" for key in RULES if key.startswith(typed)]


def _complete_preset(_ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    from peers import home

    return [name for name in home.presets() if name.startswith(typed)]


def _flag(name: str, key: str, metavar: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A flag that sets the configuration key `key`, or any key if it is "*". `flags_of` collects the values."""

    def keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        found = ctx.meta.setdefault(_FLAGS, {})
        if key == "*":
            for item in value or ():
                setting, equals, text = item.partition("=")
                if not equals:
                    raise click.BadParameter("write SECTION.KEY=VALUE", ctx, parameter)
                found[setting.strip()] = text.strip()
        elif value:
            found[key] = ",".join(value) if isinstance(value, tuple) else value
            if key == "network.listen" and ":" in value and "://" not in value:
                found[key] = f"tcp://{value}"

    multiple = key in ("*", "network.seeds")
    complete = {"*": complete_key, "preset": _complete_preset}.get(key)
    return click.option(
        name,
        metavar=metavar,
        multiple=multiple,
        expose_value=False,
        callback=keep,
        help=text,
        shell_complete=complete,
    )


set_option = _flag("--set", "*", "SECTION.KEY=VALUE", "Set any key that `gossipdp config show` lists. Repeatable.")


def flags_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--set, and flags for single keys."""
    function = set_option(function)
    for name, key, metavar, text in (
        ("--seed", "network.seeds", "HOST:PORT", "Member to dial first. Repeatable."),
        (
            "--advertise",
            "network.advertise",
            "HOST[:PORT]",
            "Address that other peers dial, such as this host's public one.",
        ),
        ("--listen", "network.listen", "HOST:PORT", "Address to listen on; tcp://*:4711 takes another port."),
        ("--peer", "network.peer", "NAME", "Name of this peer in the list of members."),
        ("--preset", "preset", "NAME", "Values for hosts of one kind: local, lan or wan (the default)."),
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
    "--log-format", type=click.Choice(["text", "json"]), default="text", help="Format of the log."
)

verbose_option = click.option("--verbose", is_flag=True, help="Log every exchange.")

live_option = click.option("--no-live", is_flag=True, help="Show no live line below the output on a terminal.")
