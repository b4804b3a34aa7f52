"""`gossipdp up`, `join` and `relay`: make a home ready and start the supervisor."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from glob import escape, glob
from pathlib import Path

import click

from gossipdp import launch
from peers.options import (
    WithCommand,
    command_of,
    find_home,
    flags_of,
    flags_option,
    home_option,
    live_option,
    log_format_option,
    verbose_option,
)

__all__ = ["join", "relay", "up"]


@click.command(cls=WithCommand, options_metavar="[OPTIONS]")
@click.argument("run_toml", required=False, metavar="[RUN.toml] [-- CMD...]", type=click.Path(readable=False))
@click.option("--network", metavar="NAME", help="Name of the network, and of its home in ~/.gossipdp.")
@flags_option
@log_format_option
@verbose_option
@live_option
@home_option
@click.pass_context
def up(
    ctx: click.Context, run_toml: str | None, network: str | None, log_format: str, verbose: bool, no_live: bool
) -> int:
    """Start this host's peer, and with `-- CMD...` its training.

    In a home that belongs to a network it continues there. With --network or RUN.toml a new home founds a network.
    RUN.toml is copied to the home. Flags about the addresses of this host, such as `--listen` and `--advertise`, also
    apply to later starts. Other flags apply to this start only.
    """
    from peers import announcement, finished, invites
    from peers import home as homes
    from peers.advertising import addresses_to_advertise, listen_port
    from peers.environment import of_container

    if run_toml is not None and run_toml.startswith("@"):
        raise click.UsageError(f"`up` takes no invite: use gossipdp join {run_toml} -- CMD")
    flags = flags_of(ctx) | ({"network.name": network} if network else {})
    file = Path(run_toml) if run_toml else None
    if file is not None or network:
        home = homes.find_home(ctx.obj, homes.read_config(None, flags, file=file).network.name)
    else:
        from peers.control import runs

        home = homes.find_home(ctx.obj, default="gossipdp", runs=runs)
    finished.check_unfinished(home)
    config = homes.read_config(home, flags, file=file)
    if file is None and homes.network_of(home) is None and "network.name" not in config.origins:
        chosen = ctx.obj or os.environ.get("GOSSIPDP_HOME")
        flags["network.name"] = _name_to_found(home if chosen else home.parent, command_of(ctx))
        home = homes.find_home(ctx.obj, flags["network.name"])
        config = homes.read_config(home, flags)
    _check_unoccupied(home)
    with homes.removed_if_not_started(home):
        known = homes.found(home, config, homes.read_text(file) if file is not None else None)
        homes.keep_addresses(home, config, flags)
        addresses = homes.advertised(config)
        if known.founder and not (home / homes.RUN).exists():
            port = listen_port(config)
            choice = None if port is None else addresses_to_advertise(config, port, of_container(os.environ))
            addresses = addresses or (choice.addresses if choice else ())
            said = announcement.founding(home, config, choice)
        else:
            said = announcement.continuing(home, config)
        if addresses:  # the lines name the invite, and the daemon takes some seconds to start
            invites.write_invite(home, [*addresses, *config.network.seeds], config)
        _print(said, log_format)
        from peers.supervisor import run

        return run(home, command_of(ctx), overrides=flags, log_format=log_format, verbose=verbose, live=not no_live)


def _name_to_found(where: Path, command: Sequence[str]) -> str:
    """Ask on a terminal for the name of a network to found. Founding by mistake would train alone.

    Raises:
        ConfigError: GD-314, there is no terminal, or no name is given.
    """
    from gossipdp.errors import ConfigError

    if sys.stdin.isatty() and sys.stderr.isatty():
        question = f"There is no peer in {where}. Name of a network to found (empty: none)"
        if name := click.prompt(question, default="", show_default=False, err=True).strip():
            return str(name)
    then = f" -- {shlex.join(command)}" if command else ""
    raise ConfigError(
        "GD-314",
        "there is no peer here to start again",
        seen=f"{where} has no home",
        do=f"found a network: `gossipdp up --network NAME{then}`; or join one: `gossipdp join @invite{then}`",
    )


def _complete_invite(_ctx: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Completion of the shell: files whose names begin with `typed`."""
    return [f"@{name}" for name in sorted(glob(escape(typed.removeprefix("@")) + "*"))]


