"""Runs of the laboratory as data, and their answers kept in files: a suite that was stopped goes on where it was.

A `Task` is what can be asked, an `Answer` what came of it, kept as JSON under a name made from the task alone. With it
stands a fingerprint of the code that was run, so that an answer of other code is not taken for one of this. No suite
may stand here, nor how anything is told.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch

from gossipdp.codecs import COMPRESSORS
from simulations.baselines import BASELINES
from simulations.lab import Curve, Link, Method, Point, Problem, Setting, play
from simulations.lab_attacked import AttackedPairwise, RobustEpochs
from simulations.lab_conditions import ChurningEpidemic, ChurningPairwise, FlippedLabels, Started
from simulations.lab_controller import ControlledGossip
from simulations.lab_epidemic import EpidemicGossip
from simulations.lab_methods import PairwiseGossip, PairwiseOptions
from simulations.lab_problems import PROBLEMS
from simulations.lab_trial_groups import GroupGossip
from simulations.lab_trial_momentum import MomentumGossip
from simulations.lab_trial_wrapped import OutlierGossip, RotatedGossip
from simulations.sources import fingerprint

__all__ = ["METHODS", "Answer", "Run", "Task", "code_of", "link", "play_all"]


class Task(Protocol):
    """One question to the laboratory, from one seed; a dataclass, so that processes can be handed it."""

    @property
    def name(self) -> str:
        """For whoever waits."""

    def seeded(self, seed: int) -> Task: ...

    def spec(self) -> dict[str, Any]:
        """All that the answer depends on but the code."""

    def modules(self) -> set[str]:
        """Where the code begins that the answer depends on."""

    def play(self) -> dict[str, Any]:
        """The answer, as JSON can hold it."""

    def estimate(self) -> float:
        """Seconds of one core, roughly."""


@dataclass(frozen=True)
class Answer:
    told: dict[str, Any]
    code: str
    """fingerprint of the code that gave it"""
    cpu: float
    """seconds of one core"""
    error: str = ""
    """why there is none"""


# -- runs ----------------------------------------------------------------------------------------------------------


def _baseline(name: str) -> Callable[..., Method]:
    def make(**options: Any) -> Method:
        if "compressor" in options:
            options["compressor"] = COMPRESSORS[options["compressor"]]
        method: Any = BASELINES[name]()
        made: Method = replace(method, **options) if options else method
        return made

    return make


def _pairwise(**options: Any) -> Method:
    return PairwiseGossip(PairwiseOptions(**options))


def _churning(*, every: int = 5, share: float = 0.1, **options: Any) -> Method:
    return ChurningPairwise(PairwiseOptions(**options), every=every, share=share)


def _controlled(*, acts: bool, **options: Any) -> Method:
    return ControlledGossip(PairwiseOptions(**options), acts=acts)


def _attacked(*, attack: str, bad: int, **options: Any) -> Method:
    return AttackedPairwise(PairwiseOptions(landing="at once", **options), attack, bad)


def _rotated(**options: Any) -> Method:
    return RotatedGossip(PairwiseOptions(**options))


def _outliers(*, count: int = 2, **options: Any) -> Method:
    return OutlierGossip(PairwiseOptions(**options), count=count)


def _momentum(*, parts: int = 4, **options: Any) -> Method:
    return MomentumGossip(PairwiseOptions(**options), parts=parts)


def _groups(*, size: int, always: bool = True, **options: Any) -> Method:
    return GroupGossip(PairwiseOptions(**options), size=size, always=always)


METHODS: dict[str, Callable[..., Method]] = {
    **{name: _baseline(name) for name in BASELINES},
    "pairwise": _pairwise,
    "pairwise-churning": _churning,
    "pairwise-attacked": _attacked,
    "pairwise-controlled": _controlled,
    "pairwise-rotated": _rotated,
    "pairwise-outliers": _outliers,
    "pairwise-momentum": _momentum,
    "pairwise-groups": _groups,
    "epidemic": EpidemicGossip,
    "epidemic-churning": ChurningEpidemic,
    "epidemic-epochs": RobustEpochs,
}
"""what makes a method from its options; those of a baseline are the fields of its class"""

TASKS: dict[str, Callable[..., Problem]] = {**PROBLEMS, "started": Started, "flipped": FlippedLabels}
"""what is trained: problems, and problems under conditions, which name the problem that they are `of`"""

OWN_PACE: Final = {
    "pairwise",
    "pairwise-churning",
    "pairwise-controlled",
    "epidemic",
    "epidemic-churning",
    "server-async",
    "swarm",
    "gasloc",
    "local-only",
    "ad-psgd",
}

SECONDS: Final = {"byte-mlp": 1.2e-3, "byte-transformer": 23e-3, "digits-mlp": 0.2e-3, "digits-cnn": 3e-3}
"""of one core, one step of one replica and its share of the rest, as measured"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One method on one problem."""

    setting: Setting
    problem: str = "byte-mlp"
    data: Mapping[str, Any] = field(default_factory=dict)
    """options of the problem"""
    method: str = "pairwise"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        setting = self.setting
        return f"{self.method} on {self.problem}, {setting.peers} peers, {setting.rounds} rounds, seed {setting.seed}"

    def seeded(self, seed: int) -> Run:
        return replace(self, setting=replace(self.setting, seed=seed))

    def spec(self) -> dict[str, Any]:
        return {"kind": "run", **asdict(self)}

    def modules(self) -> set[str]:
        found: set[str] = {"simulations.lab", TASKS[self.problem].__module__}
        if "of" in self.data:
            found.add(PROBLEMS[self.data["of"]].__module__)
        return found | {type(self.made()).__module__}

    def _problem(self) -> Problem:
        return TASKS[self.problem](**self.data)

    def made(self) -> Method:
        return METHODS[self.method](**self.options)

    def play(self) -> dict[str, Any]:
        method = self.made()
        curve = play(self._problem(), method, self.setting)
        return {
            "parameters": curve.parameters,
            "points": [list(point) for point in curve.points],
            "facts": _facts(method),
        }

    def curve(self, told: Mapping[str, Any], name: str = "") -> Curve:
        """What `play` answered."""
        points = tuple(Point(int(first), *rest) for first, *rest in told["points"])
        return Curve(name or self.method, self.problem, self.setting, told["parameters"], points)

    def estimate(self) -> float:
        setting = self.setting
        paced = self.method in OWN_PACE or self.options.get("own_pace", False)
        own = setting.all_speeds.sum() if paced else float(setting.peers)
        steps = setting.peers * setting.warmup + own * setting.every * setting.rounds
        return 1.0 + float(steps) * SECONDS.get(self.data.get("of", self.problem), 1e-4)


