"""A Prometheus server for tests, which evaluates the alert rules that are shipped."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.peers.deploy.queries import RULES
from tests.processes.running import Process, environment, kept_port


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
