"""Play all optimizers that are installed, and print a line for each.

    python -m simulations.optimizers [--only NAME ...] [--jobs 2] [--keep FILE] [--page]

Names are those of the page, such as torch.AdamW, or a part of them. A run that was cut off goes on from its file. The
page has the rows of the file and of this run, and names the optimizers that have none.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from simulations.optimizers.catalogue import every
from simulations.optimizers.page import PAGE, page
from simulations.optimizers.running import keep, kept, played
from simulations.optimizers.trial import WORSE, verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="play those whose name has one of these parts")
    parser.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    parser.add_argument("--keep", type=Path, help="JSON lines: rows in it are not played again, new ones are added")
    parser.add_argument("--page", action="store_true", help="write simulations/results/optimizers.md")
    options = parser.parse_args()
    kinds = [*every()]
    wanted = [kind for kind in kinds if any(part in kind.key for part in options.only)]
    found = kept(options.keep) if options.keep else {}
    for each in played([kind for kind in wanted if kind.key not in found], options.jobs):
        row = each.row
        found[row.key] = each
        if options.keep:
            keep(each, options.keep)
        figures = f"alone {row.alone:.3f}, together {row.together:.3f}, mean {row.mean:.3f}"
        figures += f", restored {row.restored:.3f}, joiner {row.joiner:.3f}, apart {row.apart:.2f}, {row.saves}"
        print(f"{row.key}: {verdict(row)}; {row.broken or row.refused or figures} ({each.seconds:.1f} s)", flush=True)
    if options.page:
        keys = [kind.key for kind in kinds]
        rows, unplayed = [found[key] for key in keys if key in found], [key for key in keys if key not in found]
        PAGE.write_text(page(rows, unplayed, "python -m simulations.optimizers --page"))
    return 1 if any(verdict(found[kind.key].row) == WORSE for kind in wanted) else 0


if __name__ == "__main__":
    sys.exit(main())
