"""Runs the tests that need a GPU, then the benchmark at a billion parameters, within a limit; the work of `make gpu`.

    python .ci/gpu_run.py [--limit 540] [--out build/gpu.txt] [-- ARGUMENTS OF THE BENCHMARK]

Every line is printed and written to the file as it comes, so a machine that is taken away has said something.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

TESTS: Final = ["-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "--timeout", "240", "tests/training/test_gpu.py"]
BENCHMARK: Final = ["-m", "simulations.processes.benchmarks.gpu"]
SHARE: Final = 0.45
"""share of the time that the tests may take"""
AT_THE_END: Final = 60.0
"""seconds before the limit after which the benchmark begins nothing"""


class Output:
    """Prints and keeps lines."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("w")

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def line(self, text: str) -> None:
        for stream in (sys.stdout, self._file):
            stream.write(text.rstrip("\n") + "\n")
            stream.flush()


def run(arguments: Sequence[str], seconds: float, output: Output) -> int:
    """Run Python with `arguments`, for at most `seconds`. Returns its exit code, -9 if it was ended."""
    output.line(f"$ python {' '.join(arguments)}")
    began = time.monotonic()
    command = [sys.executable, "-u", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
    ) as child:
        # It may have children of its own, which keep the pipe open.
        end = threading.Timer(seconds, os.killpg, (child.pid, signal.SIGKILL))
        end.start()
        assert child.stdout is not None
        for text in child.stdout:
            output.line(text)
        code = child.wait()
        end.cancel()
    output.line(f"exit code {code} after {time.monotonic() - began:.0f} s")
    return code


def refusal() -> str:
    """Why nothing can be run here, and what to do; "" if all is there."""
    try:
        importlib.import_module("numba")
    except ImportError as error:
        numpy = importlib.import_module("numpy").__version__
        return (
            f"numba cannot be used with NumPy {numpy}: {error}\n"
            "do: .venv/bin/pip install --upgrade numba, or the newest NumPy that this numba names: both go into .venv,"
            " and the machine's own stay as they are"
        )
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA device\ndo: look at nvidia-smi; use a torch built for CUDA"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="the GPU's tests and benchmark")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds for all of it (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("build/gpu.txt"), help="a copy of the output (%(default)s)")
    parser.add_argument("benchmark", nargs="*", help="arguments of the benchmark, after --")
    options = parser.parse_args()
    with Output(options.out) as output:
        return measure(options, output)


def measure(options: argparse.Namespace, output: Output) -> int:
    """All of it. Returns the exit code."""
    until = time.monotonic() + options.limit
    if said := refusal():
        output.line(said)
        return 2
    tests = run(TESTS, SHARE * options.limit, output)
    left = until - time.monotonic()
    limit = ["--limit", f"{max(0.0, left - AT_THE_END):.0f}"]
    benchmark = run([*BENCHMARK, *limit, *options.benchmark], left, output)
    output.line(f"tests: exit code {tests}; benchmark: exit code {benchmark}; all of this is in {options.out}")
    return tests or benchmark


if __name__ == "__main__":
    sys.exit(main())
