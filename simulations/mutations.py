"""Tests the tests: breaks the code on purpose, one line at a time, and asks who notices.

    python -m simulations.mutations [--only NAME ...] [--simulated [--seeds 40]] [--jobs 2] [--list] [--write]

Each mutation is a plausible mistake, a replacement of text that stands exactly once in its file (`mutation_table`). It
is applied to a copy of the tree, and the stages of the campaign run against it until one fails: that one has caught it,
if the unbroken tree passes there. First comes the part of a stage where the mistake is expected to be seen, then all of
them, the quick ones first. A mutation that passes them all has survived, and is a hole in the tests. `--simulated` asks
another question: do whole peers in virtual time see it (T1, T2), without any test that knows of it? It stops at the
first seed that does, and plays no mistake in a function that the unbroken tree never calls there (`reached`). `--write`
puts what was found into the list in simulations/README.md, and leaves the rest of that as it was. Nothing here may
touch the tree it runs from but for the list.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from simulations.mutation_table import MUTATIONS, Mutation
from simulations.reached import Called, read, stands_in

__all__ = ["STAGES", "Caught", "Stage", "apply", "campaign", "order", "rows_of", "simulated", "table"]

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("gossipdp", "peers", "simulations", "tests", "pyproject.toml")
TABLE_BEGINS, TABLE_ENDS = "<!-- mutations -->", "<!-- end of mutations -->"


@dataclass(frozen=True)
class Stage:
    """One part of the campaign; `words` follow the interpreter's name. It is given `seconds`, then counts as failed:
    a protocol that never ends is broken too."""

    name: str
    words: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Caught:
    """`stage` is "" if all passed; `evidence` is the line that says what was seen, `NOT_RUN` if nothing was played."""

    mutation: Mutation
    stage: str
    evidence: str
    seconds: float


_NOT_AGAIN = "not seed_holds and not exhaustive and not mutation"
"""what other stages do, and the test that mutations fit, which a broken tree fails by being one"""
_PYTEST = ("-m", "pytest", "-x", "-q", "-rfE")
"""to the first failure, with the line that sums it up"""
_TRAINING = [f"tests/{name}.py" for name in ("training/test_layout", "training/test_inherited_moments")]
_TRAINING += ["tests/runtime/test_moments_keeper.py"]
STAGES = (
    Stage("training", (*_PYTEST, *_TRAINING), 120.0),
    Stage("handshakes", (*_PYTEST, "tests/runtime/test_transport.py", "tests/runtime/test_copies.py"), 120.0),
    Stage("properties", (*_PYTEST, "tests/algorithms", "tests/codecs"), 600.0),
    Stage("units", (*_PYTEST, "tests/protocol"), 600.0),
    Stage("seeds", ("-m", "simulations.cluster", "--seed", "1", "--count", "60", "--first-failure"), 900.0),
    Stage("exhaustive", ("-m", "simulations.exhaustive", "--cases", "brief", "--first-failure"), 600.0),
    Stage("scenarios", (*_PYTEST, "tests/simulations", "-m", "not long", "-k", _NOT_AGAIN), 900.0),
)
"""The quick ones first: which of them is the first to see a mistake says nothing of the others."""
NOT_RUN = "not run"
"""what no stage that was asked executes"""
HEADS = ("mutation", "the mistake", "caught by", "as", "T1, T2")


def apply(mutation: Mutation, tree: Path) -> str:
    """Break `tree`; returns the file's text as it was.

    Raises:
        ValueError: the text to replace does not stand there exactly once: the code has moved on, and so must this.
    """
    path = tree / mutation.path
    text = path.read_text()
    found = text.count(mutation.old)
    if found != 1:
        raise ValueError(f"{mutation.name}: its text stands {found} times in {mutation.path}")
    path.write_text(text.replace(mutation.old, mutation.new))
    return text


def simulated(seeds: int) -> tuple[Stage, ...]:
    """T1, the first so many seeds of it, and T2: what is played in virtual time and in one process."""
    kept = {stage.name: stage for stage in STAGES}
    first = ("-m", "simulations.cluster", "--seed", "1", "--count", str(seeds), "--first-failure")
    return (Stage("seeds", first, kept["seeds"].seconds), kept["exhaustive"])


def copy_of_tree(where: Path) -> Path:
    """What the campaign needs, with the compiled kernels, whose cache goes by the files' times."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, where / name)
        else:
            shutil.copy2(source, where / name)
    return where


def order(mutation: Mutation, stages: Sequence[Stage]) -> list[Stage]:
    """All `stages`, after the one that is expected to see it, or that part of it."""
    first = mutation.first
    for stage in stages:
        if stage.name == first:
            return [stage, *(other for other in stages if other != stage)]
        paths = [word for word in stage.words if word.startswith("tests/")]
        if any(first.startswith((path + "/", path + "::")) or first == path for path in paths):
            words = tuple(word for word in stage.words if word not in paths)
            return [Stage(stage.name, (*words, first), stage.seconds), *stages]
    return list(stages)


class Unbroken:
    """The tree as it is: what fails there already would seem to catch everything."""

    def __init__(self, tree: Path) -> None:
        self.tree, self._lock = tree, Lock()
        self._passed: set[Stage] = set()
        self._called: dict[Stage, Called] = {}

    def check(self, stage: Stage) -> None:
        """Raises:
        SystemExit: it fails in `stage`.
        """
        with self._lock:
            if stage in self._passed:
                return
            self._pass(stage, stage)

    def called(self, stage: Stage) -> Called:
        """The functions that `stage`, a module in one process, calls.

        Raises:
            SystemExit: it fails in `stage`.
        """
        with self._lock:
            if stage not in self._called:
                file = self.tree.parent / f"called-{stage.name}"
                words = ("-m", "simulations.reached", str(file), *stage.words[1:])
                self._pass(stage, Stage(stage.name, words, 4 * stage.seconds))
                self._called[stage] = read(file)
            return self._called[stage]

    def _pass(self, stage: Stage, played: Stage) -> None:
        evidence = _run(played, self.tree)
        if evidence is not None:
            raise SystemExit(f"the unbroken tree fails in {stage.name}: {evidence}")
        self._passed.add(stage)


