"""What a peer needs by size: memory, seconds and the longest job, from founding to leaving.

    python -m simulations.processes.benchmarks.size [--parameters 25000000 100000000] [--rate 1gbit] [--most BYTES]

Hosts are network namespaces on cables of `--rate`. One host founds and trains. A partner joins, trains, exchanges and
leaves. A third host joins after it. Models have 1,200 tensors and Adam's moments, which are submitted too. Steps cost
nothing, so all CPU time is the peers'. At the end the sum of both anchors must have grown by what their training added.
A line is printed for each phase, with the most memory that each daemon had in it: its own and the shared memory. Bytes
a parameter are what came on top of a daemon without a model.
With `--most` the founder's daemon and its shared memory have a limit of that many bytes a parameter and 0.7 GB.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gossipdp.runtime.storage.store import Store
from peers.control import ask
from simulations.processes.benchmarks.cabled_hosts import cabled_hosts
from simulations.processes.benchmarks.memory_limit import MemoryLimit
from simulations.processes.benchmarks.report import Report
from simulations.processes.benchmarks.size_trainer import MOVE, MOVING, PAUSE, moved_by
from simulations.processes.namespaces.hosts import Lab
from simulations.processes.namespaces.processes import Host, end
from simulations.processes.needs import lacks
from simulations.processes.progress import until

FIXED = 0.7e9
"""bytes of a daemon without a model"""
PATIENCE = 600.0
"""seconds for the longest phase"""
SEEDS = {"h0": 0, "h1": 1, "h2": 2}
TOLERANCE = 1e-5
"""largest error of a sum of two parameters"""


def memory_of(pid: int) -> int:
    """Bytes of a process's own memory, and of the memory that it shares and has touched."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", text, re.MULTILINE)
    return 1024 * sum(map(int, found))


