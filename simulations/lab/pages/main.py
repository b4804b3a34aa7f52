"""`python -m simulations lab SUITE`: play the runs of a suite that have no kept answer, and write its page.

    python -m simulations.lab.pages.main b8 --seeds 3 --jobs 2

Answers are kept in `runs/lab` at once. The answers of a page are kept beside it. `--pack` puts there the answers of a
suite that is not complete. This module defines no suite and plays no run itself.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Final

import torch

from simulations.lab.pages.pictures import draw
from simulations.lab.pages.report import OVERVIEW, About, commit, overview, page
from simulations.lab.runs.answers import SUFFIX, Answer, Answers, pack
from simulations.lab.runs.fingerprints import ROOT, SourceSnapshot
from simulations.lab.runs.runs import AT_START, Task, code_of, name_of, play_all
from simulations.lab.suites import b7, b8, b9, clock, failures, lora, stability, two
from simulations.lab.suites.base import Arm, Findings, Outcome, Results, Scale, Suite
from simulations.lab.suites.figures import formatted

__all__ = ["SUITES", "SuiteError", "lab", "main", "pack_suite", "play_arms", "tasks_of"]

SUITES: dict[str, Suite] = {
    module.SUITE.name: module.SUITE for module in (b7, b8, b9, clock, failures, lora, stability, two)
}

RESULTS: Final = Path(__file__).resolve().parents[2] / "results"
ANSWERS: Final = "answers"
"""folder beside the pages"""
KEPT: Final = Path("runs/lab")
EVERYTHING: Final = (
    "simulations.lab.failures.runs",
    "simulations.lab.lora.runs",
    "simulations.lab.runs.registry",
    "simulations.lab.stability.cells",
    "simulations.lab.theory.consensus",
)
"""modules that import everything that can be played"""


class SuiteError(ValueError):
    """There is no such suite, or the code has changed since this process began."""


def tasks_of(arm: Arm, seeds: int) -> list[Arm]:
    """One arm per seed."""
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
    """Play a suite, write its page and pictures.

    Args:
        name: a key of `SUITES`.
        seeds: seeds per arm.
        jobs: processes.
        any_code: also accept answers of other code; the page says how many.
        kept: folder of single answers.
        out: folder of the page. By default simulations/results, or a folder beside the answers for a quick suite.

    Returns:
        0 if no run failed and no mark was missed, otherwise 1.

    Raises:
        SuiteError: no such suite, or the code on disk is no longer what this process imported.
    """
    suite = _suite(name)
    folder = out or (RESULTS if size != "quick" else kept / "quick")
    # Fingerprints come first, because the code on disk may change while the runs play.
    AT_START.fingerprint(EVERYTHING)
    head = commit(ROOT)
    arms = [tasks_of(arm, seeds) for arm in suite.arms(size)]
    tasks = {name_of(arm.task): arm.task for several in arms for arm in several}
    codes = {place: code_of(task) for place, task in tasks.items()}
    # The processes that play import what is on disk now.
    if changed(tasks, codes):
        raise SuiteError("the code changed since this process began; start it again")
    there = Answers(kept, folder / ANSWERS)
    answers = dict(zip(tasks, play_all(list(tasks.values()), there, jobs=jobs, any_code=any_code), strict=True))
    outcomes = [Outcome(several[0], [answers[name_of(arm.task)] for arm in several]) for several in arms]
    findings = suite.read(Results(outcomes))
    failed = _failed(arms, answers)
    about = About(
        command=command(name, seeds, size),
        seeds=seeds,
        scale=size,
        commit=head,
        machines=sorted({answer.machine for answer in answers.values()}),
        on=date.today().isoformat(),
        runs=len(tasks),
        hours=sum(answer.cpu for answer in answers.values()) / 3600.0,
        older=sum(answer.code != codes[place] for place, answer in answers.items()),
        changed=changed(tasks, codes),
        failed=failed,
    )
    path = _write(suite, findings, about, folder)
    if size != "quick":
        _pack(name, tasks, answers, folder)
    _overview(folder)
    return _print_marks(path, findings, runs=len(tasks), failed=len(failed))


def _write(suite: Suite, findings: Findings, about: About, folder: Path) -> Path:
    """Write the page and its pictures; return the path of the page."""
    text = page(suite, findings, about, _draw(suite, findings, folder))
    path = folder / f"{suite.name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _print_marks(path: Path, findings: Findings, *, runs: int, failed: int) -> int:
    """Print the marks; return 1 if a mark was missed or a run failed."""
    for check in findings.checks:
        print(f"{'met   ' if check.passed else 'MISSED'} {check.name}: {check.measured}, must be {check.mark}")
    met = sum(check.passed for check in findings.checks)
    said = f"{len(findings.checks)} marks, {met} met" if findings.checks else "no marks"
    print(f"{path}: {said}; {runs} runs, {failed} failed")
    return 0 if met == len(findings.checks) and not failed else 1


def play_arms(
    name: str, labels: Sequence[str], *, seeds: int = 3, jobs: int = 1, size: Scale = "normal", kept: Path = KEPT
) -> int:
    """Play some arms of a suite and print their figures, without a page and without marks.

    Returns:
        1 if a run failed, otherwise 0.

    Raises:
        SuiteError: no such suite, or no such arm in it.
    """
    arms = [arm for arm in _suite(name).arms(size) if arm.label in labels]
    if unknown := [label for label in labels if label not in {arm.label for arm in arms}]:
        raise SuiteError(f"no arm {unknown[0]!r} in {name}")
    several = [tasks_of(arm, seeds) for arm in arms]
    tasks = {name_of(arm.task): arm.task for those in several for arm in those}
    answers = dict(zip(tasks, play_all(list(tasks.values()), Answers(kept, RESULTS / ANSWERS), jobs=jobs), strict=True))
    for arm, those in zip(arms, several, strict=True):
        outcome = Outcome(arm, [answers[name_of(each.task)] for each in those])
        print(f"{arm.group}, {arm.label}:")
        print(f"    loss {formatted(outcome.loss)}, of single replicas {formatted(outcome.replica_loss)}")
        print(f"    {formatted(outcome.bytes, 1)} bytes a parameter")
    failed = _failed(several, answers)
    print(*failed, sep="\n", end="\n" * bool(failed))
    return 1 if failed else 0


def pack_suite(
    name: str, *, seeds: int = 3, size: Scale = "normal", kept: Path = KEPT, out: Path | None = None
) -> tuple[int, int]:
    """Put the kept answers of a suite beside the pages, without playing.

    An answer of other code stays if this code has none.

    Returns:
        Runs that this code answered, and all runs.

    Raises:
        SuiteError: no such suite.
    """
    suite, folder = _suite(name), out or RESULTS
    tasks = {name_of(each.task): each.task for arm in suite.arms(size) for each in tasks_of(arm, seeds)}
    there, found, ours = Answers(kept, folder / ANSWERS), {}, 0
    for place, task in tasks.items():
        code = code_of(task)
        answer = there.find(task.spec(), code)
        if answer is not None:
            found[place] = answer
            ours += answer.code == code
    _pack(name, tasks, found, folder)
    return ours, len(tasks)


def _suite(name: str) -> Suite:
    if name not in SUITES:
        raise SuiteError(f"no suite {name!r}; there are {', '.join(SUITES)}")
    # Arms that fill a given time play their clocks here. One thread is faster than two while other processes play.
    torch.set_num_threads(1)
    return SUITES[name]


def _pack(name: str, tasks: Mapping[str, Task], answers: Mapping[str, Answer], folder: Path) -> None:
    pack(folder / ANSWERS / f"{name}{SUFFIX}", {place: task.spec() for place, task in tasks.items()}, answers)


def changed(tasks: Mapping[str, Task], codes: Mapping[str, str]) -> int:
    """Number of tasks whose code on disk now differs from `codes`."""
    now = SourceSnapshot()

    def same(place: str) -> bool:
        try:
            return code_of(tasks[place], now) == codes[place]
        except (OSError, SyntaxError, ModuleNotFoundError):
            return False

    return sum(not same(place) for place in tasks)


def _failed(arms: Sequence[Sequence[Arm]], answers: Mapping[str, Answer]) -> list[str]:
    """Runs that failed, each once, under the first of its arms."""
    found: dict[str, str] = {}
    for arm in (arm for several in arms for arm in several):
        error = answers[name_of(arm.task)].error
        if error:
            found.setdefault(name_of(arm.task), f"{arm.label}, {arm.task.name}: {error}")
    return list(found.values())


def command(name: str, seeds: int, size: Scale) -> str:
    return f"python -m simulations lab {name} --seeds {seeds}" + (f" --{size}" if size != "normal" else "")


def _draw(suite: Suite, findings: Findings, folder: Path) -> dict[str, str]:
    """Draw the pictures; return their file names by graph. Without matplotlib there are none."""
    drawn: dict[str, str] = {}
    try:
        for graph in findings.graphs:
            file = f"{suite.name}-{graph.name}.png"
            draw(graph, folder / file)
            drawn[graph.name] = file
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print("no pictures without matplotlib; `pip install 'gossipdp[demo]'` installs it", file=sys.stderr)
    return drawn


def _overview(folder: Path) -> None:
    """Write the overview of all pages as the folder's README, unless the README is not an overview."""
    path = folder / "README.md"
    if path.exists() and not path.read_text().startswith(OVERVIEW):
        return
    pages = {name: folder / f"{name}.md" for name in SUITES}
    others = {
        page.stem: page.read_text() for page in sorted(folder.glob("*.md")) if page.stem not in (*pages, path.stem)
    }
    text = overview({name: page.read_text() for name, page in pages.items() if page.exists()}, others)
    # Two suites that end at once each leave a whole file.
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulations.lab.pages.main", description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", help="names of suites, or all; without one, list them")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--any-code", action="store_true", help="accept kept answers of earlier code")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", dest="size", action="store_const", const="quick", help="small runs that only test the suite"
    )
    size.add_argument(
        "--full", dest="size", action="store_const", const="full", help="sizes as designed, where those are larger"
    )
    parser.add_argument("--out", type=Path, help="folder of the page")
    parser.add_argument("--only", nargs="+", metavar="ARM", help="play these arms only, and write no page")
    parser.add_argument("--pack", action="store_true", help="play nothing; put finished answers beside the pages")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    if not options.suites:
        for name, suite in SUITES.items():
            print(f"{name:<10} {suite.question}")
        return 0
    missed = 0
    for name in SUITES if options.suites == ["all"] else options.suites:
        try:
            if options.pack:
                there, all_ = pack_suite(name, seeds=options.seeds, size=options.size or "normal", out=options.out)
                print(f"{name}: {there} of {all_} runs have an answer of this code, and are packed")
                continue
            if options.only:
                how = {"seeds": options.seeds, "jobs": options.jobs, "size": options.size or "normal"}
                missed += play_arms(name, options.only, **how)
                continue
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
