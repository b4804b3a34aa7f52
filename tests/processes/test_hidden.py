"""The page of hidden hosts, and what a look at a host counts. `test_nats` has real hosts behind NATs."""

from typing import Any, cast

import pytest

from simulations.processes.benchmarks import hidden
from simulations.processes.benchmarks.hidden import Observed
from simulations.processes.namespaces.processes import Host


class Told:
    """A host that tells what a test sets."""

    def __init__(self) -> None:
        self.said: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []

    def status(self) -> dict[str, Any]:
        return self.said

    def members(self) -> list[dict[str, Any]]:
        return self.rows


def row(peer: str, path: str, exchanges: int | None) -> dict[str, Any]:
    return {"id": peer, "path": path, "exchanges": exchanges}


def test_look_counts_each_exchange_under_the_path_of_its_time() -> None:
    host, observed = Told(), Observed(0.0)
    observed.look(cast(Host, host))
    host.said = {"steps": 30, "exchanges": {"done": 5, "lost": 1}}
    host.rows = [row("a", "via r", 3), row("b", "direct", 2), row("r", "direct", None)]
    observed.look(cast(Host, host))
    host.said = {"steps": 60, "exchanges": {"done": 9, "lost": 1, "stale": 1}}
    host.rows = [row("a", "direct", 5), row("b", "outbound-only", 4)]
    observed.look(cast(Host, host))
    host.said = {}
    observed.look(cast(Host, host))
    assert observed.paths == {"through a relay": 3, "direct": 4, "outbound-only": 2}
    assert (observed.steps, observed.failed) == (60, 2) and observed.first > 0.0


def run(case: str, seed: int, loss: float, paths: dict[str, int]) -> dict[str, Any]:
    told = {"case": case, "seed": seed, "steps": 1200, "seconds": 100.0, "losses": [loss, loss], "failed": 1}
    return told | {"joined": [9.0, 11.0], "first": [3.0, 5.0], "paths": paths, "carried": [12.0], "commit": "abc"}


def test_page_has_a_row_for_each_case_that_was_played() -> None:
    runs = [run("dialable6", 0, 1.5, {"direct": 100})]
    runs += [run("carrier", seed, 1.6 + seed / 10, {"direct": 40, "through a relay": 50}) for seed in range(2)]
    rows = [line for line in hidden.page(runs, "COMMAND").splitlines() if line.startswith("| ")][1:]
    assert rows == [
        "| six that can be dialled | 1.500 | 1.500 | 100 | 100 | 0 | 1 | 10 (11) | 4 (5) |  |",
        "| five hidden, one that trains and carries | 1.650 | 1.600, 1.700 | 90 | 40 | 50 | 1 | 10 (11) | 4 (5) | 12 |",
    ]


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.needs("NAT")
def test_five_hidden_hosts_and_a_hostile_relay_come_to_one_model(tmp_path: Any) -> None:
    case = next(each for each in hidden.CASES if each.name == "hostile")
    told = hidden.Run(case, 0, 150, tmp_path).play()
    assert len(set(told["losses"])) == 1 and told["losses"][0] < 3.0
    assert told["paths"]["through a relay"] > 0
