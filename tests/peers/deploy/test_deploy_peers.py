"""The lines of the systemd unit with real daemons on loopback: what a stop leaves, and what other members see of it."""

import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gossipdp.errors import GossipdpError
from peers.control import ask
from simulations.processes.namespaces.processes import TRAINING, Process, environment, kept_port
from simulations.processes.progress import until
from tests.peers.deploy.files import JOIN, UNIT, exec_start, seconds, unit

pytestmark = pytest.mark.processes


class Service:
    """gossipdp@tiny.service on one host, started and stopped as systemd does."""

    def __init__(self, folder: Path, *files: Path, given: Path | None = None) -> None:
        self._files, self._given, self._port = files, given, kept_port()
        self.state, self.log = folder / "state", folder / "log"
        self.home = self.state / "gossipdp" / "tiny" / "home"
        (self.state / "gossipdp" / "tiny" / "work").mkdir(parents=True)
        listen = f"tcp://127.0.0.1:{self._port.getsockname()[1]}"
        self._variables = {
            "TRAIN": shlex.join([sys.executable, str(TRAINING), str(folder / "diary"), "--pace", "0.01"]),
            "OPTIONS": f"--preset local --peer {folder.name} --listen {listen} --set metrics.listen=off",
        }
        self.main: Process

    def start(self) -> None:
        words = exec_start(*self._files, instance="tiny", state=self.state, variables=self._variables)
        assert words[0] == "/opt/gossipdp/bin/gossipdp"
        argv = [sys.executable, "-m", "peers.cli", *words[1:]]
        if self._given is not None:
            (source,) = unit(*self._files)["StandardInput"]
            assert source == "file:/etc/gossipdp/%i.invite"
            argv = ["sh", "-c", 'exec "$@" < "$0"', str(self._given), *argv]
        self.main = Process(argv, self.log, environment())

    def stop(self) -> tuple[int, list[psutil.Process]]:
        """`systemctl stop`: SIGTERM to the main process. Return its exit code, and what systemd would have to kill."""
        assert unit(UNIT)["KillMode"] == ["mixed"] and unit(UNIT)["KillSignal"] == ["SIGTERM"]
        rest = psutil.Process(self.main.pid).children(recursive=True)
        self.main.signal(signal.SIGTERM)
        code = self.main.ended(seconds(unit(UNIT)["TimeoutStopSec"][0]))
        return code, psutil.wait_procs(rest, timeout=0)[1]

    def end(self) -> None:
        self._port.close()
        if self.main.code is None:
            self.stop()
        self.main.kill()

    def answer(self, verb: str) -> dict[str, Any]:
        try:
            return ask(self.home, verb)
        except GossipdpError:
            return {}

    def trains(self) -> bool:
        """Whether it has exchanged with another member that is alive."""
        status = self.answer("status")
        return bool(status) and status["exchanges"].get("done", 0) > 0 and status["members"]["alive"] == 2

    def state_of(self, name: str) -> str:
        rows = [row for row in self.answer("members").get("members", ()) if row["name"] == name]
        return str(max(rows, key=lambda row: row["incarnation"], default={}).get("state", "unknown"))


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Service, Service]]:
    founder = Service(tmp_path / "founder", UNIT)
    joiner = Service(tmp_path / "joiner", UNIT, JOIN, given=founder.home / "invite")
    founder.start()
    try:
        until("the founder has its invite", (founder.home / "invite").exists)
        joiner.start()
        yield founder, joiner
    finally:
        for host in (founder, joiner):
            if hasattr(host, "main"):
                host.end()


def test_stopped_unit_leaves_in_order__and_goes_on_when_it_is_started_again(hosts: tuple[Service, Service]) -> None:
    founder, joiner = hosts
    until("both train", lambda: founder.trains() and joiner.trains())
    assert joiner.stop() == (0, []), joiner.log.read_text()
    assert founder.state_of("joiner") == "left", "it has not died"
    assert "member joiner" in (said := founder.log.read_text()) and "has left" in said and "has failed" not in said
    assert list((joiner.home / "checkpoints").glob("checkpoint-*"))
    assert founder.answer("status")["training"] == "attached"
    joiner.start()
    until("it is a member again", lambda: founder.state_of("joiner") == "alive")
    until("it trains again", joiner.trains)
    assert founder.stop() == (0, []) and joiner.state_of("founder") == "left"
