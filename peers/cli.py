"""The `gossipdp` command: reads what was typed, hands it to the room that does it, and says how it went.

Nothing heavy is imported before a command needs it, so that `--help` answers at once. Every error of the environment
ends as its text on standard error and its exit code: 0 ok, 2 usage, 3 configuration, 4 cannot reach, 5 refused,
6 mismatch, 7 this host, 8 data or checkpoint, 70 a bug here (the only case with a traceback).
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peers.checkpoints import checkpoint
from peers.options import (
    WithCommand,
    command_of,
    find_home,
    flags_of,
    flags_option,
    home_option,
    json_option,
    log_format_option,
    verbose_option,
)

if TYPE_CHECKING:
    from gossipdp.config import Config

__all__ = ["cli", "main"]


class Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has enough: `gossipdp members | head -1`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return code


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--home", metavar="DIR", help="The peer's home [GOSSIPDP_HOME; ~/.gossipdp/NETWORK].")
@click.pass_context
def cli(ctx: click.Context, home: str | None) -> None:
    """Decentralized data-parallel training: one peer daemon a host, no master, no barrier."""
    ctx.obj = home


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    from gossipdp.errors import GossipdpError, refused_here

    try:
        code = cli.main(args=arguments, prog_name="gossipdp", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        return 130
    except GossipdpError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        refused = refused_here(error)
        print(refused, file=sys.stderr)
        return refused.exit_code
    except Exception:
        import traceback

        traceback.print_exc()
        print("this is a bug in gossipdp: please report it with the lines above", file=sys.stderr)
        return 70


# -- starting ----------------------------------------------------------------------------------------------------


@cli.command(cls=WithCommand, options_metavar="[OPTIONS]")
@click.argument("run_toml", required=False, metavar="[RUN.toml] [-- CMD...]")
@click.option("--network", metavar="NAME", help="The network's name.")
@flags_option
@log_format_option
@verbose_option
@home_option
@click.pass_context
def up(ctx: click.Context, run_toml: str | None, network: str | None, log_format: str, verbose: bool) -> int:
    """Start this host's peer, and with `-- CMD...` its training command.

    In a new home this founds a network; in a home that has joined one it goes on there. RUN.toml is kept in the home;
    flags hold for this start.
    """
    from peers import home as homes

    flags = flags_of(ctx) | ({"network.name": network} if network else {})
    file = Path(run_toml) if run_toml else None
    if file is not None or network:
        home = homes.find_home(ctx.obj, homes.read_config(None, flags, file=file).network.name)
    else:
        from peers.control import runs

        home = homes.find_home(ctx.obj, default="gossipdp", runs=runs)
    config = homes.read_config(home, flags, file=file)
    known = homes.found(home, config, homes.read_text(file) if file is not None else None)
    if (address := homes.advertised(config)) is not None:
        homes.write_invite(home, (address,), config)
    _say(f"network {known.name}, home {home}; to let a host in: gossipdp --home {home} invite", log_format)
    from peers.supervisor import run

    return run(home, command_of(ctx), founder=known.founder, overrides=flags, log_format=log_format, verbose=verbose)


@cli.command(cls=WithCommand, options_metavar="[OPTIONS]")
@click.argument("invite", required=False, metavar="[@FILE|-] [-- CMD...]")
@click.option("--config", "run_toml", metavar="RUN.toml", help="Use this instead of the settings in the invite.")
@flags_option
@log_format_option
@verbose_option
@home_option
@click.pass_context
def join(ctx: click.Context, invite: str | None, run_toml: str | None, log_format: str, verbose: bool) -> int:
    """Join a network, and with `-- CMD...` start the training command.

    The invite is read from @FILE, or from standard input (-), or else from the variable GOSSIPDP_INVITE. It is never
    an argument itself: every user of this host could read it there.
    """
    from peers import home as homes

    network = homes.read_invite(_invite_text(invite))
    flags = flags_of(ctx)
    home = find_home(ctx, network.invite.network)
    file = Path(run_toml) if run_toml else None
    text = homes.read_text(file) if file is not None else None
    homes.join(home, network, text)
    homes.read_config(home, flags)
    _say(f"network {network.invite.network}, home {home}", log_format)
    if "GOSSIPDP_INVITE" in os.environ:
        logged = ["--log-format", log_format, *(["--verbose"] if verbose else [])]
        _go_on_without_invite(home, flags, logged, command_of(ctx))
    from peers.supervisor import run

    return run(home, command_of(ctx), founder=False, overrides=flags, log_format=log_format, verbose=verbose)


def _say(text: str, log_format: str) -> None:
    """Tell people; programs that read the log as JSON get a line of it."""
    if log_format == "json":
        import logging

        from peers import logs

        logs.configure("gossipdp", "json")
        logging.getLogger("gossipdp").info(text)
    else:
        click.echo(text, err=True)


def _go_on_without_invite(home: Path, flags: Mapping[str, str], logged: Sequence[str], command: Sequence[str]) -> None:
    """Replace this process by `up` in the home just made: /proc shows a process's first environment for ever."""
    arguments = [sys.executable, "-P", "-m", "peers.cli", "up", "--home", str(home), *logged]
    for key, value in flags.items():
        arguments += ["--preset", value] if key == "preset" else ["--set", f"{key}={value}"]
    environment = {key: value for key, value in os.environ.items() if key != "GOSSIPDP_INVITE"}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [*arguments, *(["--", *command] if command else [])], environment)


