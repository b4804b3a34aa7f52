"""Runs of the laboratory as data, and playing them. A suite that was stopped continues where it was.

A `Task` is a question, an `Answer` its result (`answers.py`). This module knows no suite and no page.
"""

from __future__ import annotations

import json
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch

from peers.plan.timeline import Link
from simulations.lab.core import Curve, Method, Point, Setting
from simulations.lab.runs import registry
from simulations.lab.runs.answers import Answer, Answers, key, machine, rounded
from simulations.lab.runs.fingerprints import ROOT, SourceSnapshot
from simulations.lab.runs.registry import METHODS, TASKS

__all__ = ["AT_START", "METHODS", "TASKS", "Answer", "Run", "Task", "code_of", "link", "name_of", "play_all"]


class Task(Protocol):
    """One question to the laboratory, for one seed. A dataclass, so that it can be sent to a process."""

    @property
    def name(self) -> str:
        """Description for the progress lines."""

    def seeded(self, seed: int) -> Task: ...

    def spec(self) -> dict[str, Any]:
        """Everything that the answer depends on except the code."""

    def modules(self) -> set[str]:
        """Modules that the answer depends on; their imports count too."""

    def play(self) -> dict[str, Any]:
        """The answer, as JSON can hold it."""

    def estimate(self) -> float:
        """Rough seconds of one core."""


LONGEST: Final = 300
"""longest error message, characters"""
CODE: Final = (ROOT / "simulations", ROOT / "gossipdp")


# -- runs ----------------------------------------------------------------------------------------------------------


OWN_PACE: Final = {"pairwise", "local-only", "diloco-decoupled"}

SECONDS: Final = {
    "byte-mlp": 0.8e-3,
    "byte-transformer": 10e-3,
    "byte-lora": 6e-3,
}
"""measured seconds of one core per step of one replica, with its share of the rest"""


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
        return self._code()[0]

    def texts(self) -> set[str]:
        """Modules of which only the text counts."""
        return self._code()[1]

    def _code(self) -> tuple[set[str], set[str]]:
        return registry.modules(self.problem, self.method, self.options)

    def made(self) -> Method:
        return METHODS[self.method](**self.options)

    def play(self) -> dict[str, Any]:
        return registry.answered(self.problem, self.data, self.method, self.options, self.setting)

    def curve(self, told: Mapping[str, Any], name: str = "") -> Curve:
        """The curve in an answer of `play`."""
        points = tuple(Point(int(first), *rest) for first, *rest in told["points"])
        return Curve(name or self.method, self.problem, self.setting, told["parameters"], points)

    def estimate(self) -> float:
        setting = self.setting
        paced = self.method in OWN_PACE or self.options.get("own_pace", False)
        own = setting.all_speeds.sum() if paced else float(setting.peers)
        steps = setting.peers * setting.warmup + own * setting.every * setting.rounds
        return 1.0 + float(steps) * SECONDS.get(self.data.get("of", self.problem), 1e-4)


def link(megabits: float, milliseconds: float, parameters: int, as_parameters: float) -> Link:
    """A link of `megabits` Mbit/s and `milliseconds` one way, scaled from a model of `as_parameters` to `parameters`.

    The laboratory trains a smaller model, so its link is narrower in proportion. A transfer of n bytes per parameter
    then lasts as long as with the large model. Headers do not shrink, so they cost more here.
    """
    return Link(bandwidth=megabits * 125_000.0 * parameters / as_parameters, latency=milliseconds / 1000.0)


# -- answers -------------------------------------------------------------------------------------------------------


AT_START: Final = SourceSnapshot()
"""the code as this process imported it"""


def code_of(task: Task, reading: SourceSnapshot = AT_START) -> str:
    """Fingerprint of the code and the versions that the answer depends on.

    Of `gossipdp.protocol` only direct imports count: the laboratory uses its constants, schedule and messages, but none
    of its state machines. The Python version counts because language models learn from the standard library.
    """
    texts = task.texts() if isinstance(task, Run) else set()
    code = reading.fingerprint(task.modules(), shallow="gossipdp.protocol", texts=texts)
    return f"{platform.python_version()} {torch.__version__} {np.__version__} {code}"


def name_of(task: Task) -> str:
    """The name under which the answer is kept."""
    return key(task.spec())


def answer(task: Task, code: str) -> Answer:
    """Play the task here and now, on one core. `code` is the fingerprint of the code."""
    torch.set_num_threads(1)
    began = time.process_time()
    try:
        # A result that JSON cannot hold fails this run, not the whole suite.
        told = rounded(json.loads(json.dumps(task.play(), default=list)))
    except Exception as error:
        return Answer({}, code, time.process_time() - began, _described(error), machine())
    return Answer(told, code, time.process_time() - began, machine=machine())


def _described(error: Exception) -> str:
    """Type, message, and the innermost place in this project."""
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    ours = [f"{path.relative_to(ROOT)}:{line}" for path, line in frames if any(map(path.is_relative_to, CODE))]
    message = " ".join(str(error).split())[:LONGEST]
    return f"{type(error).__name__}: {message} ({ours[-1]})"


def play_all(
    tasks: Sequence[Task],
    kept: Answers,
    *,
    jobs: int = 1,
    any_code: bool = False,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> list[Answer]:
    """Answers to all tasks, in order. Finished runs are kept at once, so an interrupted call plays none of them again.

    Args:
        kept: where answers are found and kept.
        jobs: processes.
        any_code: also accept kept answers of other code.
        say: receives progress lines.
    """
    places = [name_of(task) for task in tasks]
    answers: dict[str, Answer] = {}
    left: dict[str, tuple[Task, str]] = {}
    for place, task in zip(places, tasks, strict=True):
        # Fingerprints come before the first run, because the files on disk may change later.
        code = code_of(task)
        found = kept.find(task.spec(), code)
        if found is not None and (any_code or found.code == code):
            answers[place] = found
        else:
            left[place] = task, code
    expected = sum(task.estimate() for task, _ in left.values())
    say(f"{len(set(places))} runs, {len(answers)} of them kept; about {expected / 60.0:.0f} minutes of one core to go")
    began, expected_done = time.monotonic(), 0.0
    for count, (place, found) in enumerate(_played(left, jobs), 1):
        answers[place], task = found, left[place][0]
        if not found.error:
            kept.keep(task.spec(), found)
        expected_done += task.estimate()
        to_go = (time.monotonic() - began) * (expected / expected_done - 1.0)
        said = found.error or f"{found.cpu:.0f} s"
        say(f"{count}/{len(left)} {task.name}: {said}; about {to_go / 60.0:.0f} min to go")
    return [answers[place] for place in places]


def _played(left: Mapping[str, tuple[Task, str]], jobs: int) -> Iterator[tuple[str, Answer]]:
    # The longest run goes first, so the last process does not keep the others waiting.
    ordered = sorted(left, key=lambda place: -left[place][0].estimate())
    if jobs == 1 or len(left) < 2:
        yield from ((place, answer(*left[place])) for place in ordered)
        return
    with ProcessPoolExecutor(min(jobs, len(left)), mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(answer, *left[place]): place for place in ordered}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)
