"""Play all optimizers that are installed, and print a line for each.

    python -m simulations.optimizers [--only NAME ...] [--jobs 2] [--keep FILE] [--page]

Names are those of the page, such as torch.AdamW, or a part of them. A run that was cut off goes on from its file.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from simulations.optimizers.catalogue import every
from simulations.optimizers.page import PAGE, page
from simulations.optimizers.running import played
from simulations.optimizers.trial import Row, verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="play those whose name has one of these parts")
    parser.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    parser.add_argument("--keep", type=Path, help="JSON lines: rows in it are not played again, new ones are added")
    parser.add_argument("--page", action="store_true", help="write simulations/results/optimizers.md")
    options = parser.parse_args()
    if options.page and options.only:
        parser.error("--page is of all optimizers")
    kinds = [kind for kind in every() if not options.only or any(part in kind.key for part in options.only)]
    rows = dict[str, tuple[Row, float]]()
    if options.keep and options.keep.exists():
        for line in options.keep.read_text().splitlines():
            kept = json.loads(line)
            rows[kept["row"]["key"]] = Row(**kept["row"]), kept["seconds"]
    for row, seconds in played([kind for kind in kinds if kind.key not in rows], options.jobs):
        rows[row.key] = row, seconds
        if options.keep:
            with options.keep.open("a") as file:
                file.write(json.dumps({"row": asdict(row), "seconds": round(seconds, 1)}) + "\n")
        figures = f"alone {row.alone:.3f}, together {row.together:.3f}, mean {row.mean:.3f}"
        figures += f", restored {row.restored:.3f}, joiner {row.joiner:.3f}, apart {row.apart:.2f}, {row.saves}"
        print(f"{row.key}: {verdict(row)}; {row.broken or row.refused or figures} ({seconds:.1f} s)", flush=True)
    found = [rows[kind.key] for kind in kinds]
    if options.page:
        command, seconds = "python -m simulations.optimizers --page", sum(seconds for _, seconds in found)
        PAGE.write_text(page([row for row, _ in found], command, seconds))
    return 1 if any(verdict(row) == "worse together" for row, _ in found) else 0


if __name__ == "__main__":
    sys.exit(main())