def _invite_text(argument: str | None) -> str:
    from gossipdp.errors import ConfigError
    from gossipdp.runtime.home_paths import expanded

    limit = 16 << 10
    if argument is None:
        if text := os.environ.get("GOSSIPDP_INVITE"):
            return text
        raise click.UsageError("no invite: name one as @FILE or -, or set GOSSIPDP_INVITE")
    if argument == "-":
        return sys.stdin.read(limit)
    if not argument.startswith("@"):
        raise click.UsageError(
            "an invite holds a secret, and every user of this host can read a command's arguments: "
            "write it to a file and say @FILE, pipe it in and say -, or set GOSSIPDP_INVITE"
        )
    try:
        with open(expanded(argument[1:]), encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
                do = (
                    f"chmod 600 {argument[1:]}, or `gossipdp join - < {argument[1:]}` on a read-only mount; "
                    "if another user has read it, `gossipdp keys rotate` on a member"
                )
                seen = f"{argument[1:]} has mode {stat.S_IMODE(status.st_mode):03o}"
                raise ConfigError("GD-206", "the invite, a secret, is open to other users", seen=seen, do=do)
            return file.read(limit)
    except (OSError, UnicodeDecodeError) as error:
        do = "name the file that `gossipdp invite` wrote, as @FILE; this user must be able to read it"
        raise ConfigError("GD-206", "the invite cannot be read", seen=str(error), do=do) from None


@cli.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> int:
    """Four peers on this machine train a model together; ends with a report."""
    import importlib

    return int(importlib.import_module("peers.demo.main").main(list(arguments)) or 0)


@cli.command()
@click.argument("scenario", required=False)
@click.argument("suite", required=False)
@click.option("--seed", default=0, show_default=True, help="All chance of a run comes from it.")
@click.option("--peers", type=click.IntRange(2), help="Instead of the scenario's own number.")
@click.option("--out", metavar="DIR", default="runs/simulate", show_default=True, help="Where the picture goes.")
@click.option("--no-picture", is_flag=True, help="Draw none.")
@click.option("--until-failure", is_flag=True, help="Play seed after seed, from --seed on, until one fails.")
@click.option("--seeds", type=click.IntRange(1), help="With --until-failure: so many at most; of lab: 3.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Of lab: processes.")
@click.option("--quick", is_flag=True, help="Of lab: only see whether it works.")
@click.option("--full", is_flag=True, help="Of lab: as large as designed, where that takes many hours.")
@click.option("--shrink", metavar="SECONDS", type=click.FloatRange(0), default=60.0, show_default=True,
              help="To spend on making a failing run small; 0 leaves it as it is.")  # fmt: skip
@click.option("--replay", metavar="FILE", help="Play a run that was made small.")
@json_option
def simulate(
    scenario: str | None, suite: str | None, replay: str | None, out: str, no_picture: bool, as_json: bool,
    jobs: int, quick: bool, full: bool, **chosen: Any,
) -> int:  # fmt: skip
    """Play SCENARIO in virtual time; without one, say which there are. 1 if an invariant or a mark is missed.

    The simulator runs the very protocol of the daemon over links that are as bad as the scenario says, and checks its
    invariants after every event. `lab SUITE` trains real models by this and by other methods instead; `lab` alone says
    which suites there are.
    """
    from gossipdp.errors import HardwareError

    try:
        from simulations.main import SCENARIOS, Options, UnplayableError, laboratory
        from simulations.main import simulate as play
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("simulations"):
            raise
        raise HardwareError(
            "GD-504",
            "the simulator is not installed: the package holds gossipdp and peers alone",
            seen=str(error),
            do="run this command in a checkout of the sources, installed with `pip install -e .`",
        ) from None
    if scenario is None:
        for name, entry in SCENARIOS.items():
            click.echo(f"{name:<12} {entry.question}")
        click.echo(f"{'lab':<12} Which algorithm, how many bytes, how good a model? (lab alone: its suites)")
        return 0
    options = Options(
        out=Path(out), picture=not no_picture, as_json=as_json, replay=Path(replay) if replay else None, **chosen
    )
    try:
        if scenario == "lab":
            return laboratory(suite, chosen["seeds"], jobs, quick=quick, full=full)
        if suite is not None or quick or full:
            raise UnplayableError("only lab has suites")
        return play(scenario, options)
    except UnplayableError as error:
        raise click.UsageError(str(error)) from None


# -- asking the daemon -------------------------------------------------------------------------------------------


@cli.command()
@json_option
@home_option
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """What this host's peer is doing."""
    from peers import tables
    from peers.control import ask

    answer = ask(find_home(ctx), "status")
    if as_json:
        tables.print_json(answer)
        return
    tables.print_pairs(tables.STATUS_ROWS, answer)
    if answer.get("training") == "attached" and answer.get("loss") is None:
        click.echo("\nNo loss is shown until the training script says peer.report(loss=...).")
    for notice in answer.get("notices") or ():
        click.echo(f"\n{notice}")
    for code, do in (answer.get("do") or {}).items():
        click.echo(f"\n{code}: {do}")


@cli.command()
@click.option("--expect", type=click.IntRange(1), metavar="N", help="Exit with 4 if fewer are alive.")
@json_option
@home_option
@click.pass_context
def members(ctx: click.Context, expect: int | None, as_json: bool) -> None:
    """Who is in the network, as this host's peer sees it."""
    from gossipdp.errors import UnreachableError
    from peers import tables
    from peers.control import ask

    rows = ask(find_home(ctx), "members").get("members") or []
    if as_json:
        tables.print_json(rows)
    else:
        tables.print_table(tables.MEMBER_COLUMNS, rows)
    alive = sum(row.get("state") == "alive" for row in rows)
    if expect is not None and alive < expect:
        raise UnreachableError(
            "GD-107",
            "fewer members than expected",
            seen=f"{alive} alive of {expect}",
            do="wait, or see `gossipdp members` and `gossipdp status` for who is missing and why",
        )


@cli.command()
@home_option
@click.pass_context
def leave(ctx: click.Context) -> None:
    """Finish the chunk in flight, save, say goodbye, stop."""
    from peers.control import ask

    ask(find_home(ctx), "leave", timeout=15.0)
    click.echo("leaving")


@cli.command()
@click.option("--show", is_flag=True, help="Print the invite itself, too.")
@home_option
@click.pass_context
def invite(ctx: click.Context, show: bool) -> None:
    """Write the file that lets another host in, and say how to use it."""
    from gossipdp.errors import UnreachableError
    from peers import home as homes
    from peers.control import ask

    home = find_home(ctx)
    try:
        answer = ask(home, "invite")  # the daemon knows its address, and the flags it was started with
        path, known = Path(answer.get("path") or home / "invite"), [seed for seed in answer.get("seeds", ()) if seed]
    except UnreachableError:
        config = homes.read_config(home)
        known = [seed for seed in (homes.advertised(config), *config.network.seeds) if seed]
        if not known:
            raise
        path = homes.write_invite(home, known, config)
    if not known:
        click.echo(
            "Nobody can dial this peer: add the address of a member that can be, by hand, as [network] seeds.", err=True
        )
    click.echo(f"Wrote {path}: it lets its holder in, so hand it over like a password.")
    click.echo(f"  first dialled:  {', '.join(known) or 'nobody'}")
    click.echo(f"  to use it:      scp {path} HOST:invite")
    click.echo("                  HOST$ gossipdp join @invite -- CMD")
    if show:
        click.echo(path.read_text().strip())


# -- keys and configuration --------------------------------------------------------------------------------------


@cli.group()
def keys() -> None:
    """This peer's key and the network's secret."""


@keys.command("show")
@json_option
@home_option
@click.pass_context
def keys_show(ctx: click.Context, as_json: bool) -> None:
    """The peer's id and the secret's fingerprint; no secret."""
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
            "no peer lives in this home",
            seen=str(error.filename),
            do="`gossipdp up` or `gossipdp join` first",
        ) from None
    if as_json:
        tables.print_json(shown)
    else:
        tables.print_pairs([tables.Column(key, key) for key in shown], shown)


