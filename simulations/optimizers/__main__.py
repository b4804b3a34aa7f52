"""Play all optimizers that are installed, and print a line for each.

    python -m simulations.optimizers [--only NAME ...] [--jobs 2] [--page]

Names are those of the page, such as torch.AdamW, or a part of them.
"""

from __future__ import annotations

import argparse
import sys

from simulations.optimizers.catalogue import every
from simulations.optimizers.page import PAGE, page
from simulations.optimizers.running import played
from simulations.optimizers.trial import Row, verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="play those whose name has one of these parts")
    parser.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    parser.add_argument("--page", action="store_true", help="write simulations/results/optimizers.md")
    options = parser.parse_args()
    if options.page and options.only:
        parser.error("--page is of all optimizers")
    kinds = [kind for kind in every() if not options.only or any(part in kind.key for part in options.only)]
    rows, seconds = list[Row](), 0.0
    for row, took in played(kinds, options.jobs):
        rows.append(row)
        seconds += took
        figures = f"alone {row.alone:.3f}, together {row.together:.3f}, mean {row.mean:.3f}"
        figures += f", restored {row.restored:.3f}, joiner {row.joiner:.3f}, apart {row.apart:.2f}, {row.saves}"
        print(f"{row.key}: {verdict(row)}; {row.broken or row.refused or figures} ({took:.1f} s)", flush=True)
    if options.page:
        PAGE.write_text(page(rows, "python -m simulations.optimizers --page", seconds))
    return 1 if any(verdict(row) == "worse together" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
