"""`gossipdp demo`: N peers on this machine train a small GPT together, and one replica trains alone beside them.

Everything is real: each peer is started as a user would start it (`up`, then `join` by the invite), with a daemon and
a training process of its own, CURVE on, talking over loopback. What is printed at the end was measured in this run
and is written to OUT/summary.json, OUT/loss.png and OUT/report.txt. A mark that is missed is named there, and the exit
status stays 0, for a demo shows what a run of its length gives; a process that fails ends the demo with GD-503.

Nothing heavy may be imported before a process is started: `gossipdp demo --help` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gossipdp.errors import HardwareError
from peers.demo import folder as demo_folder
from peers.demo.process import Process

POLL = 1.0
"""seconds between looks at the peers"""
SIZES = ("0.25M", "1M", "3M", "11M")
"""those of byte_gpt, which is not asked because it imports torch"""
ALGORITHMS = ("auto", "pairwise", "epidemic")
RESTARTS = 3
"""so many of one peer's processes, and it is not going to work: the back-off has grown to seconds by then"""


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gossipdp demo", description="Peers on this machine train a GPT together.")
    parser.add_argument("--peers", type=_count, default=4, help="how many (%(default)s)")
    parser.add_argument("--steps", type=_count, default=1200, help="optimizer steps of each replica (%(default)s)")
    parser.add_argument("--size", choices=SIZES, default="0.25M", help="parameters of the model (%(default)s)")
    parser.add_argument("--batch", type=_count, default=4, help="windows a step (%(default)s)")
    parser.add_argument("--every", type=_count, default=30, help="steps a round, H (%(default)s)")
    parser.add_argument(
        "--algorithm", choices=ALGORITHMS, default="auto", help="what peers tell each other (%(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="a folder of its own (%(default)s)")
    parser.add_argument("--no-live", action="store_true", help="plain lines instead of a live table")
    chosen = parser.parse_args(argv)
    if not 2 <= chosen.peers <= 32:
        parser.error("--peers must be 2 to 32")
    return chosen


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


class Demo:
    def __init__(self, chosen: argparse.Namespace) -> None:
        self.options = chosen
        self.out: Path = chosen.out.absolute()
        self.processes: list[Process] = []

    def training_command(self, name: str, seed: int) -> list[str]:
        chosen = self.options
        return [
            sys.executable, "-P", "-m", "peers.jobs.byte_gpt", "--size", chosen.size, "--steps", str(chosen.steps),
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
        process = Process(name, self.out, home, child)
        self.processes.append(process)
        return process

    def start_peer(self, number: int, invite: Path | None) -> Process:
        name = f"peer{number}"
        home = self.out / "homes" / name
        chosen = self.options
        command = [sys.executable, "-P", "-m", "peers.cli", "--home", str(home)]
        command += ["up", "--network", "demo"] if invite is None else ["join", f"@{invite}"]
        settings = {"network.peer": name, "exchange.every": chosen.every, "exchange.run_steps": chosen.steps}
        if chosen.algorithm != "auto":
            settings |= {"exchange.algorithm": chosen.algorithm, "exchange.epoch_steps": chosen.every}
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
        """From the first process to the last one's end; the figures.

        Raises:
            HardwareError: GD-503, a process failed, or the run was too short.
        """
        from peers.demo import report as demo_report
        from peers.demo import table as demo_table

        (self.out / "homes").mkdir(exist_ok=True)
        started = time.monotonic()
        first = self.start_peer(1, None)
        invite = self.out / "homes" / "peer1" / "invite"
        self.wait_for(invite, first, 60.0)
        for number in range(2, self.options.peers + 1):
            self.start_peer(number, invite)
        # Peer 1's windows, so that the two differ in nothing but the company.
        self.start("alone", self.training_command("alone", 1), None, {"GOSSIPDP_OFF": "1"})
        with demo_table.live(self.options) as show:
            while any(process.child.poll() is None for process in self.processes):
                for process in self.processes:
                    process.ask()
                show(self.processes, time.monotonic() - started)
                self.check_nobody_fails()
                self.check_nobody_is_left_behind()
                time.sleep(POLL)
        self.check_nobody_fails()
        for process in self.processes:
            if not process.weights.exists():
                raise process.failed(f"{process.name} ended without having trained")
        return demo_report.summarize(self.processes, self.options, time.monotonic() - started)

    def check_nobody_fails(self) -> None:
        """A supervisor never gives up: what a person would look into after a while, a demo must notice itself."""
        for process in self.processes:
            if code := process.child.poll():
                raise process.failed(f"{process.name} ended with {code}")
            if process.restarts() >= RESTARTS:
                raise process.failed(f"{process.name} was restarted {process.restarts()} times, in vain")

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
    """However this ends, the peers end too: they lead sessions of their own, and no closed terminal reaches them."""
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup stays what it is
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, _: sys.exit(128 + number)) for number in numbers}
    try:
        yield
    finally:
        demo.stop()
        for number, action in before.items():
            signal.signal(number, action)


def main(argv: Sequence[str] | None = None) -> int:
    chosen = options(argv)
    demo = Demo(chosen)
    with demo_folder.claimed(chosen.out):
        print(f"{chosen.peers} peers train byte_gpt {chosen.size} for {chosen.steps} steps; all is in {chosen.out}")
        with stopping(demo):
            try:
                summary = demo.run()
            except KeyboardInterrupt:
                print("stopped")
                return 130
        from peers.demo import report as demo_report

        demo_report.write(summary, chosen.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
