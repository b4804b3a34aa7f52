"""The `gossipdp` command. Commands are in `peers.commands`; here are the group, its exit codes and `version`.

Modules that are slow to import are imported inside a command, so that `--help` answers at once. An error is one text on
standard error and an exit code: 2 usage, 3 configuration, 4 unreachable, 5 refused, 6 mismatch, 7 this host, 8 data or
checkpoint, 70 a bug in gossipdp. Only a bug prints a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from peers.commands.ask import leave, status
from peers.commands.checkpoint import checkpoint
from peers.commands.configuration import config
from peers.commands.demo import demo
from peers.commands.doctor import doctor
from peers.commands.explain import explain
from peers.commands.finish import finish
from peers.commands.invite import invite
from peers.commands.keys import keys
from peers.commands.members import members
from peers.commands.plan import plan
from peers.commands.report import report
from peers.commands.start import join, relay, up
from peers.commands.top import top
from peers.options import json_option

__all__ = ["cli", "main"]


class Commands(click.Group):
    """Commands in the order in which a user meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # as in `gossipdp members | head -1`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return code


def show_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from peers.version import VERSION

        click.echo(f"gossipdp {VERSION}")
        ctx.exit()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nCompletion in bash, and with zsh_source or fish_source in these shells:\n"
    '  eval "$(_GOSSIPDP_COMPLETE=bash_source gossipdp)"',
)
@click.option("--home", metavar="DIR", type=click.Path(file_okay=False, readable=False),
              help="The peer's home. [default: GOSSIPDP_HOME, else ~/.gossipdp/NETWORK]")  # fmt: skip
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version,
              help="Show the version and exit.")  # fmt: skip
@click.pass_context
def cli(ctx: click.Context, home: str | None) -> None:
    """Train one model on many hosts: one peer per host, no master, no barrier.

    A first run is `gossipdp demo`. A network starts with `gossipdp up` on one host and `gossipdp join` on the others.
    """
    ctx.obj = home


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return the exit code."""
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


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Show the versions of gossipdp and of its protocol."""
    import platform

    from gossipdp.protocol.wire.messages import PROTOCOL_VERSION
    from peers import tables
    from peers.version import VERSION

    shown = {"gossipdp": VERSION, "protocol": PROTOCOL_VERSION, "python": platform.python_version()}
    if as_json:
        tables.print_json(shown)
    else:
        tables.print_pairs([tables.Column(key, key) for key in shown], shown)


for command in (
    demo,
    up,
    join,
    relay,
    invite,
    status,
    members,
    doctor,
    top,
    finish,
    leave,
    config,
    explain,
    keys,
    checkpoint,
    plan,
    report,
    version,
):
    cli.add_command(command)

if __name__ == "__main__":
    sys.exit(main())
