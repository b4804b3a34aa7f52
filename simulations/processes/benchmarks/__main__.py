"""All benchmarks, one after the other: ``make bench``. Exits with 1 if a mark is missed.

Each prints ratios of medians over interleaved pairs and checks what it times. Absolute times on a shared machine mean
little.
"""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = ("codec", "transport", "exchange", "training", "stall")


def main() -> int:
    missed = []
    for name in BENCHMARKS:
        print(f"-- {name}", flush=True)
        command = [sys.executable, "-m", f"simulations.processes.benchmarks.{name}", *sys.argv[1:]]
        if subprocess.run(command, check=False).returncode:
            missed.append(name)
    print(f"marks missed: {', '.join(missed)}" if missed else "every mark reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
