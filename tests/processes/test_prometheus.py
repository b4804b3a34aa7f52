"""A real Prometheus server scrapes two daemons, evaluates the alert rules and answers every query of the dashboard."""

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.peers.deploy.queries import RULES, rules, shown, variables
from tests.processes.running import Network, Process, environment, gossipdp, kept_port, running, until


def get(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())


class Prometheus:
    """Scrapes `targets` as peers of the network tiny, five times a second."""

    def __init__(self, directory: Path, targets: list[str]) -> None:
        directory.mkdir()
        times = {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "1s"}
        jobs = [{"job_name": "gossipdp", "static_configs": [{"targets": targets, "labels": {"network": "tiny"}}]}]
        # JSON is YAML.
        settings = {"global": times, "rule_files": [str(RULES)], "scrape_configs": jobs}
        (directory / "prometheus.yml").write_text(json.dumps(settings))
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
        answer = self._ask("query", query=expression)
        return [(series["metric"], float(series["value"][1])) for series in answer.get("result", ())]

    def values(self, label: str, series: str) -> set[str]:
        """The values that a label has among series, as a variable of a dashboard asks for them."""
        answer = self._ask("series", **{"match[]": series})
        return {each[label] for each in answer if label in each}

    def rules(self) -> dict[str, dict[str, Any]]:
        """Name -> rule with its state, for all that have been evaluated."""
        groups = self._ask("rules").get("groups", ())
        rules = [rule for group in groups for rule in group["rules"]]
        return {rule["name"]: rule for rule in rules if not rule["lastEvaluation"].startswith("0001-")}

    def _ask(self, what: str, **parameters: str) -> Any:
        """The data of an answer; {} while the server starts. A query that it cannot read is an error."""
        try:
            answer = json.loads(get(f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"))
        except urllib.error.HTTPError as error:
            assert error.code == 503, error.read().decode()
            return {}
        except OSError:
            return {}
        assert answer["status"] == "success", answer
        return answer["data"]


pytestmark = [pytest.mark.processes, pytest.mark.needs("prometheus", "promtool")]

AFTER_AN_EVENT = {"Exchanges that failed, offers refused", "Refused: NaN and others", "Notices"}
"""panels that may be empty while nothing has gone wrong"""
WITH_A_GPU = {"GPU utilisation", "GPU memory"}


class Scraped(NamedTuple):
    network: Network
    pages: list[str]
    server: Prometheus


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """Two hosts that have exchanged, and a server that has scraped both."""
    directory = tmp_path_factory.mktemp("scraped")
    with running(directory / "hosts", 2) as two:
        two.start()
        two.until_it_runs()
        pages = [host.status()["metrics"] for host in two.hosts]
        server = Prometheus(directory / "prometheus", [urllib.parse.urlsplit(page).netloc for page in pages])
        try:
            until("both targets are up", lambda: len(server.query("up == 1")) == 2)
            yield Scraped(two, pages, server)
        finally:
            server.end()


def test_prometheus_scrapes_a_daemon__answers_for_exchanges_and_bytes(scraped: Scraped) -> None:
    two, pages, server = scraped

    def rising(expression: str) -> bool:
        values = [value for _, value in server.query(expression)]
        return len(values) == 2 and min(values) > 0

    until("exchanges", lambda: rising('sum by (instance) (gossipdp_exchanges_total{result="done"})'))
    for name in ("gossipdp_sent_bytes_total", "gossipdp_received_bytes_total"):
        until(name, lambda name=name: rising(f"sum by (instance) ({name})"))
        until(f"the rate of {name}", lambda name=name: rising(f"sum by (instance) (rate({name}[10s]))"))

    # The server has what the daemon reports.
    asked = f'sum(gossipdp_exchanges_total{{result="done", instance="{urllib.parse.urlsplit(pages[0]).netloc}"}})'
    least = two.founder.exchanges()
    until("the server catches up", lambda: server.query(asked)[0][1] >= least)
    assert server.query(asked)[0][1] <= two.founder.exchanges()

    for page in pages:
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=get(page), capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_rules_are_evaluated_without_an_error_and_healthy_peers_raise_no_alarm(scraped: Scraped) -> None:
    server = scraped.server
    until("all rules are evaluated", lambda: set(server.rules()) == set(rules()))
    for name, rule in server.rules().items():
        assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), name
        assert rule["labels"]["severity"] == "info" or rule["state"] == "inactive", name


def test_the_metric_of_the_verdict_is_the_verdict_of_the_command(scraped: Scraped) -> None:
    for host, page in zip(scraped.network.hosts, scraped.pages, strict=True):
        checked = gossipdp("--home", str(host.home), "status", "--check")
        asked = f'gossipdp_verdict{{instance="{urllib.parse.urlsplit(page).netloc}"}} == 1'
        states = [labels["state"] for labels, _ in scraped.server.query(asked)]
        assert (states, checked.returncode) == (["healthy"], 0), checked.stdout
        assert checked.stdout.startswith("healthy: ")


def test_every_panel_of_the_dashboard_shows_something(scraped: Scraped) -> None:
    server, empty = scraped.server, AFTER_AN_EVENT | WITH_A_GPU
    assert empty <= set(shown())
    for title, expressions in shown().items():
        for asked in expressions:
            until(f"{title}: {asked}", lambda asked=asked: server.query(asked) or title in empty)  # noqa: B023


def test_variables_of_the_dashboard_list_network_and_peers(scraped: Scraped) -> None:
    for name, wanted in (
        ("network", {"tiny"}),
        ("instance", {urllib.parse.urlsplit(page).netloc for page in scraped.pages}),
    ):
        series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variables()[name]).groups()  # type: ignore[union-attr]
        assert scraped.server.values(label, series.replace("$network", ".*")) == wanted
