"""The reserve of open files, and everything in a daemon that takes a descriptor when none is left."""

import subprocess
import sys
from pathlib import Path

import pytest

from gossipdp.runtime.descriptors import A_LINK, OWN, shares

ROOT = Path(__file__).parents[2]
TAKEN = {
    "memory": "done",
    "state": "done",
    "control": "accepted",
    "link": "accepted",
    "data": "accepted",
    "name": "None",
    "route": "True",
    "scrape": "HTTP/1.0",
    "dial": "GD-101",  # libzmq opens the connection by itself, so the dial runs out of time
}
GONE = TAKEN | {
    "state": "GD-602",
    "control": "closed",
    "link": "closed",
    "data": "closed",
    "scrape": "closed",
    "dial": "GD-104",
}


@pytest.mark.parametrize("limit", [128, 256, 1024, 4096, 8192])
def test_shares_of_any_limit_fit_in_it(limit: int) -> None:
    of = shares(limit)
    assert of.limit == limit and of.unproven == min(limit // 8, 256)
    assert of.reserve + of.unproven + A_LINK * of.links + OWN <= limit or of.links == 4
    assert of.reserve >= min(64, limit // 4)


@pytest.mark.parametrize(("state", "expected"), [("taken", TAKEN), ("gone", GONE)])
def test_no_descriptor_left__nothing_dies_and_the_reserve_serves_the_daemon(
    tmp_path: Path, state: str, expected: dict[str, str]
) -> None:
    """`taken`: connections hold all descriptors but the reserve. `gone`: they hold the reserve, too."""
    argv = [sys.executable, str(Path(__file__).with_name("short_of_descriptors.py")), str(tmp_path), state]
    env = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert dict(line.split(": ") for line in done.stdout.splitlines()) == expected, done.stderr


def test_codec_of_names_is_loaded_before_the_first_name() -> None:
    code = "import sys, gossipdp.runtime.network.resolver; print('encodings.idna' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