def _facts(method: Method) -> dict[str, float]:
    """What a method of ours has counted."""
    match method:
        case ControlledGossip():
            half = method.ratios[len(method.ratios) // 2 :]
            seen = {"ratio": float(np.nanmean(half)), "level": method.levels[-1]}
            return {**asdict(method.tally), **seen}
        case PairwiseGossip():
            return asdict(method.tally)
    return {}


def link(megabits: float, milliseconds: float, parameters: int, as_parameters: float) -> Link:
    """A link of so many Mbit/s, as it is to a model of `as_parameters` parameters.

    The laboratory trains a smaller one: its link is narrower by as much, so that a transfer of so many bytes for each
    parameter lasts as long as it would with the other. Headers are as many for each parameter as here, which is more.
    """
    return Link(bandwidth=megabits * 125_000.0 * parameters / as_parameters, latency=milliseconds / 1000.0)


# -- answers -------------------------------------------------------------------------------------------------------


def code_of(task: Task) -> str:
    """Fingerprint of the code that the answer depends on.

    Of `gossipdp.protocol` only what is imported directly: the laboratory uses its constants, schedule and messages,
    and none of its state machines. The standard library's sources are what language models learn from.
    """
    return f"{platform.python_version()} {fingerprint(task.modules(), shallow='gossipdp.protocol')}"


def _place(folder: Path, task: Task) -> Path:
    told = json.dumps(task.spec(), sort_keys=True, default=list)
    return folder / f"{hashlib.sha256(told.encode()).hexdigest()[:24]}.json"


def read(folder: Path, task: Task) -> Answer | None:
    """The answer kept for this task, whatever code gave it."""
    try:
        kept = json.loads(_place(folder, task).read_text())
        return Answer(kept["told"], kept["code"], kept["cpu"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def keep(folder: Path, task: Task, answer: Answer) -> None:
    path = _place(folder, task)
    path.parent.mkdir(parents=True, exist_ok=True)
    told = {"spec": task.spec(), "code": answer.code, "cpu": round(answer.cpu, 2), "told": answer.told}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(told, default=list))
    partial.replace(path)


def answer(task: Task) -> Answer:
    """Play it here and now, on one core."""
    torch.set_num_threads(1)
    code = code_of(task)
    began = time.process_time()
    try:
        told = task.play()
    except (ArithmeticError, RuntimeError, ValueError) as error:
        # A method that fell over is a result of its own, and no reason to lose the others.
        return Answer({}, code, time.process_time() - began, f"{type(error).__name__}: {error}")
    return Answer(told, code, time.process_time() - began)


def play_all(
    tasks: Sequence[Task],
    folder: Path,
    *,
    jobs: int = 1,
    any_code: bool = False,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> list[Answer]:
    """Answers to all, in order: kept ones where the code is the same (any, if `any_code`), others by `jobs` processes.

    What is finished is kept at once, so that nothing is played twice whenever this ends.
    """
    places = [_place(folder, task) for task in tasks]
    answers: dict[Path, Answer] = {}
    left: dict[Path, Task] = {}
    for place, task in zip(places, tasks, strict=True):
        # Of all, and now: what is read of the code later may no longer be what was imported.
        kept, code = read(folder, task), code_of(task)
        if kept is not None and (any_code or kept.code == code):
            answers[place] = kept
        else:
            left[place] = task
    expected = sum(task.estimate() for task in left.values())
    say(f"{len(set(places))} runs, {len(answers)} of them kept; about {expected / 60.0:.0f} minutes of one core to go")
    began, expected_done = time.monotonic(), 0.0
    for count, (place, found) in enumerate(_played(left, jobs), 1):
        answers[place], task = found, left[place]
        if not found.error:
            keep(folder, task, found)
        expected_done += task.estimate()
        to_go = (time.monotonic() - began) * (expected / expected_done - 1.0)
        said = found.error or f"{found.cpu:.0f} s"
        say(f"{count}/{len(left)} {task.name}: {said}; about {to_go / 60.0:.0f} min to go")
    return [answers[place] for place in places]


def _played(left: Mapping[Path, Task], jobs: int) -> Iterator[tuple[Path, Answer]]:
    # The longest first: at the end no process waits long for the last.
    ordered = sorted(left, key=lambda place: -left[place].estimate())
    if jobs == 1 or len(left) < 2:
        yield from ((place, answer(left[place])) for place in ordered)
        return
    with ProcessPoolExecutor(min(jobs, len(left)), mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(answer, left[place]): place for place in ordered}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)
