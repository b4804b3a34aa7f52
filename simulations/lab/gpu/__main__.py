"""Plays the arms that are missing for some minutes, keeps what it has, and writes the page; the work of `make gpu-lab`.

    python -m simulations.lab.gpu [--small] [--limit 480] [--again]

Answers are kept in `simulations/results/answers/gpu-lab.json`, and in `build/gpu-lab` with the text and the run under
way, because a rented machine may lose all but `build`. An arm is played again if code that it depends on has changed,
or the versions, or the text.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any, Final

import torch

from simulations.lab.gpu.arms import ARMS, PEERS, SIZES, Arm, Size, problem_of, rounds_of
from simulations.lab.gpu.page import page, table
from simulations.lab.gpu.running import Running
from simulations.lab.gpu.text import prepare
from simulations.lab.pages.report import commit
from simulations.lab.runs.answers import key, machine, rounded
from simulations.lab.runs.fingerprints import ROOT, fingerprint

__all__ = ["Player", "main"]

ANSWERS: Final = ROOT / "simulations/results/answers/gpu-lab.json"
PAGE: Final = ROOT / "simulations/results/gpu-lab.md"
BUILD: Final = ROOT / "build/gpu-lab"
SAVED: Final = 10
"""fp32 vectors a replica that a run on disk has, at most"""
RATE: Final = 4e8
"""bytes a second to the disk"""
SLOWER: Final = 1.3
"""how much longer than any before a round may take"""


class Player:
    """Plays the arms of one size.

    Args:
        name: a key of `SIZES`.
        size: that size.
        device: of torch.
        build: folder of text and runs under way.
        answers: file of answers of all sizes.
        until: when to end, on the monotonic clock.
    """

    def __init__(self, name: str, size: Size, device: str, build: Path, answers: Path, until: float) -> None:
        self._size, self._device, self._until = size, device, until
        self._build, self._path = build / name, answers
        self._text = prepare(self._build, size.text, size.model["vocabulary"])
        problem = problem_of(size, self._text, device)
        self._rounds = rounds_of(size, problem)
        self.answers = _read(answers)
        self._here = _read(self._build / "answers.json")
        """arms of this size that this machine has played"""
        read = (size.warmup + self._rounds * size.every) * problem.batch * PEERS / problem.windows
        facts = {"text": self._text.about, "parameters": problem.parameters, "rounds": self._rounds, "passes": read}
        self.kept: dict[str, Any] = {"arms": {}, **self.answers.get(name, {}), **facts}
        self.answers[name] = self.kept
        self._peak = 4.0 * SAVED * PEERS * problem.parameters / RATE
        """seconds that saving takes, at most"""

    def play(self, *, again: bool = False) -> bool:
        """Play what is missing, or all anew with `again`. False if the time was over before."""
        if again:
            self.kept["arms"].clear()
            self._here.clear()
        return all(self._arm(name, arm) for name, arm in ARMS.items())

    def _arm(self, name: str, arm: Arm) -> bool:
        """Play one arm, or go on with it. False if it did not end."""
        setting, method = arm.make(self._size, self._rounds)
        problem = problem_of(self._size, self._text, self._device, arm.shares)
        code = self._code(arm, type(method).__module__, repr(setting))
        kept, path = self.kept["arms"].get(name), self._build / f"{name}-{key({'code': code})}.run"
        for each in (kept, self._here.get(name)):
            if each is not None and each["code"] == code and each["done"]:
                self.kept["arms"][name] = each
                return True
        if path.exists():
            run = Running.read(path, problem)
        else:
            if time.monotonic() + (self._size.begin if arm.warm else self._peak) > self._until:
                return False
            run = Running.begin(arm.lab(problem, setting), method)
        self._advance(run)
        for old in self._build.glob(f"{name}-*.run"):
            if run.whole or old != path:
                old.unlink()
        if not run.whole:
            run.save(path)
        self.kept["arms"][name] = self._here[name] = {
            "code": code,
            "commit": commit(ROOT),
            "machine": self._machine(),
            "rounds": setting.rounds,
            "done": run.whole,
            "seconds": round(run.seconds, 1),
            "points": rounded([list(point) for point in run.points]),
        }
        self._write()
        last = run.points[-1]
        print(f"{name}: {'whole' if run.whole else f'round {run.round}'}, loss {last.loss:.4f}", flush=True)
        return run.whole

    def _advance(self, run: Running) -> None:
        """Play rounds until the run is whole or the time is over. At least one."""
        longest = 0.0
        while not run.whole:
            before = run.seconds
            if point := run.advance():
                print(f"  round {run.round} of {run.lab.setting.rounds}: loss {point.loss:.4f}", flush=True)
            longest = max(longest, run.seconds - before)
            if time.monotonic() + SLOWER * longest + self._peak > self._until:
                break

    def _code(self, arm: Arm, method: str, setting: str) -> str:
        """What the answer of an arm depends on: versions, size, text, setting, and the code of the method."""
        modules = {method, arm.lab.__module__, "simulations.lab.gpu.arms"}
        code = fingerprint(modules, shallow="gossipdp.protocol")
        versions, text = (platform.python_version(), torch.__version__, self._device), self._text.about["digest"]
        return key({"versions": versions, "text": text, "size": repr(self._size), "setting": setting, "code": code})

    def _machine(self) -> str:
        device = torch.cuda.get_device_name() + ", " if self._device == "cuda" else ""
        return device + machine()

    def _write(self) -> None:
        """Write the answers, each file at once or not at all."""
        for path, told in ((self._path, self.answers), (self._build / "answers.json", self._here)):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(told) + "\n")
            partial.replace(path)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def main() -> int:
    began = time.monotonic()
    parser = argparse.ArgumentParser(description="the laboratory's methods on a model of 30 million parameters")
    parser.add_argument("--small", action="store_true", help="0.8 million parameters on the CPU, as without a GPU")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds for this call (%(default)s)")
    parser.add_argument("--again", action="store_true", help="play all arms of this size anew")
    options = parser.parse_args()
    small = options.small or not torch.cuda.is_available()
    name = "small" if small else "large"
    player = Player(name, SIZES[name], "cpu" if small else "cuda", BUILD, ANSWERS, began + options.limit)
    whole = player.play(again=options.again)
    PAGE.write_text(page(player.answers))
    print("\n".join(table(player.kept["arms"])))
    print(f"all of it is in {PAGE.relative_to(ROOT)}" if whole else "not whole: the same command goes on")
    return 0


if __name__ == "__main__":
    sys.exit(main())
