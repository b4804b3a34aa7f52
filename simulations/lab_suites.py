"""`gossipdp simulate lab SUITE`: plays a suite's runs, those not kept from before, and writes its page.

    python -m simulations.lab_suites b1 --seeds 3 --jobs 2

Answers are kept in `runs/lab`, whatever ends this. No suite may stand here (`suites`), nor how a run is played
(`lab_runs`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from simulations.lab_pictures import draw
from simulations.lab_report import About, commit, machine, page
from simulations.lab_runs import code_of, play_all
from simulations.sources import ROOT
from simulations.suites import (
    b1,
    b2,
    b3,
    b4,
    b5,
    b6,
    b7,
    b8,
    b9,
    clock,
    controller,
    defaults,
    scale,
    trials,
    warmstart,
)
from simulations.suites.base import Arm, Findings, Outcome, Results, Scale, Suite

__all__ = ["SUITES", "SuiteError", "lab", "main", "tasks_of"]

SUITES: dict[str, Suite] = {
    module.SUITE.name: module.SUITE
    for module in (b1, b2, b3, b4, b5, b6, b7, b8, b9, clock, scale, warmstart, defaults, controller, trials)
}

RESULTS: Final = Path(__file__).resolve().parent / "results"
KEPT: Final = Path("runs/lab")


class SuiteError(ValueError):
    """There is no such suite."""


def tasks_of(arm: Arm, seeds: int) -> list[Arm]:
    """One arm for each seed of it."""
    count = seeds if arm.seeds is None else min(seeds, arm.seeds)
    return [replace(arm, task=arm.task.seeded(seed)) for seed in range(count)]


def lab(
    name: str,
    *,
    seeds: int = 3,
    jobs: int = 1,
    size: Scale = "normal",
    any_code: bool = False,
    kept: Path = KEPT,
    out: Path | None = None,
) -> int:
    """Play, tell, draw. 0 if every mark is met, 1 if not.

    Args:
        any_code: take answers of other code than this as well; the page says how many.
        out: folder of the page; the checkout's results, or beside the answers if this is not a whole suite.

    Raises:
        SuiteError: no such suite.
    """
    if name not in SUITES:
        raise SuiteError(f"no suite {name!r}; there are {', '.join(SUITES)}")
    suite = SUITES[name]
    folder = out or (RESULTS if size != "quick" else kept / "quick")
    arms = [tasks_of(arm, seeds) for arm in suite.arms(size)]
    tasks = [arm.task for several in arms for arm in several]
    answers = iter(play_all(tasks, kept, jobs=jobs, any_code=any_code))
    outcomes = [Outcome(several[0], [next(answers) for _ in several]) for several in arms]
    findings = suite.read(Results(outcomes))
    pictures = _draw(suite, findings, folder)
    every = [(arm, answer) for several, outcome in zip(arms, outcomes, strict=True)
             for arm, answer in zip(several, outcome.answers, strict=True)]  # fmt: skip
    about = About(
        command=command(name, seeds, size),
        seeds=seeds,
        scale=size,
        commit=commit(ROOT),
        machine=machine(),
        runs=len(tasks),
        hours=sum(answer.cpu for _, answer in every) / 3600.0,
        older=sum(answer.code != code_of(arm.task) for arm, answer in every),
        failed=[f"{arm.label}, {arm.task.name}: {answer.error}" for arm, answer in every if answer.error],
    )
    text = page(suite, findings, about, pictures)
    path = folder / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    for check in findings.checks:
        print(f"{'met   ' if check.passed else 'MISSED'} {check.name}: {check.measured}, must be {check.mark}")
    print(f"{path}: {len(findings.checks)} marks, {sum(check.passed for check in findings.checks)} met")
    return 0 if all(check.passed for check in findings.checks) else 1


def command(name: str, seeds: int, size: Scale) -> str:
    return f"gossipdp simulate lab {name} --seeds {seeds}" + (f" --{size}" if size != "normal" else "")


def _draw(suite: Suite, findings: Findings, folder: Path) -> dict[str, str]:
    """File names of the pictures by graph; none without matplotlib."""
    drawn: dict[str, str] = {}
    try:
        for graph in findings.graphs:
            file = f"{suite.name}-{graph.name}.png"
            draw(graph, folder / file)
            drawn[graph.name] = file
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print("no pictures: `pip install 'gossipdp[demo]'` brings matplotlib", file=sys.stderr)
    return drawn


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulations.lab_suites", description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", help="none: say which there are; all: every one")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--any-code", action="store_true", help="take answers that earlier code gave")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const="quick", help="does it work? tells nothing")
    size.add_argument("--full", dest="size", action="store_const", const="full", help="as designed, where dearer")
    parser.add_argument("--out", type=Path, help="folder of the page")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.jobs < 1:
        parser.error("at least one seed, one process")
    if not options.suites:
        for name, suite in SUITES.items():
            print(f"{name:<10} {suite.question}")
        return 0
    missed = 0
    for name in SUITES if options.suites == ["all"] else options.suites:
        try:
            missed += lab(
                name,
                seeds=options.seeds,
                jobs=options.jobs,
                size=options.size or "normal",
                any_code=options.any_code,
                out=options.out,
            )
        except SuiteError as error:
            parser.error(str(error))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
