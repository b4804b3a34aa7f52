"""Mutation testing: how many small faults in the code make a test fail.

    make mutants PATHS=gossipdp/protocol/transfer SAMPLE=300 SEED=0 JOBS=2

Mutmut makes the mutants and runs the tests that reach each one: those of the mirrored folders and those that
pyproject.toml names. This script draws a sample and prints a line for each path.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

OUTCOMES = ("killed", "timeout", "survived", "no tests")
MEMORY = 4 << 30
"""bytes of address space: a mutant that grows without end fails before it takes the machine's memory"""


def outcome(status: str) -> str:
    """Mutmut's status as one of OUTCOMES. A test run that ends in any other way than a pass has found the mutant."""
    return status if status in OUTCOMES else "killed"


def draw(names: Sequence[str], size: int, seed: int) -> list[str]:
    """A sample of `size`. Size 0: all."""
    return random.Random(seed).sample(names, min(size or len(names), len(names)))


def interval(hits: int, tried: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share."""
    z, share = 1.96, hits / tried
    centre = (share + z**2 / (2 * tried)) / (1 + z**2 / tried)
    half = z / (1 + z**2 / tried) * math.sqrt(share * (1 - share) / tried + z**2 / (4 * tried**2))
    return centre - half, centre + half


def summary(path: str, made: int, outcomes: Iterable[str]) -> str:
    """The line of one path. A mutant that times out counts as killed, one without tests does not."""
    count = Counter(outcomes)
    tried = count.total()
    if not tried:
        return f"{path}: no mutants"
    hits = count["killed"] + count["timeout"]
    line = (
        f"{path}: {tried} of {made} mutants: killed {count['killed']}, survived {count['survived']}, "
        f"timed out {count['timeout']}, not covered {count['no tests']}; share {hits / tried:.1%}"
    )
    low, high = interval(hits, tried)
    return line if tried == made else f"{line} ({low:.1%} to {high:.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", help="packages or modules, such as gossipdp/protocol/transfer")
    parser.add_argument("--sample", type=int, default=0, help="mutants of each path; 0 takes all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, help="processes; one a core by default")
    options = parser.parse_args()

    from mutmut.__main__ import _run as run
    from mutmut.configuration import config
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.stats import status_by_exit_code
    from mutmut.utils.format_utils import get_mutant_name

    began = time.monotonic()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    shutil.rmtree("mutants", ignore_errors=True)
    files = {path: sorted(Path(path).rglob("*.py")) or [Path(path)] for path in options.paths}
    every = [file for of in files.values() for file in of]
    mirrors = {Path("tests", *file.parts[1:]).parent for file in every}
    config().only_mutate = [str(file) for file in every]
    config().pytest_add_cli_args_test_selection[:0] = sorted(str(folder) for folder in mirrors if folder.exists())
    made = {file: mutate_file_contents(str(file), file.read_text("utf-8")).mutant_names for file in every}
    names = {path: [get_mutant_name(file, name) for file in of for name in made[file]] for path, of in files.items()}
    drawn = {path: draw(of, options.sample, options.seed) for path, of in names.items()}
    run([name for of in drawn.values() for name in of], options.jobs)

    codes = {}
    for file in every:
        data = SourceFileMutationData(path=file)
        data.load()
        codes.update(data.exit_code_by_key)
    for path, of in drawn.items():
        statuses = [status_by_exit_code[codes[name]] for name in of if codes[name] is not None]
        print(summary(path, len(names[path]), map(outcome, statuses)))
    print(f"{time.monotonic() - began:,.0f} s")


if __name__ == "__main__":
    main()