@click.command(cls=WithCommand, options_metavar="[OPTIONS]")
@click.argument("invite", required=False, metavar="[@FILE|-] [-- CMD...]", shell_complete=_complete_invite)
@click.option(
    "--config",
    "run_toml",
    metavar="RUN.toml",
    type=click.Path(readable=False),
    help="Use this file in place of the settings in the invite.",
)
@flags_option
@log_format_option
@verbose_option
@live_option
@home_option
@click.pass_context
def join(
    ctx: click.Context, invite: str | None, run_toml: str | None, log_format: str, verbose: bool, no_live: bool
) -> int:
    """Join a network, and with `-- CMD...` start training.

    The invite comes from @FILE, from standard input (-), or from the variable GOSSIPDP_INVITE. It cannot be an argument
    itself: every user of this host can read the arguments of a command.
    """
    return _join(ctx, invite, run_toml, flags_of(ctx), command_of(ctx), log_format, verbose=verbose, live=not no_live)


@click.command(options_metavar="[OPTIONS]")
@click.argument("invite", required=False, metavar="[@FILE|-]", shell_complete=_complete_invite)
@flags_option
@log_format_option
@verbose_option
@home_option
@click.pass_context
def relay(ctx: click.Context, invite: str | None, log_format: str, verbose: bool) -> int:
    """Carry traffic between hosts that cannot be dialled.

    The peer does nothing else in the network.

    It needs an address that the others can dial, and no GPU: it holds no model. It carries up to 100 Mbit/s;
    `--set network.relay=RATE` sets another limit. It takes the invite as `gossipdp join` does.
    """
    flags = {"network.relay_only": "true"} | flags_of(ctx)
    return _join(ctx, invite, None, flags, [], log_format, verbose=verbose, live=False)


def _join(
    ctx: click.Context,
    invite: str | None,
    run_toml: str | None,
    flags: dict[str, str],
    command: Sequence[str],
    log_format: str,
    *,
    verbose: bool,
    live: bool,
) -> int:
    from gossipdp.runtime.network.proxy import proxy_of
    from peers import announcement, finished, invites
    from peers import home as homes
    from peers.commands.invite_argument import invite_text
    from peers.redeemed import redeemed

    network = invites.read_invite(invite_text(invite))
    home = find_home(ctx, network.invite.network)
    finished.check_unfinished(home)
    file = Path(run_toml) if run_toml else None
    _check_unoccupied(home)
    text = homes.read_text(file) if file is not None else None
    settings = homes.read_config(None, flags, file=file).network
    proxy = proxy_of(settings.proxy, settings.proxy_login)
    # The key of a peer that is refused stays: `members allow` may name it.
    invited = redeemed(home, network.invite, proxy)
    with homes.removed_if_not_started(home):
        homes.join(home, invited, text if text is not None else network.settings or None)
        config = homes.read_config(home, flags)
        homes.keep_addresses(home, config, flags)
        _print(announcement.joining(home, network.invite.network, config.network.seeds), log_format)
        if "GOSSIPDP_INVITE" in os.environ:
            logged = ["--log-format", log_format, *["--verbose"] * verbose, *["--no-live"] * (not live)]
            _restart_without_invite(home, flags, logged, command)
        from peers.supervisor import run

        return run(home, command, overrides=flags, log_format=log_format, verbose=verbose, live=live)


def _check_unoccupied(home: Path) -> None:
    """Raise GD-104 before anything in the home changes. What a killed supervisor has left is no obstacle."""
    from peers.control import occupied, runs
    from peers.rest import left, supervisor

    if supervisor(home) or (runs(home) and not left(home)):
        raise occupied(home)


def _print(lines: Sequence[str], log_format: str) -> None:
    """Print `lines`, or log them as one line of JSON."""
    if log_format == "json":
        import logging

        from peers import logs

        logs.configure("gossipdp", "json")
        logging.getLogger("gossipdp").info("; ".join(" ".join(line.split()) for line in lines))
    else:
        click.echo("\n".join(lines), err=True)


def _restart_without_invite(
    home: Path, flags: Mapping[str, str], logged: Sequence[str], command: Sequence[str]
) -> None:
    """Replace this process by `up` in the new home. Its /proc entry would keep showing the invite."""
    arguments = [*launch.command("peers.cli"), "up", "--home", str(home), *logged]
    for key, value in flags.items():
        arguments += ["--preset", value] if key == "preset" else ["--set", f"{key}={value}"]
    environment = {key: value for key, value in os.environ.items() if key != "GOSSIPDP_INVITE"}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [*arguments, *(["--", *command] if command else [])], environment)
