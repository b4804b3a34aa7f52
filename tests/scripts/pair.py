"""Two daemons of one network, and training scripts beside them: one process a host, forked from one nursery."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from peers import home as homes
from peers import invites
from simulations.processes.namespaces.processes import Host, Process, end, environment
from simulations.processes.progress import LOOK, until

HERE = Path(__file__).parent
SETTINGS = "[exchange]\nevery = 5\nwarmup_steps = 20\nearly_steps = 100\n"


class Script:
    """One running or ended script: what it said, and how it ended."""

    def __init__(self, host: Host, log: Path, connection: socket.socket) -> None:
        self.host, self.log, self.connection = host, log, connection
        self.name, self.lines = host.name, 0
        """whose it is, and how many lines it has written so far"""
        self.said: list[dict[str, Any]] = []
        """what it reported with `say`"""
        self.code: int | None = None
        """its exit code; None while it runs, or if a signal ended it"""
        self.over = False
        self.meets = ""
        """where it waits for its twin"""
        self._unread = b""

    @property
    def last(self) -> dict[str, Any]:
        return self.said[-1]

    @property
    def stderr(self) -> str:
        return self.log.read_text(errors="replace")

    def read(self) -> None:
        """Read what has arrived."""
        data = self.connection.recv(1 << 16)
        self.over = self.over or not data
        *lines, self._unread = (self._unread + data).split(b"\n")
        self.lines += len(lines)
        for line in map(json.loads, lines):
            if "exit" in line:
                self.code = line["exit"]
            elif "meet" in line:
                self.meets = line["meet"]
            else:
                self.said.append(line)

    def go_on(self) -> None:
        self.meets = ""
        with contextlib.suppress(OSError):
            self.connection.sendall(b"\n")

    def ends(self) -> str:
        return f", exit code {self.code}" if self.over else ""

    def last_words(self) -> str:
        at = f"waits at {self.meets!r}, " if self.meets else ""
        return f"{at}said {self.said}\n{self.stderr[-2000:]}"


class Pair:
    """Args:

    directory: for homes and logs.
    settings: of the founder's run file, TOML.
    """

    def __init__(self, directory: Path, settings: str = SETTINGS) -> None:
        self.directory = directory
        self._door = directory / "nursery"
        self.hosts = [Host(directory, f"h{n}", founder=n == 0, settings=settings) for n in range(2)]
        self._nursery: Process | None = None
        self._runs = 0

    def __enter__(self) -> Pair:
        argv = [sys.executable, str(HERE / "nursery.py"), str(self._door)]
        self._nursery = Process(argv, self.directory / "nursery.log", environment())
        try:
            founder, joiner = self.hosts
            founder.settle_in(None)
            config = homes.read_config(founder.home, {}, {})
            joiner.settle_in(invites.write_invite(founder.home, [founder.address], config).read_text())
            for host in self.hosts:
                host.start_daemon()
            until("both daemons are members", lambda: all(map(self._knows_both, self.hosts)), self.hosts)
            until("the nursery is open", self._door.exists)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nursery is not None:
            self._nursery.kill()
        end(self.hosts)

    @staticmethod
    def _knows_both(host: Host) -> bool:
        status = host.status()
        return bool(status) and status["members"]["alive"] == 2

    def run(
        self,
        script: str,
        *argv: str,
        hosts: Sequence[int] = (0, 1),
        variables: Mapping[str, str] = {},
        code: int = 0,
        at: Mapping[str, Callable[[], object]] = {},
    ) -> list[Script]:
        """Run `script` on `hosts` to its end.

        Args:
            argv: arguments after the number of the host.
            variables: of the environment, beside GOSSIPDP_HOME.
            code: the exit code that each process must end with.
            at: called when all processes wait at a `meet` of that name, before they go on.

        Returns:
            One ended process for each of `hosts`.

        Raises:
            AssertionError: a process says nothing any more, or ended with another exit code.
        """
        self._runs += 1
        began = [self._begin(script, number, argv, variables) for number in hosts]

        def listen() -> None:
            running = {each.connection: each for each in began if not each.over}
            for connection in select.select(list(running), [], [], LOOK)[0]:
                running[connection].read()
            place = began[0].meets
            if place and all(each.meets == place for each in began):
                at.get(place, lambda: None)()
                for each in began:
                    each.go_on()

        try:
            until(
                f"{script} ends",
                lambda: all(each.over for each in began),
                began,
                moves=lambda: sum(each.lines for each in began),
                meanwhile=listen,
            )
        finally:
            for each in began:
                each.connection.close()
        for each in began:
            assert each.code == code, f"{script} on {each.name}{each.ends()}: {each.last_words()}"
        until("the daemons see the scripts go", lambda: all(map(self._is_free, hosts)), self.hosts)
        return began

    def _is_free(self, number: int) -> bool:
        return self.hosts[number].status().get("training") == "none"

    def _begin(self, script: str, number: int, argv: Sequence[str], variables: Mapping[str, str]) -> Script:
        host = self.hosts[number]
        log = self.directory / f"{self._runs}-{Path(script).stem}-{host.name}.log"
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self._door))
        request = {
            "script": str(HERE / script),
            "argv": [str(number), *argv],
            "environment": {"GOSSIPDP_HOME": str(host.home), **variables},
            "log": str(log),
        }
        log.touch()
        connection.sendall(json.dumps(request).encode() + b"\n")
        return Script(host, log, connection)
