"""`python -m simulations`: the simulator and the laboratory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from gossipdp.errors import GossipdpError
from peers.options import json_option
from simulations.main import SCENARIOS, Options, UnplayableError, laboratory
from simulations.main import simulate as play

__all__ = ["main", "simulate"]


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.argument("scenario", required=False)
@click.argument("suite", required=False)
@click.option("--seed", default=0, show_default=True, help="Seed of all random numbers.")
@click.option("--peers", type=click.IntRange(2), help="Number of peers, in place of the scenario's.")
@click.option("--out", metavar="DIR", default="runs/simulate", show_default=True, help="Folder for the picture.")
@click.option("--no-picture", is_flag=True, help="Draw no picture.")
@click.option("--until-failure", is_flag=True, help="Play seed after seed, from --seed on, until one fails.")
@click.option("--seeds", type=click.IntRange(1), help="With --until-failure: seeds at most. lab: seeds per arm (3).")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="lab: processes.")
@click.option("--quick", is_flag=True, help="lab: a short check that the suite works.")
@click.option("--full", is_flag=True, help="lab: full size, also where it takes many hours.")
@click.option("--shrink", metavar="SECONDS", type=click.FloatRange(0), default=60.0, show_default=True,
              help="Time to shrink a failing run; 0: do not shrink.")  # fmt: skip
@click.option("--replay", metavar="FILE", help="Play a shrunken run.")
@json_option
def simulate(
    scenario: str | None, suite: str | None, replay: str | None, out: str, no_picture: bool, as_json: bool,
    jobs: int, quick: bool, full: bool, **chosen: Any,
) -> int:  # fmt: skip
    """Play SCENARIO in virtual time, or list the scenarios. Exit with 1 if a check fails.

    The simulator runs the protocol of the daemon over links as bad as the scenario says, and checks the invariants
    after every event. `lab SUITE` trains real models by this and other methods; `lab` alone lists the suites.
    """
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return the exit code."""
    try:
        code: int = simulate.main(args=arguments, prog_name="python -m simulations", standalone_mode=False)
        return code
    except click.ClickException as error:
        error.show()
        return 2
    except GossipdpError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130


if __name__ == "__main__":
    sys.exit(main())
