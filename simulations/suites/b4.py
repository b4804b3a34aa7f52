"""B4: peers of unequal speed on slow links."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from simulations.lab import Curve
from simulations.lab_clock import lasting
from simulations.lab_problems import ByteMlp
from simulations.lab_runs import Run, link
from simulations.suites.b1 import EPIDEMIC, MLP
from simulations.suites.base import (
    Arm,
    Findings,
    Outcome,
    Reported,
    Results,
    Scale,
    Suite,
    Table,
    arms,
    check,
    curves_table,
    mean,
    reported,
    seconds_graph,
    sized,
    told,
)

__all__ = ["SUITE"]

PEERS: Final = 8
SPEEDS: Final = (1.0, 2.0, 4.0)
MEGABITS, MILLISECONDS = 100.0, 40.0
MODELS: Final = {"10 million parameters": 1e7, "100 million parameters": 1e8}
OURS: Final = "pairwise"
PACED: Final[dict[str, tuple[str, dict[str, Any], int]]] = {
    OURS: ("pairwise", {}, 20),
    "pairwise, one exchange a round": ("pairwise", {"early": 0.0}, 20),
    "epidemic k=128": ("epidemic", EPIDEMIC, 20),
    "DiLoCo fp32, own pace, H 80": ("diloco", {"mu": 0.8, "own_pace": True}, 80),
    "DiLoCo 4-bit, own pace, H 20": ("diloco-4bit", {"mu": 0.8, "own_pace": True}, 20),
    "DiLoCo 4-bit, overlapped, own pace, H 20": ("diloco-4bit-overlapped", {"mu": 0.8, "own_pace": True}, 20),
    "SwarmSGD": ("swarm", {}, 20),
    "GASLoC": ("gasloc", {}, 20),
}
"""fast hosts make more steps; each method with its options and the H asked for"""
ALIKE: Final[dict[str, tuple[str, dict[str, Any], int]]] = {
    "DiLoCo fp32, H 20": ("diloco", {"mu": 0.8}, 20),
    "DiLoCo fp32, H 80": ("diloco", {"mu": 0.8}, 80),
    "DiLoCo fp32, H 320": ("diloco", {"mu": 0.8}, 320),
    "DiLoCo 4-bit, H 20": ("diloco-4bit", {"mu": 0.8}, 20),
    "DiLoCo 4-bit, H 80": ("diloco-4bit", {"mu": 0.8}, 80),
    "DiLoCo 4-bit, overlapped, H 20": ("diloco-4bit-overlapped", {"mu": 0.8}, 20),
}
"""all make as many steps as the slowest"""
WAYS: Final = PACED | ALIKE
SHORT, LONG = (600.0, 1200.0), (1200.0, 2400.0)
LENGTHS: Final = dict.fromkeys(PACED, SHORT) | dict.fromkeys((*ALIKE, "DiLoCo fp32, own pace, H 80"), LONG)
"""seconds of the runs, each with a learning rate that falls over just that run"""
CALM, TARGET = "calm", "DiLoCo fp32"
ABOVE: Final = 0.02
"""nats by which the loss that counts is above what DiLoCo ends with where hosts are equal and links take no time"""
MARKS: Final = {"DiLoCo fp32": 2.0, "DiLoCo 4-bit": 1.2}


def _arms(scale: Scale) -> list[Arm]:
    parameters = ByteMlp().parameters
    calm = sized(replace(MLP, peers=PEERS), scale)
    found = arms(CALM, calm, {TARGET: ("diloco", {"mu": 0.8})})
    for name, size in MODELS.items():
        there = link(MEGABITS, MILLISECONDS, parameters, size)
        for label, (method, options, every) in WAYS.items():
            for length in LENGTHS[label]:
                seconds = length if scale != "quick" else length / 30.0
                setting = replace(calm, every=every, speeds=SPEEDS, link=there)
                setting = lasting(seconds, Run(setting=setting, method=method, options=options), parameters)
                setting = replace(setting, evaluate_every=max(1, setting.rounds // 20))
                found += arms(name, setting, {_label(label, length): (method, options)})
    return found


def _label(way: str, length: float) -> str:
    return f"{way}, {length:.0f} s"


def _time(curves: Sequence[Curve], target: float) -> float:
    """Seconds of one seed to the target: of a run of the length that ends there, by a line between those that were
    played, shortest first; or on the way of one of them, if that was earlier. Infinite if none came to it."""
    before: Curve | None = None
    for curve in curves:
        if curve.last.loss <= target:
            if before is None:
                return curve.when(target)
            share = (before.last.loss - target) / (before.last.loss - curve.last.loss)
            between = before.last.seconds + share * (curve.last.seconds - before.last.seconds)
            return min(between, curve.when(target))
        before = curve
    return math.inf


def _times(outcomes: Mapping[str, Outcome], way: str, target: float) -> list[float]:
    """One a seed of which all lengths were played."""
    runs = zip(*(outcomes[_label(way, length)].answers for length in LENGTHS[way]), strict=True)
    tasks = [outcomes[_label(way, length)].arm.task for length in LENGTHS[way]]
    found = []
    for answers in runs:
        if not any(answer.error for answer in answers):
            curves = [
                task.curve(answer.told) for task, answer in zip(tasks, answers, strict=True) if isinstance(task, Run)
            ]
            found.append(_time(curves, target))
    return found


def _least(way: str, times: Sequence[float]) -> float:
    """Mean; of seeds that never came to the target, the time they were given, which is less than they need."""
    return mean([min(time, LENGTHS[way][-1]) for time in times])


def _read(results: Results) -> Findings:
    target = results[CALM, TARGET].loss + ABOVE
    checks, tables, figures = [], [], []
    for name in MODELS:
        outcomes = results.groups[name]
        times = {way: _times(outcomes, way, target) for way in WAYS}
        rows = [(way, told(values, 0), _rounds(outcomes, way)) for way, values in times.items()]
        columns = ("method", "seconds", "played: rounds of H steps")
        tables += [Table(f"{name}: simulated seconds to {target:.3f} nats", columns, rows)]
        tables += [curves_table(name, outcomes)]
        ours = mean(times[OURS])
        for kind, least in MARKS.items():
            waiting = [way for way in WAYS if way.startswith(kind) and "overlapped" not in way]
            best = min(waiting, key=lambda way: _least(way, times[way]))
            ratio = _least(best, times[best]) / ours
            what = f"{name}: the best {kind}'s seconds to {target:.3f} nats ({best}), by pairwise's"
            checks.append(check(what, f">= {least:.1f}", ratio, ratio >= least, "x", 2))
        figures += [_reported(name, way, times[way], ours) for way in WAYS if "overlapped" in way or "pace" in way]
    return Findings(
        tables, checks, [seconds_graph({name: _longest(results.groups[name]) for name in MODELS})], NOTES, figures
    )


def _reported(name: str, way: str, times: Sequence[float], ours: float) -> Reported:
    return reported(f"{name}: {way}, its seconds by pairwise's", _least(way, times) / ours, "x", 2)


def _rounds(outcomes: Mapping[str, Outcome], way: str) -> str:
    settings = [outcomes[_label(way, length)].setting for length in LENGTHS[way]]
    return "; ".join(f"{setting.rounds} of {setting.every}" for setting in settings)


def _longest(outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    return {way: outcomes[_label(way, LENGTHS[way][-1])] for way in WAYS}


NOTES: Final = (
    "Whom pairwise has to beat is DiLoCo overlapped at its own pace: nobody waits for links or for slower hosts there, "
    "as long as all take part in every round. Where hosts are unequal much of what pairwise has ahead of DiLoCo whose "
    "peers all make as many steps is that it makes more of them.",
    "A method that never came to the target counts in the ratios with the time it was given.",
)

SUITE = Suite(
    name="b4",
    question="What if hosts are unequal and links are slow?",
    about=f"The model of B1, N = {PEERS}, steps of 1 s on the slowest; others are two and four times as fast. Links of "
    "100 Mbit/s, 80 ms there and back, carry as many bytes as a model of 10 or 100 million parameters would send. "
    f"Counted is the time to a loss fixed beforehand, {ABOVE} nats above what DiLoCo ends with after 60 rounds of 20 "
    "where hosts are equal and links take no time. Each method is played for two lengths of time, its learning rate "
    "falling over each, and DiLoCo with several H; the H of the label is the one asked for.",
    arms=_arms,
    read=_read,
)