@keys.command("rotate")
@click.option("--yes", is_flag=True, help="Do not ask.")
@home_option
@click.pass_context
def keys_rotate(ctx: click.Context, yes: bool) -> None:
    """Make a new network secret: every other host needs the new invite."""
    from peers import home as homes

    home = find_home(ctx)
    if homes.belonging(home) is None:
        raise click.UsageError(f"{home} belongs to no network")
    if not yes:
        click.confirm("Every peer must join again with a new invite; go on?", abort=True)
    secret = homes.rotate_secret(home)
    (home / "invite").unlink(missing_ok=True)
    click.echo(
        f"New network secret, fingerprint {secret.fingerprint}. Until they have it, peers refuse each other (GD-201)."
    )
    click.echo("Next: stop and start this peer, write a new invite (`gossipdp invite`), and on every other host")
    click.echo("      `gossipdp leave`, then `gossipdp join @invite -- CMD`. Keys, state and run stay.")


@cli.group()
def config() -> None:
    """What is configured, and whether it is right."""


@config.command("check")
@click.argument("run_toml", required=False, metavar="[RUN.toml]")
@flags_option
@json_option
@home_option
@click.pass_context
def config_check(ctx: click.Context, run_toml: str | None, as_json: bool) -> None:
    """Exit with 3, and say file, line, value and range, if something is wrong."""
    from peers import tables

    checked = _config(ctx, run_toml)
    chosen = {key: origin for key, origin in checked.origins.items() if not _brought(origin)}
    if as_json:
        tables.print_json({"network": checked.network.name, "preset": checked.preset, "set": chosen})
        return
    keys = "1 key" if len(chosen) == 1 else f"{len(chosen)} keys"
    click.echo(f"ok: network {checked.network.name}, preset {checked.preset}, {keys} set")


def _brought(origin: str) -> bool:
    """By the preset or by the network that the home belongs to, not by whoever wrote the configuration."""
    return origin.startswith("preset ") or origin.endswith("/network.json")


@config.command("show")
@click.argument("run_toml", required=False, metavar="[RUN.toml]")
@flags_option
@json_option
@home_option
@click.pass_context
def config_show(ctx: click.Context, run_toml: str | None, as_json: bool) -> None:
    """Every key, its value, and where that came from."""
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
    except ConfigError:  # no home, or several: the defaults are worth showing too
        return homes.read_config(None, flags_of(ctx))
    return homes.read_config(home, flags_of(ctx))


cli.add_command(checkpoint)


@cli.command()
@json_option
def version(as_json: bool) -> None:
    """Versions of gossipdp and of its protocol."""
    import platform

    from gossipdp.protocol.wire.messages import PROTOCOL_VERSION
    from peers import tables
    from peers.version import VERSION

    shown = {"gossipdp": VERSION, "protocol": PROTOCOL_VERSION, "python": platform.python_version()}
    if as_json:
        tables.print_json(shown)
    else:
        tables.print_pairs([tables.Column(key, key) for key in shown], shown)


if __name__ == "__main__":
    sys.exit(main())
