"""Real peers: a home with its daemon and training process, or both under `gossipdp up` and `join`.

`Host` starts all processes and ends them by process id. Nothing waits for a fixed time: see `simulations.processes.
progress`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gossipdp import launch
from gossipdp.errors import GossipdpError
from gossipdp.runtime.network.identity import NetworkSecret
from peers import home as homes
from peers import invites
from peers.control import ask
from peers.redeemed import redeemed
from simulations.processes.progress import STALL, until

__all__ = ["FIRST_MODEL", "Host", "Process", "Starvation", "end", "environment", "gossipdp", "kept_port", "pause"]

ROOT = Path(__file__).parents[3]
TRAINING = Path(__file__).with_name("training.py")
NETWORK = "proving-ground"
FIRST_MODEL = 3.0
"""value of every parameter of the founder's own first model; that of all others is 0"""


def kept_port() -> socket.socket:
    """A socket bound to a free port of 127.0.0.1. While it is open the kernel gives the port to no process that asks
    for any port. A process that names the port (with SO_REUSEADDR, as servers do) may listen on it."""
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", 0))
    return keeper


def environment(**more: str) -> dict[str, str]:
    """This process's environment without gossipdp's variables, plus the given ones."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GOSSIPDP_")}
    return {**inherited, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def gossipdp(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a `gossipdp` command to its end."""
    argv = [*launch.command("peers.cli"), *words]
    return subprocess.run(argv, env=environment(), capture_output=True, text=True, check=False)


