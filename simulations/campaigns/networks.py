"""Campaign T1 at length: thousands of seeds of `cluster`, in parts, by several processes, and resumable.

    python -m simulations.campaigns.networks --first 500 --last 20000 --jobs 2 --state t1.json

A part is a hundred seeds. One seed in 250 runs again in another process, and its logs must be equal (I12). `--state`
names a file that holds the parts played, the failures and the time. It is written after each part, so a stopped
campaign resumes. A file that other code wrote is refused, because its results say nothing of this code. The processes
are niced.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path

from simulations.lab.runs.fingerprints import fingerprint
from simulations.simulator.cluster import Outcome, run_seed

__all__ = ["PART", "TWICE", "Part", "State", "campaign", "code", "play", "play_seed"]

PART = 100
"""seeds per part; each hundred has two networks of 64, so parts take equally long"""
TWICE = 250, 26
"""divisor and rest of the seeds that run twice; no slow seed has this rest"""
NICENESS = 10


@dataclass(frozen=True)
class Part:
    """Result of a range of seeds. `failed`: seed -> what broke, and the command that replays it."""

    first: int
    last: int
    """end of the range, exclusive"""
    failed: dict[int, str]
    seconds: float
    """CPU seconds"""
    escalated: int = 0
    false_accepts: int = 0
    """blocks of which the check noticed that the differences did not fit, and blocks of which it did not"""


@dataclass
class State:
    """Progress of a campaign."""

    code: str
    finished: list[tuple[int, int]] = field(default_factory=list)
    """(first, end) of each part, in order"""
    failed: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    """CPU seconds"""
    escalated: int = 0
    false_accepts: int = 0

    @property
    def seeds(self) -> int:
        return sum(last - first for first, last in self.finished)

    @classmethod
    def load(cls, path: Path, code: str) -> State:
        """Read the state from `path`; a new state if there is no such file.

        Raises:
            ValueError: other code wrote the file.
        """
        if not path.exists():
            return cls(code)
        held = json.loads(path.read_text())
        if held["code"] != code:
            raise ValueError(f"{path} was written by other code: give it another name, or remove it")
        failed = {int(seed): told for seed, told in held["failed"].items()}
        finished = [(first, last) for first, last in held["finished"]]
        return cls(code, finished, failed, held["seconds"], held["escalated"], held["false_accepts"])

    def save(self, path: Path) -> None:
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps(asdict(self), indent=1) + "\n")
        os.replace(new, path)

    def take(self, part: Part) -> None:
        self.finished = sorted([*self.finished, (part.first, part.last)])
        self.failed |= part.failed
        self.seconds += part.seconds
        self.escalated += part.escalated
        self.false_accepts += part.false_accepts

    def missing(self, first: int, last: int, size: int = PART) -> Iterator[range]:
        """The seeds of the range that were not played, in parts of at most `size`."""
        for begin, end in [*self.finished, (last, last)]:
            while first < min(begin, last):
                yield range(first, min(first + size, begin, last))
                first = min(first + size, begin)
            first = max(first, end)


def play_seed(seed: int) -> Outcome:
    """Play a seed. One in 250 runs once more, in a process with another hash salt.

    Raises:
        AssertionError: an invariant broke, or the two logs differ (I12).
    """
    outcome = run_seed(seed)
    if seed % TWICE[0] == TWICE[1]:
        logs = [outcome.log_hash, elsewhere(seed, salt=str(1 + seed))]
        replay = f"python -m simulations.simulator.cluster --seed {seed} --trace"
        assert logs[0] == logs[1], f"I12: seed {seed} was played twice, and came out as {logs}\n  replay: {replay}"
    return outcome


def elsewhere(seed: int, *, salt: str) -> str:
    """Digest of the event log when another process plays the seed.

    Args:
        salt: for the hashes of that process.

    Raises:
        AssertionError: an invariant broke there.
    """
    words = [sys.executable, "-m", "simulations.simulator.cluster", "--seed", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    done = subprocess.run(words, env=environment, capture_output=True, check=False, text=True, timeout=600)
    assert done.returncode == 0, f"I12: seed {seed} failed in a second process alone: {done.stderr[-1000:]}"
    return done.stdout.split("log_hash='")[1][:32]


def play(seeds: range) -> Part:
    """Play seeds one after another. A failure does not stop the rest."""
    began, failed, escalated, missed = time.process_time(), {}, 0, 0
    for seed in seeds:
        try:
            outcome = play_seed(seed)
        except AssertionError as error:
            failed[seed] = str(error)
        else:
            escalated += outcome.escalated
            missed += outcome.false_accepts
    return Part(seeds.start, seeds.stop, failed, time.process_time() - began, escalated, missed)


def campaign(parts: Sequence[range], processes: int) -> Iterator[Part]:
    """Play the parts in several processes. Yields each part when it is done."""
    with get_context("spawn").Pool(processes, _settle_in) as pool:
        yield from pool.imap_unordered(play, parts)


def _settle_in() -> None:
    os.nice(NICENESS)
    gc.freeze()


def code() -> str:
    """Fingerprint of all code that decides the result of a seed."""
    return fingerprint({"simulations.simulator.cluster"})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=500)
    parser.add_argument("--last", type=int, default=20_000, help="one past the last seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--part", type=int, default=PART, help="seeds a part")
    parser.add_argument("--state", type=Path, help="a file that says what was played; goes on from there")
    given = parser.parse_args(arguments)
    try:
        state = State.load(given.state, code()) if given.state else State("")
    except ValueError as error:
        parser.error(str(error))
    parts = list(state.missing(given.first, given.last, given.part))
    left, began = sum(map(len, parts)), time.monotonic()
    total = left
    if left < given.last - given.first:
        print(f"{given.last - given.first - left} seeds were played before, {len(state.failed)} failed", flush=True)
    for part in campaign(parts, given.jobs):
        state.take(part)
        if given.state:
            state.save(given.state)
        for seed, told in part.failed.items():
            print(f"seed {seed} FAILED: {told}", flush=True)
        left -= part.last - part.first
        each = state.seconds / state.seeds
        to_go = (time.monotonic() - began) / (total - left) * left / 60
        print(
            f"seeds {part.first} to {part.last - 1}: {part.seconds:.0f} s of a core; {state.seeds} seeds, "
            f"{len(state.failed)} failed, {each:.2f} s each; {to_go:.0f} min to go",
            flush=True,
        )
    for seed, told in sorted(state.failed.items()):
        print(f"\nseed {seed}: {told}")
    print(f"{state.escalated} blocks escalated, {state.false_accepts} that should have been were taken as they were")
    print(f"{state.seeds} seeds, {len(state.failed)} failed, {state.seconds:.0f} s of a core")
    return 1 if state.failed else 0


if __name__ == "__main__":
    sys.exit(main())
