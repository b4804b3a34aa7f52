"""Play detection with and without Lifeguard, print a table, and draw a picture (campaign T6).

    python -m simulations.scenarios.detection --seeds 5
    python -m simulations.scenarios.detection --seeds 8 --picture detection.png

Exit status 1: Lifeguard had too many false failures, or found deaths too late.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from gossipdp.protocol.membership.config import PRESETS
from simulations.scenarios.detection.experiment import FEWER, LATE, Detection, Pool, median_mark, run
from simulations.scenarios.detection.report import pooled_detection_report

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulations.scenarios.detection", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=5, help="how many, from --seed on")
    parser.add_argument("--peers", type=int, default=128)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="wan")
    parser.add_argument("--starved", type=int, help="members starved of CPU (an eighth)")
    parser.add_argument("--killed", type=int, help="members killed (a sixteenth)")
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--multiplier", type=float, help="suspicion multiplier, instead of the preset's")
    parser.add_argument("--confirmations", type=int, help="K, instead of the preset's")
    parser.add_argument("--picture", type=Path, help="a file to draw all seeds together in")
    options = parser.parse_args(arguments)
    config = PRESETS[options.preset]
    config = replace(
        config,
        suspicion_multiplier=options.multiplier or config.suspicion_multiplier,
        confirmations=config.confirmations if options.confirmations is None else options.confirmations,
    )
    print(f"{'':>10} {'seed':>5} {'false':>7} {'wronged':>7} {'starved':>8} {'median':>7} {'p99':>7} {'worst':>7} "
          f"{'first':>7} {'wall':>6}")  # fmt: skip
    totals: dict[bool, list[Detection]] = {True: [], False: []}
    for seed in range(options.seed, options.seed + options.seeds):
        for lifeguard in (True, False):
            outcome = run(
                seed,
                options.peers,
                lifeguard,
                options.preset,
                starved=options.starved,
                killed=options.killed,
                loss=options.loss,
                config=config,
            )
            totals[lifeguard].append(outcome)
            _print("lifeguard" if lifeguard else "plain", str(seed), [outcome])
    for lifeguard, outcomes in totals.items():
        _print("lifeguard" if lifeguard else "plain", "all", outcomes)
    ours, plain = (Pool.of(totals[which]) for which in (True, False))
    wronged, against = ours.false_failures, plain.false_failures
    print(f"false failures: {wronged} against {against}" + (f", 1/{against / wronged:.0f}" if wronged else ""))
    if options.picture is not None:
        from simulations.scenarios.picture import draw

        draw(pooled_detection_report(totals), options.picture)
        print(f"picture: {options.picture}")
    # Without killed members the times are NaN, and no mark of time is missed.
    late = ours.median > median_mark(options.seeds) or ours.late > LATE
    return int(late or FEWER * wronged > against)


def _print(name: str, seed: str, outcomes: Sequence[Detection]) -> None:
    pool = Pool.of(outcomes)
    print(
        f"{name:>10} {seed:>5} {pool.false_failures:7d} {pool.wronged:7d} "
        f"{pool.starved_failures:8d} {pool.median:7.1f} {pool.late:7.1f} "
        f"{max(pool.times or [math.nan]):7.1f} {median(pool.first or [math.nan]):7.1f} {pool.wall:6.1f}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
