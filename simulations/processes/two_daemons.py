"""Two real daemons on loopback or cables, joined by an invite, with a `NumpyTrainer` each, for benchmarks."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossipdp.errors import GossipdpError
from peers.control import ask
from simulations.processes.namespaces.hosts import Host
from simulations.processes.namespaces.processes import environment
from simulations.processes.numpy_trainer import NumpyTrainer
from simulations.processes.progress import until

__all__ = ["Pair", "one_daemon", "two_daemons"]

PORT = 4710
"""on which a daemon on a cable listens"""
PATIENCE = 600.0
"""seconds for the second daemon's model"""
SAMPLE = 1_000_000
"""parameters that `Pair.disagreement` looks at, about"""


class Pair:
    """Both daemons and their training processes."""

    def __init__(self, homes: Sequence[Path], trainers: Sequence[NumpyTrainer]) -> None:
        self.homes, self.trainers = homes, trainers

    def status(self, which: int) -> dict[str, Any]:
        return ask(self.homes[which], "status")

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for trainer in self.trainers:
                trainer.wait(0.005)

    def disagreement(self) -> float:
        """Root mean square of x_1 - x_2 per parameter, of parameters at equal distances."""
        first, second = (trainer.x[:: 1 + len(trainer.x) // SAMPLE] for trainer in self.trainers)
        return float(np.sqrt(np.mean(np.square(first - second, dtype=np.float64))))


def _start(
    home: Path, arguments: Sequence[str], settings: Mapping[str, Any], cable: Host | None
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "peers.cli", "--home", str(home), *arguments]
    command += ["--preset", "wan" if cable else "local"]
    if cable:
        settings = {**settings, "network.listen": f"tcp://{cable.address}:{PORT}"}
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    if cable:
        command = cable.command(command)
    with open(home.with_suffix(".log"), "wb") as log:
        return subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGTERM)
    until("the daemon ends", lambda: child.poll() is not None)


@contextlib.contextmanager
def one_daemon(
    name: str, arguments: Sequence[str], settings: Mapping[str, Any], cable: Host | None = None
) -> Iterator[Path]:
    """Start a daemon with `gossipdp ARGUMENTS`. Gives its home once its control socket answers.

    Args:
        settings: configuration keys.
        cable: the host of a lab that it runs on; otherwise on loopback.
    """
    with tempfile.TemporaryDirectory(prefix="gossipdp-") as place:
        home = Path(place) / name
        child = _start(home, arguments, settings, cable)
        try:
            until("the daemon answers", lambda: _answers(home, child))
            yield home
        finally:
            _stop(child)


def _answers(home: Path, child: subprocess.Popen[bytes]) -> bool:
    assert child.poll() is None, home.with_suffix(".log").read_text()
    with contextlib.suppress(GossipdpError):
        return bool(ask(home, "status"))
    return False


@contextlib.contextmanager
def two_daemons(x: NDArray[np.float32], settings: Mapping[str, Any], cables: Sequence[Host] = ()) -> Iterator[Pair]:
    """Found a network with `x` and join it. `settings` and `cables`: see `one_daemon`."""
    one, other = cables or (None, None)
    with one_daemon("first", ["up", "--network", "bench"], settings, one) as first:
        trainer = NumpyTrainer(first, x, timeout=PATIENCE)
        with one_daemon("second", ["join", f"@{first / 'invite'}"], settings, other) as second:
            yield Pair([first, second], [trainer, NumpyTrainer(second, np.zeros_like(x), timeout=PATIENCE)])