class Process:
    """A process that was started here, and its log."""

    def __init__(self, argv: Sequence[str], log: Path, variables: Mapping[str, str]) -> None:
        with log.open("ab") as out:
            self._popen = subprocess.Popen(
                argv, cwd=log.parent, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        self.pid = self._popen.pid

    @property
    def code(self) -> int | None:
        return self._popen.poll()

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()

    @property
    def memory(self) -> int:
        """Resident bytes; 0 for a process that is gone."""
        return 1024 * int((re.findall(r"^VmRSS:\s+(\d+) kB", self._proc("status"), re.MULTILINE) or ["0"])[0])

    @property
    def descriptors(self) -> int:
        with contextlib.suppress(OSError):
            return len(os.listdir(f"/proc/{self.pid}/fd"))
        return 0

    def _proc(self, name: str) -> str:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/{name}").read_text()
        return ""

    def ended(self, seconds: float = STALL, moves: Callable[[], Hashable] = lambda: None) -> int:
        """Its exit code. AssertionError if it does not end, see `until`."""
        until(f"process {self.pid} ends", lambda: self.code is not None, seconds=seconds, moves=moves)
        assert self.code is not None
        return self.code


class Starvation:
    """Gives processes hardly any CPU: it stops and continues them again and again until `end`."""

    STOPPED, LET_GO = 0.9, 0.1
    """seconds"""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes, self._over = processes, threading.Event()
        self._thread = threading.Thread(target=self._starve, daemon=True)
        self._thread.start()

    def _starve(self) -> None:
        while not self._over.is_set():
            self._signal(signal.SIGSTOP)
            self._over.wait(self.STOPPED)
            self._signal(signal.SIGCONT)
            self._over.wait(self.LET_GO)

    def _signal(self, number: int) -> None:
        for process in self._processes:
            process.signal(number)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


class Host:
    """One home. `daemon` and `training` are its processes if they were started alone, `supervisor` otherwise."""

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        founder: bool,
        address: str = "127.0.0.1",
        port: int = 0,
        within: Callable[[Sequence[str]], list[str]] = list,
        size: int = 200_000,
        pace: float = 0.01,
        preset: str = "local",
        settings: str = "",
    ) -> None:
        self.name, self.founder, self.home = name, founder, directory / name
        self._port = None if port else kept_port()
        self.address = f"{address}:{self._port.getsockname()[1] if self._port else port}"
        self._within = within
        self._directory, self._size, self._pace = directory, size, pace
        self.log, self.diary = directory / f"{name}.log", directory / f"{name}.jsonl"
        self.daemon: Process | None = None
        self.training: Process | None = None
        self.supervisor: Process | None = None
        self.run_file = directory / f"{name}.toml"
        self.run_file.write_text(
            f'preset = "{preset}"\n[network]\nname = "{NETWORK}"\npeer = "{name}"\n'
            f'listen = "tcp://{self.address}"\n{settings}'
        )

    # -- making and starting ----------------------------------------------------------------------------------

    def settle_in(self, invite: str | None) -> None:
        """Make the home as `gossipdp up` (None) or `gossipdp join` does, and start nothing."""
        text = self.run_file.read_text()
        if invite is None:
            homes.found(self.home, homes.read_config(None, {}, {}, file=self.run_file), text)
        else:
            homes.join(self.home, redeemed(self.home, invites.read_invite(invite).invite), text)

    def start_daemon(self, kill_at: str = "", **variables: str) -> Process:
        """Start the daemon without a supervisor: only the test restarts it."""
        if kill_at:
            variables["GOSSIPDP_KILL_AT"] = kill_at
        argv = [*launch.command("peers.daemon"), "--home", str(self.home), "--verbose"]
        self.daemon = Process(self._within(argv), self.log, environment(**variables))
        return self.daemon

    def start_training(self, argv: Sequence[str] = (), **variables: str) -> Process:
        command = self._within(list(argv) or self.training_command())
        self.training = Process(command, self.log, environment(GOSSIPDP_HOME=str(self.home), **variables))
        return self.training

    def start_supervised(self, command: Sequence[str] = (), *, join: str = "", **variables: str) -> Process:
        """`gossipdp up`, or `gossipdp join` with `join`, "@FILE" say; a `join` of "-" is read from a variable."""
        words = ["--home", str(self.home)]
        if join:
            words += ["join", *([] if join == "-" else [join]), "--config", str(self.run_file)]
        else:
            words += ["up", str(self.run_file)]
        words += ["--", *(list(command) or self.training_command())]
        argv = self._within([*launch.command("peers.cli"), *words])
        self.supervisor = Process(argv, self.log, environment(**variables))
        return self.supervisor

    def training_command(self) -> list[str]:
        options = ["--size", str(self._size), "--pace", str(self._pace)]
        options += ["--start", str(FIRST_MODEL)] if self.founder else []
        return [sys.executable, str(TRAINING), str(self.diary), *options]

    def children(self) -> dict[str, int]:
        """ "daemon" and "training" -> process id, of the supervisor's running children."""
        assert self.supervisor is not None
        found: dict[str, int] = {}
        # A child may end between two reads.
        with contextlib.suppress(OSError):
            pid = self.supervisor.pid
            for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{child}/cmdline").read_text().split("\0")[:-1]
                    if "peers.daemon" in words:
                        found["daemon"] = child
                    elif "peers.cli" not in words and words:
                        found["training"] = child
        return found

    def end(self) -> None:
        """End all processes of this host. A supervisor ends its children, and its guard ends those of a dead
        supervisor."""
        if self._port is not None:
            self._port.close()
        for process in (self.training, self.daemon):
            if process is not None:
                process.kill()
        if self.supervisor is not None:
            self.supervisor.signal(signal.SIGTERM)
            try:
                self.supervisor.ended()
            finally:
                self.supervisor.kill()

    # -- asking -----------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The daemon's `status`; {} without a daemon."""
        try:
            return ask(self.home, "status")
        except GossipdpError:
            return {}

    def members(self) -> list[dict[str, Any]]:
        """All members that this host's daemon knows; [] without a daemon."""
        try:
            return list(ask(self.home, "members")["members"])
        except GossipdpError:
            return []

    def member(self, name: str) -> dict[str, Any]:
        """Record of the latest life of the member `name`, by this host's daemon."""
        rows = [row for row in self.members() if row["name"] == name]
        return max(rows, key=lambda row: row["incarnation"], default={})

    def exchanges(self) -> int:
        return int(self.status().get("exchanges", {}).get("done", 0))

    def notes(self, event: str = "", since: float = 0.0, before: float = math.inf) -> list[dict[str, Any]]:
        """Lines of the training process's diary, by default of all events."""
        lines = self.diary.read_text().split("\n")[:-1] if self.diary.exists() else []
        notes = [json.loads(line) for line in lines]
        return [note for note in notes if since <= note["at"] <= before and event in ("", note["event"])]

    def noted(self, event: str = "", since: float = 0.0) -> list[dict[str, Any]]:
        """`notes`, after waiting for the first: a daemon may exchange before its training process writes its diary."""
        return until(f"{self.name} notes {event or 'anything'}", lambda: self.notes(event, since), [self])

    def mean(self) -> float:
        """Mean of the model by the last note of the training process. Waits for a first note."""
        return float(self.noted()[-1]["mean"])

    def longest_pause(self, since: float, before: float) -> float:
        """Longest time in seconds that a training process made no step, though a CPU was free for it."""
        until(f"{self.name} steps on", lambda: self.notes("step", before), [self])
        steps = itertools.pairwise(self.notes("step"))
        meanwhile = ((one, next_) for one, next_ in steps if one["at"] <= before and next_["at"] >= since)
        return max(pause(one, next_) for one, next_ in meanwhile if one["pid"] == next_["pid"])

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def ends(self) -> str:
        """Which of its processes have ended, and how; an empty string if none has."""
        of = {"daemon": self.daemon, "training": self.training, "supervisor": self.supervisor}
        codes = {what: process.code for what, process in of.items() if process is not None}
        return "".join(f", {what} ended with {code}" for what, code in codes.items() if code is not None)

    def last_words(self, lines: int = 25) -> str:
        kept = [line for line in self.text().splitlines() if " done: " not in line]
        return "\n".join(kept[-lines:])

    def secret(self) -> NetworkSecret:
        return NetworkSecret.load(self.home)


def pause(note: Mapping[str, Any], later: Mapping[str, Any]) -> float:
    """Seconds between two notes of one training process, less those in which it waited for a CPU."""
    return float(later["at"] - note["at"] - (later["delayed"] - note["delayed"]))


def end(hosts: Sequence[Host]) -> None:
    """End all processes of these hosts, even if one of them does not end in order."""
    for host in hosts:
        if host.supervisor is not None:
            host.supervisor.signal(signal.SIGTERM)
    with contextlib.ExitStack() as stack:
        for host in hosts:
            stack.callback(host.end)
