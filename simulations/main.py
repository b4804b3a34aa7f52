"""What `python -m simulations` plays: a scenario, told as a table, as JSON and as a picture, or a search for bad seeds.

A run passes if no invariant broke and every mark was met. A broken invariant is shrunk (`shrink`) and told line by
line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simulations.scenarios import chaos, churn, flash_crowd, mass_kill, partition, shrink, stragglers
from simulations.scenarios.base import Scenario, play
from simulations.scenarios.detection.report import detection_report
from simulations.scenarios.findings import Report
from simulations.scenarios.reports import cold_start_report, data_report, relayed_report, scale_report

__all__ = ["SCENARIOS", "Entry", "Options", "UnplayableError", "laboratory", "simulate"]


class UnplayableError(ValueError):
    """The scenario does not exist, or does not take these options."""


@dataclass(frozen=True)
class Entry:
    question: str
    peers: int
    """default number of peers; 0 if the seed decides"""
    run: Callable[[int, int], Report]
    scenario: Scenario | None = None
    """set for scenarios of whole peers, whose plans can shrink"""
    least: int = 2


def of_whole_peers(scenario: Scenario) -> Entry:
    """Entry of a scenario that has plans."""

    def run(seed: int, peers: int) -> Report:
        return play(scenario, seed, peers)

    return Entry(scenario.question, scenario.peers, run, scenario, scenario.least)


SCENARIOS = {
    "chaos": of_whole_peers(chaos.SCENARIO),
    "churn": of_whole_peers(churn.SCENARIO),
    "cold-start": Entry("Does a network go on after a power cut of all its hosts?", 0, cold_start_report),
    "data": Entry("Is every sample used, and are few used twice?", 16, data_report, least=4),
    "detection": Entry("Are dead members found, and only dead ones?", 128, detection_report, least=32),
    "flash-crowd": of_whole_peers(flash_crowd.SCENARIO),
    "mass-kill": of_whole_peers(mass_kill.SCENARIO),
    "partition": of_whole_peers(partition.SCENARIO),
    "relayed": Entry("Do a few relays carry a network of hidden peers?", 1000, relayed_report, least=20),
    "scale": Entry("Does membership carry a thousand members?", 1000, scale_report, least=8),
    "stragglers": of_whole_peers(stragglers.SCENARIO),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command line."""

    seed: int = 0
    peers: int | None = None
    out: Path = Path("runs/simulate")
    as_json: bool = False
    picture: bool = True
    until_failure: bool = False
    seeds: int | None = None
    """most seeds to play with `until_failure`"""
    shrink: float = 60.0
    """CPU seconds for shrinking a failing run; 0 leaves it as it is"""
    replay: Path | None = None
    """file of a shrunk run to play instead of a seed"""


def simulate(name: str, options: Options) -> int:
    """Play a scenario, show and draw its report.

    Returns:
        0 if all passed, 1 if not.

    Raises:
        UnplayableError: no such scenario, too few peers, or a file that holds no run.
    """
    if name not in SCENARIOS:
        raise UnplayableError(f"no scenario {name!r}; there are {', '.join(SCENARIOS)}")
    entry = SCENARIOS[name]
    if options.peers is not None and options.peers < entry.least:
        raise UnplayableError(f"{name} takes at least {entry.least} peers")
    if options.replay is not None:
        if entry.scenario is None:
            raise UnplayableError(f"{name} has no plan to replay")
        try:
            seed, plan = shrink.plan_from_json(options.replay.read_text())
        except ValueError as error:
            raise UnplayableError(f"{options.replay} holds no run: {error}") from None
        return _show(name, entry, play(entry.scenario, seed, plan=plan), options)
    if not options.until_failure:
        return _show(name, entry, entry.run(options.seed, options.peers or entry.peers), options)
    report = _search(name, entry, options)
    return 0 if report is None else _show(name, entry, report, options)


