"""Five supervised peers, each on a host of its own, and a sixth host with Prometheus, from which an operator looks."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from importlib import resources
from pathlib import Path
from typing import Any, Final

from simulations.processes.namespaces.hosts import Host as Place
from simulations.processes.namespaces.hosts import Lab
from simulations.processes.namespaces.processes import Host, Process, end, environment
from simulations.processes.progress import until

__all__ = ["DISK", "PEERS", "Town"]

PEERS: Final = 5
PORT: Final = 4710
METRICS: Final = 9470
DISK: Final = "1g"
"""size of the file system of each home"""
RULES: Final = Path(str(resources.files("peers"))) / "deploy" / "prometheus" / "alerts.yml"


class Town:
    """The hosts of a drill. Use it in a `with` block: it needs root, namespaces and file systems in memory.

    Args:
        directory: gets homes, logs and the data of Prometheus.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lab = Lab(PEERS + 1, rate="100mbit")
        self.hosts: list[Host] = []
        self._prometheus: Process | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Town:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.lab)
            for number in range(PEERS):
                self.hosts.append(self._host(number, stack))
            stack.callback(lambda: end(self.hosts))
            self._start()
            stack.callback(self._watch().kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- what the operator uses ---------------------------------------------------------------------------------

    def place(self, host: Host) -> Place:
        """The machine of `host`."""
        return self.lab.hosts[self.hosts.index(host)]

    def tool(self, host: Host, *words: str, seconds: float = 40.0) -> str:
        """What a `gossipdp` command prints on `host`, on a terminal's 80 columns."""
        command = self.place(host).command([sys.executable, "-m", "peers.cli", *words, "--home", str(host.home)])
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds, check=False, env=environment(COLUMNS="80")
            )
        except subprocess.TimeoutExpired:
            return f"(no answer in {seconds:.0f} s)"
        return done.stdout + done.stderr

    def page(self, host: Host) -> dict[str, Any]:
        """What the status page of `host` shows, as its JSON; {} if it does not answer."""
        address = self.place(host).address
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(self._get(f"http://{address}:{METRICS}/status.json")))
        return {}

    def alerts(self) -> list[str]:
        """The alerts that Prometheus has, pending ones too: state, name, instance and summary."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self._get("http://127.0.0.1:9090/api/v1/alerts"))["data"]["alerts"]
            return sorted(
                f"{each['state']:<8} {each['labels']['alertname']} {each['labels'].get('peer', '')}"
                f" {each['labels'].get('instance', '')}: {each['annotations'].get('summary', '')}"
                for each in found
            )
        return []

    def well(self) -> bool:
        """Whether all peers are healthy and know each other."""
        answers = [host.status() for host in self.hosts]
        return all(
            answer and answer["verdict"]["state"] == "healthy" and answer["members"]["alive"] == PEERS
            for answer in answers
        )

    def orders(self, host: Host) -> Path:
        """The file from which the training process of `host` takes faults."""
        return self.directory / f"{host.name}.orders"

    def start(self, host: Host) -> None:
        """Start `host` as its owner would, with the command of its first start."""
        command = [*host.training_command(), "--orders", str(self.orders(host))]
        invite = "" if host.founder else f"@{self.hosts[0].home / 'invite'}"
        host.start_supervised(command, join=invite)

    # -- building -----------------------------------------------------------------------------------------------

    def _host(self, number: int, stack: contextlib.ExitStack) -> Host:
        place = self.lab.hosts[number]
        home = self.directory / f"h{number}"
        home.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "drill", str(home)], check=True)
        stack.callback(lambda: subprocess.run(["umount", "-l", str(home)], check=False))
        settings = f'advertise = "{place.address}"\n[checkpoint]\nevery = "20s"\n'
        settings += f'[metrics]\nlisten = "{place.address}:{METRICS}"\n[exchange]\nevery = 40\n'
        return Host(
            self.directory, f"h{number}", founder=number == 0, address=place.address, port=PORT,
            within=place.command, size=500_000, pace=0.05, settings=settings,
        )  # fmt: skip

    def _start(self) -> None:
        self.start(self.hosts[0])
        until("the founder writes an invite", (self.hosts[0].home / "invite").exists, self.hosts)
        for host in self.hosts[1:]:
            self.start(host)
        until("all peers are healthy", self.well, self.hosts, seconds=120)

    def _watch(self) -> Process:
        """Prometheus on the sixth host, with the alert rules that are shipped."""
        folder = self.directory / "prometheus"
        folder.mkdir()
        targets = [f"{place.address}:{METRICS}" for place in self.lab.hosts[:PEERS]]
        jobs = [{"job_name": "gossipdp", "static_configs": [{"targets": targets, "labels": {"network": "drill"}}]}]
        times = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"}
        settings = {"global": times, "rule_files": [str(RULES)], "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
        argv = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        command = self.lab.hosts[PEERS].command([*argv, "--web.listen-address=127.0.0.1:9090"])
        self._prometheus = Process(command, folder / "log", environment())
        return self._prometheus

    def _get(self, url: str) -> str:
        with self.lab.hosts[PEERS].inside(), urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
