"""`gossipdp plan --from-running` beside real daemons that train."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.processes.running import Network, gossipdp, running, until

pytestmark = pytest.mark.processes


def rated(network: Network) -> bool:
    """Whether the founder knows the samples a second of all members."""
    return all(row.get("samples_per_second") for row in network.founder.members())


def test_plan_takes_the_figures_of_real_peers(tmp_path: Path) -> None:
    with running(tmp_path, 2, settings="[exchange]\nevery = 10\n") as network:
        network.start()
        network.until_it_runs()
        until("all rates are known", lambda: rated(network), network.hosts)
        done = gossipdp("--home", str(network.founder.home), "plan", "--from-running", "--json")
        assert done.returncode == 0, done.stderr
        status = network.founder.status()
    told: dict[str, Any] = json.loads(done.stdout)
    there = told["network"]
    assert there["parameters"] == status["parameters"] and there["hosts"] == 2
    assert set(told["taken"]) == {"parameters", "step_time", "hosts", "speeds", "bandwidth", "latency"}
    # A step sleeps for 10 ms.
    assert there["step_time"] >= 0.01 and there["latency"] > 0.0 and there["bandwidth"] > 1000.0
    assert told["advice"]["text"] and len(told["ways"]) == 6
