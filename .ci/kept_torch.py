"""Exits with 0 if the interpreter's installation outside .venv has a torch in the range of pyproject.toml.

`make demo` then keeps it: such a build fits the host's GPU and driver, and another one would take gigabytes.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path


def in_range(version: str, requirement: str) -> bool:
    """Whether `version` fits a requirement such as "torch>=2.6,<3"."""
    found, low, below = (_numbers(text) for text in (version, *re.findall(r"[<>]=?([\d.]+)", requirement)))
    return low <= found < below


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:2])


def main() -> int:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    requirement = next(each for each in project["dependencies"] if each.startswith("torch"))
    try:
        torch = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return 1
    own = Path(sys.prefix).resolve() in Path(str(torch.locate_file(""))).resolve().parents
    if own or not in_range(torch.version, requirement):
        return 1
    print(f"keeping torch {torch.version} of {torch.locate_file('')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