def judge(mutation: Mutation, tree: Path, stages: Sequence[Stage], unbroken: Unbroken, *, reached: bool) -> Caught:
    """`reached`: play only stages that call what it changes."""
    if reached:
        stages = [stage for stage in stages if stands_in(mutation, unbroken.tree, unbroken.called(stage))]
        if not stages:
            return Caught(mutation, "", NOT_RUN, 0.0)
    begun = time.monotonic()
    path = tree / mutation.path
    times = path.stat()
    before = apply(mutation, tree)
    try:
        for stage in order(mutation, stages):
            evidence = _run(stage, tree)
            if evidence is not None:
                taken = time.monotonic() - begun
                unbroken.check(stage)
                return Caught(mutation, stage.name, evidence, taken)
        return Caught(mutation, "", "survived", time.monotonic() - begun)
    finally:
        path.write_text(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _run(stage: Stage, tree: Path) -> str | None:
    """What was seen if the stage failed."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *stage.words],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=stage.seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {stage.seconds:g} s"
    return None if done.returncode == 0 else _evidence(done.stdout + done.stderr)


def _evidence(output: str) -> str:
    """The one line that says most."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in lines:
        # As pytest sums up, and as the simulator says; a test's own text may speak of members that FAILED.
        if line.startswith(("FAILED ", "ERROR ")) or " FAILED: " in line:
            return line[:160]
    for line in lines:
        if "Error" in line:
            return line[:160]
    return lines[-1][:160] if lines else "no output"


def campaign(
    mutations: Sequence[Mutation], stages: Sequence[Stage], jobs: int, *, reached: bool = False
) -> list[Caught]:
    """Judge all, `jobs` at a time, each in a tree of its own. `reached`: each by the stages that call what it changes.

    Raises:
        SystemExit: what caught one fails on the unbroken tree as well.
    """
    with tempfile.TemporaryDirectory(prefix="mutations-") as place:
        unbroken = Unbroken(copy_of_tree(Path(place) / "unbroken"))
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            trees.put(copy_of_tree(Path(place) / str(number)))

        def one(mutation: Mutation) -> Caught:
            tree = trees.get()
            try:
                caught = judge(mutation, tree, stages, unbroken, reached=reached)
            finally:
                trees.put(tree)
            stage = caught.stage or ("" if caught.evidence == NOT_RUN else "SURVIVED")
            print(f"{caught.seconds:6.1f} s  {mutation.name:28} {stage:12} {caught.evidence}")
            sys.stdout.flush()
            return caught

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, mutations))


def rows_of(text: str) -> dict[str, list[str]]:
    """The cells of a table as `table` writes it, by what stands in the first."""
    lines = text.strip().splitlines()[2:]
    rows = [re.split(r"(?<!\\) \| ", line.removeprefix("| ").removesuffix(" |")) for line in lines]
    return {cells[0]: cells for cells in rows}


def table(text: str, results: Sequence[Caught], simulated: bool) -> str:
    """The table `text` with these results in it, in the order of all mutations; of one that is no more nothing is left,
    and what nobody has asked for is "?"."""
    held = rows_of(text)
    found = {caught.mutation.name: caught for caught in results}
    rows = []
    for mutation in MUTATIONS:
        seen = held.get(mutation.name, [])[2:]
        seen += ["?"] * (3 - len(seen))
        if caught := found.get(mutation.name):
            evidence = caught.evidence.replace("|", "\\|")
            if simulated:
                seen[2] = f"`{evidence[:60].rstrip()}`" if caught.stage else NOT_RUN if evidence == NOT_RUN else "-"
            else:
                seen[:2] = [caught.stage, f"`{evidence}`"]
        rows.append(f"| {' | '.join([mutation.name, mutation.mistake, *seen])} |")
    return "\n".join([f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|", *rows])


def main() -> int:
    parser = argparse.ArgumentParser(description="break the code on purpose, one line at a time, and see who notices")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutations")
    parser.add_argument("--simulated", action="store_true", help="are they seen in virtual time alone?")
    parser.add_argument("--seeds", type=int, default=40, help="of T1, with --simulated: the first so many at most")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="say what would be tried")
    parser.add_argument("--write", action="store_true", help="put the list into simulations/README.md")
    options = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if not options.only or mutation.name in options.only]
    if options.list:
        for mutation in chosen:
            print(f"{mutation.name:28} {mutation.mistake}")
        return 0
    stages = simulated(options.seeds) if options.simulated else STAGES
    results = campaign(chosen, stages, options.jobs, reached=options.simulated)
    survivors = [caught for caught in results if not caught.stage]
    print(f"{len(results) - len(survivors)} of {len(results)} caught")
    if options.write:
        readme = ROOT / "simulations" / "README.md"
        text = readme.read_text()
        head, rest = text.split(TABLE_BEGINS)
        held, tail = rest.split(TABLE_ENDS)
        readme.write_text(f"{head}{TABLE_BEGINS}\n{table(held, results, options.simulated)}\n{TABLE_ENDS}{tail}")
    return 1 if survivors and not options.simulated else 0


if __name__ == "__main__":
    sys.exit(main())
