"""`gossipdp demo`: N peers on this machine train a small GPT together, and one replica trains alone beside them.

Everything is real: each peer is started as a user would start it (`up`, then `join` by the invite), with a daemon and
a training process of its own, CURVE on, talking over loopback. What is printed at the end was measured in this run
and is written to OUT/summary.json, OUT/loss.png and OUT/report.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gossipdp.errors import GossipdpError, HardwareError
from peers import demo_report as report
from peers.control import ask

POLL = 1.0
"""seconds between looks at the peers"""


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gossipdp demo", description="Peers on this machine train a GPT together.")
    parser.add_argument("--peers", type=int, default=4, help="how many (%(default)s)")
    parser.add_argument("--steps", type=int, default=1200, help="optimizer steps of each replica (%(default)s)")
    parser.add_argument("--size", default="0.25M", help="of the model: 0.25M, 1M, 3M or 11M (%(default)s)")
    parser.add_argument("--batch", type=int, default=4, help="windows a step (%(default)s)")
    parser.add_argument("--every", type=int, default=30, help="steps a round, H (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="where all goes (%(default)s)")
    parser.add_argument("--no-live", action="store_true", help="plain lines instead of a live table")
    chosen = parser.parse_args(argv)
    if not 2 <= chosen.peers <= 32:
        parser.error("--peers must be 2 to 32")
    return chosen


@dataclass
class Process:
    """One child of the demo and what it leaves behind. `home` is None for the replica that trains alone."""

    name: str
    home: Path | None
    log: Path
    weights: Path
    child: subprocess.Popen[bytes]
    status: dict[str, Any] = field(default_factory=dict)

    def last_line(self) -> dict[str, Any]:
        """The newest complete line of the training log that has a training loss."""
        try:
            with open(self.log, "rb") as lines:
                lines.seek(max(0, lines.seek(0, os.SEEK_END) - 2000))
                complete = lines.read().split(b"\n")[:-1]
        except OSError:
            return {}
        lines_with_loss = [line for line in complete if line.startswith(b"{") and b'"loss"' in line]
        return json.loads(lines_with_loss[-1]) if lines_with_loss else {}

    def ask(self) -> None:
        """Look at the daemon; what it said last stays when it is gone."""
        if self.home is not None and self.child.poll() is None:
            with contextlib.suppress(GossipdpError, OSError):
                self.status = ask(self.home, "status", timeout=2.0)


class Demo:
    def __init__(self, chosen: argparse.Namespace) -> None:
        self.options = chosen
        self.out: Path = chosen.out.absolute()
        self.processes: list[Process] = []

    def training_command(self, name: str, seed: int) -> list[str]:
        chosen = self.options
        return [
            sys.executable, "-m", "peers.jobs.byte_gpt", "--size", chosen.size, "--steps", str(chosen.steps),
            "--batch", str(chosen.batch), "--data-seed", str(seed), "--threads", "1", "--eval-every", "0",
            "--log", str(self.out / f"{name}.jsonl"), "--save", str(self.out / f"{name}.safetensors"),
        ]  # fmt: skip

    def start(self, name: str, arguments: Sequence[str], home: Path | None, extra: dict[str, str]) -> Process:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GOSSIPDP_")}
        environment |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", **extra}
        with open(self.out / f"{name}.log", "wb") as log:
            child = subprocess.Popen(
                arguments, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        files = (self.out / f"{name}.jsonl", self.out / f"{name}.safetensors")
        process = Process(name, home, *files, child)
        self.processes.append(process)
        return process

    def start_peer(self, number: int, invite: Path | None) -> Process:
        name = f"peer{number}"
        home = self.out / "homes" / name
        chosen = self.options
        command = [sys.executable, "-m", "peers.cli", "--home", str(home)]
        command += ["up", "--network", "demo"] if invite is None else ["join", f"@{invite}"]
        settings = {"network.peer": name, "exchange.every": chosen.every, "exchange.run_steps": chosen.steps}
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        return self.start(name, [*command, "--preset", "local", "--", *self.training_command(name, number)], home, {})

    def wait_for(self, path: Path, process: Process, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not path.exists():
            if process.child.poll() is not None or time.monotonic() > deadline:
                tail = (self.out / f"{process.name}.log").read_text(errors="replace")[-1500:]
                raise HardwareError("GD-503", f"{process.name} did not start", seen=tail, do="see the log above")
            time.sleep(0.1)

    def run(self) -> dict[str, Any]:
        shutil.rmtree(self.out / "homes", ignore_errors=True)
        (self.out / "homes").mkdir(parents=True)
        for old in [*self.out.glob("*.jsonl"), *self.out.glob("*.safetensors")]:
            old.unlink()
        started = time.monotonic()
        first = self.start_peer(1, None)
        invite = self.out / "homes" / "peer1" / "invite"
        self.wait_for(invite, first, 60.0)
        for number in range(2, self.options.peers + 1):
            self.start_peer(number, invite)
        # Peer 1's windows, so that the two differ in nothing but the company.
        self.start("alone", self.training_command("alone", 1), None, {"GOSSIPDP_OFF": "1"})
        with report.live(self.options) as show:
            while any(process.child.poll() is None for process in self.processes):
                for process in self.processes:
                    process.ask()
                show(self.processes, time.monotonic() - started)
                self.check_nobody_is_left_behind()
                time.sleep(POLL)
        for process in self.processes:
            if process.child.returncode != 0:
                tail = (self.out / f"{process.name}.log").read_text(errors="replace")[-1500:]
                raise HardwareError("GD-503", f"{process.name} ended with {process.child.returncode}", seen=tail)
        return report.summarize(self.processes, self.options, time.monotonic() - started)

    def check_nobody_is_left_behind(self) -> None:
        """In a very short run the first peer may be done, and gone, before another has got the model from it."""
        peers = [process for process in self.processes if process.home is not None]
        running = [process for process in peers if process.child.poll() is None]
        alone = len(running) < len(peers) and all(process.status.get("state") == "joining" for process in running)
        if running and alone:
            names = ", ".join(process.name for process in running)
            raise HardwareError(
                "GD-503", "the run was over before every peer had the model", seen=names, do="take more --steps"
            )

    def stop(self) -> None:
        """End what this demo started, and nothing else."""
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        demo.stop()


def main(argv: Sequence[str] | None = None) -> int:
    chosen = options(argv)
    demo = Demo(chosen)
    print(f"{chosen.peers} peers train byte_gpt {chosen.size} for {chosen.steps} steps; everything is in {chosen.out}")
    with stopping(demo):
        try:
            summary = demo.run()
        except KeyboardInterrupt:
            print("stopped")
            return 130
    report.write(summary, demo.out, chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