def laboratory(suite: str | None, seeds: int | None, jobs: int, *, quick: bool = False, full: bool = False) -> int:
    """Play a suite of the laboratory, or list the suites. The laboratory is imported only here, because it needs torch.

    Args:
        suite: name of the suite; None lists all.
        seeds: number of seeds; 3 by default.
        jobs: number of processes.
        quick, full: size of the suite, at most one of them.

    Raises:
        UnplayableError: no such suite, or both sizes.
    """
    if quick and full:
        raise UnplayableError("a suite is played --quick or --full")
    from simulations.lab.pages.main import SUITES, SuiteError, lab

    if suite is None:
        for name, entry in SUITES.items():
            print(f"{name:<12} {entry.question}")
        return 0
    try:
        return lab(suite, seeds=seeds or 3, jobs=jobs, size="quick" if quick else "full" if full else "normal")
    except SuiteError as error:
        raise UnplayableError(str(error)) from None


def _search(name: str, entry: Entry, options: Options) -> Report | None:
    """Play seed after seed until one fails. Return its report, or None."""
    began, played = time.perf_counter(), 0
    live = sys.stderr.isatty()
    while options.seeds is None or played < options.seeds:
        seed = options.seed + played
        report = entry.run(seed, options.peers or entry.peers)
        played += 1
        spent = time.perf_counter() - began
        line = f"{name}: {played} seeds, the last {seed}, {spent:.0f} s, {played / spent:.2g} seeds/s"
        if not report.passed:
            print(f"{line}; seed {seed} fails", file=sys.stderr)
            return report
        if live:
            print(f"\r{line}; none failed ", end="", file=sys.stderr, flush=True)
        elif played % 25 == 0:
            print(f"{line}; none failed", file=sys.stderr, flush=True)
    print(f"{chr(13) * live}{name}: {played} seeds from {options.seed} on, none failed ", file=sys.stderr)
    return None


def command(name: str, report: Report, options: Options) -> str:
    """The command that plays the run again."""
    if options.replay is not None:
        return f"python -m simulations {name} --replay {options.replay}"
    peers = f" --peers {options.peers}" if options.peers is not None else ""
    return f"python -m simulations {name} --seed {report.seed}{peers}"


def _show(name: str, entry: Entry, report: Report, options: Options) -> int:
    stem = f"{name}-seed{report.seed}" + ("-replayed" if options.replay else "")
    replay = command(name, report, options)
    picture = _draw(report, options.out / f"{stem}.png") if options.picture else ""
    if not options.as_json:
        from simulations.scenarios.tables import print_report

        print_report(report, picture, replay)
    told = _smaller(name, entry, report, options, stem) if report.failure is not None else None
    if options.as_json:
        print(json.dumps(_json(report, picture, replay) | {"shrunk": told and told[0]}, indent=2))
    elif told is not None:
        print(told[1])
    return 0 if report.passed else 1


def _smaller(name: str, entry: Entry, report: Report, options: Options, stem: str) -> tuple[str, str] | None:
    """Shrink the failing run and keep it in a file. Return the command that replays it, and its story."""
    if options.shrink <= 0 or options.replay is not None or report.plan is None or report.failure is None:
        return None
    print("shrinking the run ...", file=sys.stderr, flush=True)
    small = shrink.shrink(
        report.seed,
        report.plan,
        report.failure,
        budget=options.shrink,
        say=lambda line: print(f"  {line}", file=sys.stderr, flush=True),
    )
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / f"{stem}-small.json"
    kept.write_text(shrink.plan_to_json(small.seed, small.plan))
    replay = f"python -m simulations {name} --replay {kept}"
    story = shrink.story(small)
    kept.with_suffix(".txt").write_text(f"{story}\n")
    heading = f"\nshrunk in {small.runs} runs, {small.seconds:.0f} s; replay: {replay}\n\n"
    return replay, heading + story


def _draw(report: Report, path: Path) -> str:
    try:
        from simulations.scenarios.picture import draw

        draw(report, path)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print("no picture: `pip install 'gossipdp[demo]'` brings matplotlib", file=sys.stderr)
        return ""
    return str(path)


def _json(report: Report, picture: str, replay: str) -> dict[str, Any]:
    found = report.findings
    return {
        "scenario": report.scenario,
        "question": report.question,
        "seed": report.seed,
        "peers": report.peers,
        "passed": report.passed,
        "violation": report.violation,
        "checks": [asdict(check) for check in found.checks],
        "rows": [dict(zip(found.columns, row, strict=True)) for row in found.rows],
        "events": report.events,
        "virtual_seconds": report.seconds,
        "seconds": round(report.wall, 3),
        "log_hash": report.log_hash,
        "picture": picture,
        "replay": replay,
    }
