"""Tries the lowest or the newest version of each dependency, in an environment of its own under build/.

    make versions VERSIONS=lowest
    make versions VERSIONS=newest PYTHON=python3.13
    make versions VERSIONS=aarch64                   only asks whether each has a wheel for that machine

The lowest are the bounds of pyproject.toml; nothing pins the newest. The tests are those that need neither several
processes nor a tool of the extra `dev`; then comes a demo of four peers with real daemons.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TOOLS: Final = ("hypothesis", "matplotlib", "pytest", "pytest-timeout", "pyyaml", "scikit-learn")
TESTS: Final = ("tests/algorithms", "tests/codecs", "tests/peers", "tests/protocol", "tests/runtime", "tests/training")
LEFT: Final = ("--ignore=tests/training/adapters", "--ignore=tests/peers/deploy")
"""tests of frameworks and of files for other programs"""
DEMO: Final = ("demo", "--no-live", "--steps", "300")


def lowest(dependencies: list[str]) -> list[str]:
    """A pin for the lower bound of each requirement, such as "numpy==2.0" for "numpy>=2.0"."""
    return [re.sub(r">=([\w.]+).*", r"==\1", each) for each in dependencies]


def wheels(dependencies: list[str]) -> list[str]:
    """Arguments of pip that find a wheel for aarch64 of each requirement, and install nothing."""
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 24, 26, 27, 28)]
    return [
        "install",
        "--dry-run",
        "--no-deps",
        "--only-binary=:all:",
        "--target=build/none",
        *platforms,
        *dependencies,
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("lowest", "newest", "aarch64"))
    which = parser.parse_args().which
    place = ROOT / "build" / f"versions-{which}-{sys.version_info.major}.{sys.version_info.minor}"
    python = place / "bin" / "python"
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(*command: str | Path) -> None:
        print("$", *command, flush=True)
        subprocess.run([str(each) for each in command], cwd=ROOT, env=environment, check=True)

    try:
        if which == "aarch64":
            run(sys.executable, "-m", "pip", *wheels([*dependencies, "cffi", "llvmlite"]))
            return 0
        run(sys.executable, "-m", "venv", "--clear", place)
        pins = lowest(dependencies) if which == "lowest" else []
        run(python, "-m", "pip", "install", "--quiet", "--upgrade", "-e", ROOT, *pins, *TOOLS)
        run(python, "-m", "pip", "list")
        run(python, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not long and not processes", *LEFT, *TESTS)
        run(place / "bin" / "gossipdp", *DEMO)
    except subprocess.CalledProcessError as error:
        print(f"{which}: failed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    print(f"{which}: every test passed, and the demo reached its marks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
