"""`gossipdp demo`: N peers on this machine train a small GPT together. One more replica trains alone, for comparison.

Each peer starts as a user's peer does (`up`, then `join` with the invite). It has its own daemon and training process,
and talks to the others over loopback, with CURVE on. The figures of the run go to OUT/summary.json, OUT/loss.png and
OUT/report.txt. A missed mark is named there, and the exit code stays 0, because the marks hold only for runs of the
default length. A process that fails ends the demo with GD-503.

The report imports torch, so it is imported when the peers have trained.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gossipdp import launch
from gossipdp.errors import ConfigError, HardwareError
from peers.demo.options import Options
from peers.demo.process import Process

MARKER = ".gossipdp-demo"
_PEER = re.compile(r"peer[1-9]\d?")
_FILE = re.compile(
    rf"(?:{_PEER.pattern}|alone)\.(?:jsonl|log|safetensors)|summary\.json|run\.html|report\.txt|loss\.png"
)


class FolderError(ConfigError):
    """GD-318: --out names a folder that a demo may not use. The exit code is that of a usage error."""

    exit_code = 2


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Claim `folder` for one demo: make it, and remove the files of an earlier demo.

    A marker file identifies it. Only files that a demo makes are removed.

    Raises:
        FolderError: GD-318, it is not a folder, holds other files, or another demo uses it now.
    """
    marker = folder / MARKER
    if folder.exists() and not folder.is_dir():
        raise FolderError("GD-318", "--out is not a folder", seen=str(folder), do="name another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    if not marker.is_file() and (there := sorted(entry.name for entry in folder.iterdir())):
        raise FolderError(
            "GD-318",
            "the folder holds files that no demo has written",
            seen=f"{folder}: {', '.join(there[:3])}{', ...' if len(there) > 3 else ''}",
            do="name a new or empty folder with --out",
        )
    with open(marker, "a+", encoding="utf-8") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderError(
                "GD-318",
                "another demo runs in this folder",
                seen=str(folder),
                do="wait, or name another folder with --out",
            ) from None
        held.truncate(0)
        held.write("Made by `gossipdp demo`. It removes its own files here at the next start.\n")
        held.flush()
        _clear(folder)
        yield


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if _FILE.fullmatch(path.name) and (path.is_symlink() or path.is_file()):
            path.unlink()
    homes = folder / "homes"
    if homes.is_symlink():  # not made by a demo: its target stays
        homes.unlink()
    for home in homes.iterdir() if homes.is_dir() else ():
        if _PEER.fullmatch(home.name) and home.is_dir() and not home.is_symlink():
            shutil.rmtree(home)


START = 180.0
"""seconds for the start of the first daemon, which compiles kernels on a new machine"""
POLL = 1.0
"""seconds between looks at the peers"""
ALONE = "alone"
"""name of the replica that trains alone"""
LOOKS = 12
"""validations of each replica that the picture shows"""
WINDOWS = 64
"""windows of one validation"""
RESTARTS = 3
"""restarts of one peer's processes after which the demo fails; the pauses have grown to seconds by then"""


class Demo:
    """One demo: its options and its processes."""

    def __init__(self, chosen: Options) -> None:
        self.options = chosen
        self.out: Path = chosen.out.absolute()
        self.processes: list[Process] = []

    def training_command(self, name: str, seed: int) -> list[str]:
        chosen = self.options
        command = [
            *launch.command("peers.jobs.byte_gpt"), "--size", chosen.size, "--steps", str(chosen.steps),
            "--batch", str(chosen.batch), "--data-seed", str(seed), "--threads", "1",
            "--eval-every", str(max(1, chosen.steps // LOOKS)), "--eval-windows", str(WINDOWS),
            "--log", str(self.out / f"{name}.jsonl"),
        ]  # fmt: skip
        # A peer writes its final model to its home.
        return command if name != ALONE else [*command, "--save", str(self.out / f"{name}.safetensors")]

    def start(self, name: str, arguments: Sequence[str], home: Path | None, extra: dict[str, str]) -> Process:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GOSSIPDP_")}
        environment |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", **extra}
        with open(self.out / f"{name}.log", "wb") as log:
            child = subprocess.Popen(
                arguments, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        process = Process(name, self.out, home, child)
        self.processes.append(process)
        return process

    def start_peer(self, number: int, invite: Path | None) -> Process:
        name = f"peer{number}"
        home = self.out / "homes" / name
        chosen = self.options
        command = [*launch.command("peers.cli"), "--home", str(home)]
        command += ["up", "--network", "demo"] if invite is None else ["join", f"@{invite}"]
        settings = {"network.peer": name, "exchange.every": chosen.every, "exchange.run_steps": chosen.steps}
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        return self.start(name, [*command, "--preset", "local", "--", *self.training_command(name, number)], home, {})

    def wait_for(self, path: Path, process: Process, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not path.exists():
            if process.child.poll() is not None or time.monotonic() > deadline:
                raise process.failed(f"{process.name} did not start")
            time.sleep(0.1)

    def run(self) -> dict[str, Any]:
        """Start all processes, and wait until the peers have finished the run. Return its figures.

        Raises:
            HardwareError: GD-503, a process failed, or the run was too short.
        """
        from peers.demo import report as demo_report
        from peers.demo import table as demo_table

        (self.out / "homes").mkdir(exist_ok=True)
        started = time.monotonic()
        first = self.start_peer(1, None)
        invite = self.out / "homes" / "peer1" / "invite"
        self.wait_for(invite, first, START)
        for number in range(2, self.options.peers + 1):
            self.start_peer(number, invite)
        # The windows of peer 1: the two differ only in the exchanges.
        self.start(ALONE, self.training_command(ALONE, 1), None, {"GOSSIPDP_OFF": "1"})
        with demo_table.live(self.options) as show:
            while any(process.child.poll() is None for process in self.processes):
                for process in self.processes:
                    process.ask()
                show(self.processes, time.monotonic() - started)
                self.check_processes()
                self.check_all_have_joined()
                time.sleep(POLL)
        self.check_processes()
        for process in self.processes:
            if not process.weights.exists():
                raise process.failed(f"{process.name} ended without a final model")
        return demo_report.summarize(self.processes, self.options, time.monotonic() - started)

    def check_processes(self) -> None:
        """Fail if a process ended with an error or was restarted too often. A supervisor itself retries for ever."""
        for process in self.processes:
            if code := process.child.poll():
                raise process.failed(f"{process.name} ended with {code}")
            if process.restarts() >= RESTARTS:
                raise process.failed(f"{process.name} was restarted {process.restarts()} times, without success")

    def check_all_have_joined(self) -> None:
        """Fail if the first peer is done before another has fetched the model, as in a very short run."""
        peers = [process for process in self.processes if process.home is not None]
        running = [process for process in peers if process.child.poll() is None]
        alone = len(running) < len(peers) and all(process.status.get("state") == "joining" for process in running)
        if running and alone:
            names = ", ".join(process.name for process in running)
            raise HardwareError(
                "GD-503", "the run ended before every peer had the model", seen=names, do="give more --steps"
            )

    def stop(self) -> None:
        """End the processes of this demo."""
        for process in self.processes:
            if process.child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.child.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.child.wait(12.0)
            except subprocess.TimeoutExpired:
                process.child.kill()


@contextlib.contextmanager
def stopping(demo: Demo) -> Iterator[None]:
    """End the peers with this process. They lead their own sessions, so a closed terminal does not reach them."""
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup it stays ignored
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, _: sys.exit(128 + number)) for number in numbers}
    try:
        yield
    finally:
        demo.stop()
        for number, action in before.items():
            signal.signal(number, action)


def run(chosen: Options) -> int:
    """Run the demo, and write its report. Return the exit code."""
    demo = Demo(chosen)
    with claimed(chosen.out):
        print(f"{chosen.peers} peers train byte_gpt {chosen.size} for {chosen.steps} steps; output in {chosen.out}")
        print("The first start on a machine compiles kernels, which takes some seconds.", flush=True)
        with stopping(demo):
            try:
                summary = demo.run()
            except KeyboardInterrupt:
                print("stopped")
                return 130
        from peers.demo import report as demo_report

        demo_report.write(summary, chosen.out)
    return 0
