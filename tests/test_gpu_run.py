"""`make gpu`: prints as it goes, keeps a copy, ends what takes too long, and says why a machine will not do."""

import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RUN = runpy.run_path(str(ROOT / ".ci" / "gpu_run.py"))


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Any]:
    with RUN["Output"](tmp_path / "folder" / "gpu.txt") as made:
        yield made


def test_lines_are_printed_and_kept(tmp_path: Path, output: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)"
    assert RUN["run"](["-c", code], 30.0, output) == 3
    kept = (tmp_path / "folder" / "gpu.txt").read_text()
    assert kept == capsys.readouterr().out and "\none\n" in kept and "\ntwo\n" in kept and "exit code 3" in kept


def test_what_outlasts_its_time_is_ended_with_its_children(output: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code = "import os, time\nprint('begun', flush=True)\nos.fork()\ntime.sleep(600)"
    assert RUN["run"](["-c", code], 2.0, output) == -9
    assert "exit code -9" in capsys.readouterr().out


def test_a_numba_that_refuses_this_numpy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        if name == "numba":
            raise ImportError("Numba needs NumPy 2.3 or less. Got NumPy 2.5.")
        return SimpleNamespace(__version__="2.5.0")

    monkeypatch.setattr(RUN["importlib"], "import_module", refuse)
    said = RUN["refusal"]()
    assert "Got NumPy 2.5" in said and "do: .venv/bin/pip install" in said


def test_the_tests_and_the_benchmark_share_the_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[list[str], float]] = []
    inner = RUN["measure"].__globals__
    monkeypatch.setitem(inner, "refusal", lambda: "")
    monkeypatch.setitem(inner, "run", lambda arguments, seconds, _: asked.append((arguments, seconds)) or 0)
    given = ["gpu_run.py", "--limit", "500", "--out", str(tmp_path / "out.txt"), "--", "--layers", "2"]
    monkeypatch.setattr(sys, "argv", given)
    assert RUN["main"]() == 0
    (tests, first), (benchmark, second) = asked
    assert tests[-1] == "tests/training/test_gpu.py" and (ROOT / tests[-1]).exists()
    assert first < 250.0 and 499.0 < second <= 500.0, "all that the tests leave"
    assert benchmark[-4:-2][0] == "--limit" and 400.0 < float(benchmark[-3]) <= 440.0 and benchmark[-2] == "--layers"


def test_the_wheels_are_those_of_the_project_without_torch() -> None:
    text = (ROOT / "Makefile").read_text().replace("\\\n", "")
    found = re.search(r"^LIST_WHEELS := (.*)$", text, re.MULTILINE)
    assert found is not None
    done = subprocess.run([sys.executable, "-c", found[1]], capture_output=True, text=True, cwd=ROOT, check=True)
    lines = done.stdout.split("\n")
    assert any(line.startswith("pyzmq") for line in lines) and any(line.startswith("hatchling") for line in lines)
    assert not any("torch" in line for line in lines)
