"""A real Prometheus server scrapes a daemon and answers queries about it; promtool finds nothing to object to."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes.running import Network, Process, environment, kept_port, until

MISSING = [program for program in ("prometheus", "promtool") if shutil.which(program) is None]
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (Debian's package prometheus)"),
]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


class Prometheus:
    def __init__(self, directory: Path, targets: list[str]) -> None:
        directory.mkdir()
        rules = {"scrape_interval": "200ms", "scrape_timeout": "200ms"}
        jobs = [{"job_name": "gossipdp", "static_configs": [{"targets": targets}]}]
        # JSON is YAML.
        (directory / "prometheus.yml").write_text(json.dumps({"global": rules, "scrape_configs": jobs}))
        self.log, self._port = directory / "log", kept_port()
        port = self._port.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        argv = [
            "prometheus",
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self.process = Process(argv, self.log, environment())

    def end(self) -> None:
        self.process.kill()
        self._port.close()

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant query; [] without an answer."""
        try:
            answer = json.loads(get(f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"))
        except OSError:
            return []
        assert answer["status"] == "success", answer
        return [(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[list[str]], Prometheus]]:
    started: list[Prometheus] = []

    def start(targets: list[str]) -> Prometheus:
        started.append(Prometheus(tmp_path / "prometheus", targets))
        return started[-1]

    yield start
    for server in started:
        server.end()


def test_prometheus_scrapes_a_daemon__answers_for_exchanges_and_bytes(
    network: Callable[..., Network], prometheus: Callable[[list[str]], Prometheus]
) -> None:
    two = network(2)
    two.start()
    two.until_it_runs()
    pages = [host.status()["metrics"] for host in two.hosts]
    server = prometheus([urllib.parse.urlsplit(page).netloc for page in pages])

    def rising(expression: str) -> bool:
        values = [value for _, value in server.query(expression)]
        return len(values) == 2 and min(values) > 0

    told = server.log.read_text
    until(f"both targets are up; {told()}", lambda: len(server.query("up == 1")) == 2, 30)
    until("exchanges", lambda: rising('sum by (instance) (gossipdp_exchanges_total{result="done"})'), 10)
    for name in ("gossipdp_sent_bytes_total", "gossipdp_received_bytes_total"):
        until(name, lambda name=name: rising(f"sum by (instance) ({name})"), 10)
        until(f"the rate of {name}", lambda name=name: rising(f"sum by (instance) (rate({name}[10s]))"), 10)

    # The server has what the daemon reports.
    asked = f'sum(gossipdp_exchanges_total{{result="done", instance="{urllib.parse.urlsplit(pages[0]).netloc}"}})'
    least = two.founder.exchanges()
    until("the server catches up", lambda: server.query(asked)[0][1] >= least, 10)
    assert server.query(asked)[0][1] <= two.founder.exchanges()

    for page in pages:
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=get(page), capture_output=True, text=True, timeout=30, check=False
        )
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
