"""What an installation needs: the demo needs no framework, and a torch that is there is kept."""

import re
import runpy
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
KEPT_TORCH = runpy.run_path(str(ROOT / ".ci" / "kept_torch.py"))
HEAVY = {
    "accelerate", "datasets", "lightning", "pandas", "pyarrow", "pytorch-lightning", "ray", "scikit-learn", "scipy",
    "transformers",
}  # fmt: skip


def needed(requirements: list[str]) -> set[str]:
    """Names of these requirements and of all that they need, as installed here."""
    found: set[str] = set()
    todo = [Requirement(each) for each in requirements]
    while todo:
        one = todo.pop()
        name = re.sub(r"[-_.]+", "-", one.name).lower()
        if name in found or (one.marker and not one.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        if name != "torch":  # a CUDA build needs packages that a CPU build does not
            todo += [Requirement(each) for each in metadata.requires(name) or ()]
    return found


def test_the_demo_needs_no_framework() -> None:
    found = needed(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["demo"])
    assert {"torch", "click", "matplotlib", "numba"} <= found and not found & HEAVY


def test_the_demo_is_imported_where_no_framework_is_installed() -> None:
    missing = sorted(HEAVY | {"pytorch_lightning", "sklearn"})
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing}))\n"
        "import peers.demo.main, peers.demo.report, peers.demo.table, peers.jobs.byte_gpt, matplotlib.figure\n"
        "import peers.assembly, peers.daemon, peers.supervisor"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("version", "kept"),
    [("2.6.0", True), ("2.13.0+cpu", True), ("2.11.0a0+git123", True), ("2.5.1+cu124", False), ("3.0.0", False)],
)
def test_a_torch_in_range_is_kept(version: str, kept: bool) -> None:
    requirement = next(each for each in PROJECT["dependencies"] if each.startswith("torch"))
    assert KEPT_TORCH["in_range"](version, requirement) is kept
    assert (version.partition("a")[0] in Requirement(requirement).specifier) is kept