class Peak:
    """The most memory of some daemons, each with its shared memory, looked at 20 times a second."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._most: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def follow(self, name: str, pid: int) -> None:
        self._pids = {**self._pids, name: pid}

    def take(self) -> dict[str, int]:
        """The peaks since the last call, in bytes."""
        most, self._most = self._most, {}
        return most

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            for name, pid in self._pids.items():
                with contextlib.suppress(OSError):
                    self._most[name] = max(self._most.get(name, 0), memory_of(pid))


class Run:
    """One network of three hosts at one size."""

    def __init__(self, lab: Lab, folder: Path, options: argparse.Namespace, size: int) -> None:
        self._options, self._size = options, size
        settings = f"[exchange]\nevery = {options.every}\nwarmup_steps = 0\nearly_steps = 0\n"
        settings += "[outer]\nlr = 1.0\nmomentum = 0.0\n"  # an outer step adds what training added, and no more
        self.hosts = cabled_hosts(lab, folder, settings)
        self._report, self._peak = Report(), Peak()
        self._empty: dict[str, int] = {}
        """bytes of each daemon before it has a model"""
        self._limit: MemoryLimit | None = None

    def close(self) -> None:
        self._peak.close()
        end(self.hosts)
        if self._limit is not None:
            self._limit.close()

    @contextlib.contextmanager
    def _phase(self, what: str) -> Iterator[dict[str, Any]]:
        self._peak.take()
        with self._report.phase(what) as found:
            yield found
            most = self._peak.take()
            for name, peak in most.items():
                found[f"{name}_gb"] = round(peak / 1e9, 2)
                found[f"{name}_bytes_a_parameter"] = round((peak - self._empty[name]) / self._size, 1)

    def _start(self, host: Host, join: str = "") -> None:
        trainer = [sys.executable, "-m", "simulations.processes.benchmarks.size_trainer", str(host.diary)]
        trainer += ["--parameters", str(self._size), "--pace", str(self._options.pace)]
        trainer += ["--seed", str(SEEDS[host.name])]
        host.start_supervised(trainer, join=join)
        until("the daemon runs", lambda: "daemon" in host.children(), [host])
        pid = host.children()["daemon"]
        if host.founder and self._options.most:
            self._limit = MemoryLimit(int(self._options.most * self._size + FIXED), pid)
        self._peak.follow(host.name, pid)
        until("the daemon listens", host.status, [host])
        self._empty[host.name] = memory_of(pid)

    def _wait(self, host: Host, what: str, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        def met() -> dict[str, Any] | None:
            status = host.status()
            return status if status and condition(status) else None

        found = until(what, met, self.hosts, seconds=PATIENCE)
        assert found is not None
        return found

    def _attached(self, host: Host) -> float:
        until("attached", lambda: host.notes("attached"), self.hosts, seconds=PATIENCE)
        return float(host.notes("attached")[-1]["seconds"])

    def all_phases(self) -> bool:
        """Run them. Returns whether the sum of the anchors was kept."""
        founder, partner, third = self.hosts
        self._report.line("size", parameters=self._size)
        with self._phase("found and attach") as found:
            self._start(founder)
            found["attach_seconds"] = round(self._attached(founder), 2)
        with self._phase("first checkpoint"):
            self._wait(founder, "checkpoint", lambda status: status["checkpoint"])
        self._joined(partner, "join")
        self._exchanging(partner, founder)
        with self._phase("checkpoint"):
            ask(founder.home, "checkpoint", timeout=PATIENCE)
        with self._phase("the partner leaves"):
            ask(partner.home, "leave", timeout=15.0)
            assert partner.supervisor is not None
            partner.supervisor.ended(PATIENCE)
        self._joined(third, "the third joins")
        before = self._sum(founder, third, "paused")
        self._exchanging(third, founder)
        after = self._sum(founder, third, "paused again")
        error = most = 0.0
        start = 0
        for step in moved_by(self._size, SEEDS[third.name]):
            moved, at = MOVING * step.numpy(), slice(start, start := start + len(step))
            error = max(error, float(np.abs(after[at] - before[at] - moved).max()))
            most = max(most, float(np.abs(moved).max()))
        self._report.line("sum of both anchors", largest_change=most, largest_error=error)
        with self._phase("restore"):
            assert third.supervisor is not None
            pid = third.children()["daemon"]
            third.supervisor.signal(signal.SIGTERM)
            third.supervisor.ended(PATIENCE)
            self._start(third, join="@" + str(founder.home / "invite"))
            self._wait(third, "ready", lambda status: status["state"] == "ready")
            assert third.children()["daemon"] != pid
        for host in (founder, third):
            self._tell(host)
        return error < TOLERANCE

    def _joined(self, host: Host, what: str) -> None:
        with self._phase(what) as found:
            began = time.monotonic()
            self._start(host, join="@" + str(self.hosts[0].home / "invite"))
            self._wait(host, "ready", lambda status: status["state"] == "ready")
            found["model_seconds"] = round(time.monotonic() - began, 2)
            found["attach_seconds"] = round(self._attached(host), 2)

    def _exchanging(self, mover: Host, other: Host) -> None:
        """Exchanges until each host has made three more, and `mover` has submitted all that it moves."""
        with self._phase("three exchanges") as found:
            pair = mover, other
            before = {host.name: host.exchanges() for host in pair}
            rtts: list[float] = []
            seconds: set[tuple[int, float]] = set()
            (mover.home / MOVE).touch()

            def enough() -> bool:
                for host in pair:
                    last = host.status().get("last_exchange") or {"exchange": 0, "seconds": 0.0}
                    seconds.add((last["exchange"], round(last["seconds"], 2)))
                    rtts.extend(row["rtt"] for row in host.members() if row["rtt"] is not None)
                moved, steps = mover.notes("moved"), mover.notes("step")
                submitted = moved and steps[-1]["steps"] >= moved[-1]["steps"] + 4 * self._options.every
                return bool(submitted) and all(host.exchanges() >= before[host.name] + 3 for host in pair)

            until("exchanges", enough, self.hosts, seconds=PATIENCE)
            found |= {"longest_exchange": max(each for _, each in seconds), "largest_rtt": max(rtts, default=None)}

    def _sum(self, one: Host, other: Host, what: str) -> Any:
        """The sum of two anchors while no host trains."""
        with self._phase(what):
            for host in (one, other):
                (host.home / PAUSE).touch()
            for host in (one, other):
                until("paused", lambda host=host: host.notes()[-1]["event"] == "paused", [host])  # type: ignore[misc]
            quiet = [host.exchanges() for host in (one, other)]
            for _ in range(600):
                time.sleep(1.0)
                last, quiet = quiet, [host.exchanges() for host in (one, other)]
                if last == quiet and not any(host.status()["partner"] for host in (one, other)):
                    break
            total = self._anchor(one)
            total += self._anchor(other)
            for host in (one, other):
                (host.home / PAUSE).unlink()
        return total

    def _anchor(self, host: Host) -> Any:
        """The newest anchor of `host`, in a file without a name: memory is for the daemons."""
        ask(host.home, "checkpoint", timeout=PATIENCE)
        with tempfile.TemporaryFile(dir=host.home) as file:
            anchor = np.memmap(file, np.float32, "w+", shape=(self._size,))

        def into(shape: Any) -> dict[str, Any]:
            return {"anchor": anchor}

        checkpoint, notices = Store(host.home / "checkpoints").latest(into)
        assert checkpoint is not None and not notices, notices
        return anchor

    def _tell(self, host: Host) -> None:
        status = host.status()
        names = (
            "exchanges",
            "exchanged_bytes",
            "blocks",
            "escalated_blocks",
            "escalated_median",
            "stall_seconds",
            "notices",
        )
        steps = [note["seconds"] for note in host.notes("step")]
        longest = sorted(status["longest_jobs"].items(), key=lambda each: -each[1])[:5]
        jobs = {kind: round(seconds, 3) for kind, seconds in longest}
        figures = {name: status.get(name) for name in names}
        self._report.line(host.name, longest_step=round(max(steps), 3), longest_jobs=jobs, **figures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, nargs="+", default=[25_000_000, 100_000_000])
    parser.add_argument("--rate", default="1gbit", help="of each host's cable (%(default)s)")
    parser.add_argument("--every", type=int, default=20, help="steps a round (%(default)s)")
    parser.add_argument("--pace", type=float, default=0.2, help="seconds a step (%(default)s)")
    parser.add_argument("--most", type=float, default=0.0, help="bytes a parameter that the founder's daemon may take")
    parser.add_argument("--folder", type=Path, default=None, help="for the homes")
    options = parser.parse_args()
    if why := lacks("namespaces"):
        print(why, file=sys.stderr)
        return 7
    kept = True
    for size in options.parameters:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder, Lab(3, rate=options.rate) as lab:
            run = Run(lab, Path(folder), options, size)
            try:
                kept = run.all_phases() and kept
            finally:
                run.close()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
