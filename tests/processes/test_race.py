"""The race: how runs become figures, and one short heat with real processes of all contestants."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from simulations.processes.namespaces.hosts import Weather, unavailable
from simulations.processes.race.__main__ import main
from simulations.processes.race.summary import curve_of, line_of, seconds_to, spread

WHY_NOT = unavailable(Weather())


def run(seconds: float, *curves: list[tuple[float, float]]) -> dict[str, object]:
    return {"seconds": seconds, "curves": dict(enumerate(curves))}


def test_the_loss_of_a_run_is_the_mean_of_models_that_hold_until_the_next_snapshot() -> None:
    played = run(10.0, [(0.0, 5.0), (4.0, 3.0), (10.5, 1.0)], [(1.0, 7.0), (6.0, 4.0)])
    assert curve_of(played) == [(1.0, 6.0), (4.0, 5.0), (6.0, 3.5)]


def test_a_host_without_a_snapshot_leaves_the_run_without_a_loss() -> None:
    assert curve_of(run(10.0, [(0.0, 5.0)], [])) == []


def test_seconds_to_a_loss_are_those_of_the_first_snapshot_that_reaches_it() -> None:
    curve = [(1.0, 3.0), (2.0, 2.0), (3.0, 2.5), (4.0, 1.0)]
    assert seconds_to(2.0, curve) == 2.0 and seconds_to(0.5, curve) == math.inf


def test_a_figure_tells_how_many_repeats_reached_it() -> None:
    assert spread([1.0, 2.0, 6.0], 1) == "3.0 (1.0 to 6.0)"
    assert spread([2.0, math.inf, 4.0], 0) == "3 in 2 of 3"
    assert spread([math.inf], 0) == "not reached" and spread([2.0], 0) == "2"


def test_a_line_has_points_where_all_repeats_have_a_loss() -> None:
    line = line_of([run(6.0, [(0.5, 4.0), (3.5, 2.0)]), run(6.0, [(2.5, 6.0)])], 2.0)
    assert (line.x, line.y, line.low, line.high) == ([4.0, 6.0], [4.0, 4.0], [2.0, 2.0], [6.0, 6.0])


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.namespaces
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "namespaces with weather work here")
def test_all_contestants_race_and_a_lost_host_stops_all_groups_but_not_gossip(tmp_path: Path) -> None:
    options = ["--quick", "--networks", "100mbit", "--conditions", "power", "--runs", str(tmp_path)]
    assert main(options) == 0
    runs = {run["entry"]: run for run in map(json.loads, (path.read_text() for path in tmp_path.glob("*.json")))}
    assert {"gossip", "ddp", "local_sgd", "diloco", "alone"} <= set(runs)
    for name, run in runs.items():
        assert run["rate"] > 0 and all(run["curves"].values()), name
        assert name == "alone" or min(run["sent"]) > 100_000, name
    for name in ("ddp", "local_sgd", "diloco"):
        assert [what for what, _ in runs[name]["events"][:2]] == ["a host loses power", "a member fails"], name
        assert runs[name]["pause"] > runs["gossip"]["pause"], name
    assert [what for what, _ in runs["gossip"]["events"]] == ["a host loses power"]
    # Replicas of DDP are equal at every step, those of gossip are not.
    last = {name: {curve[-1][1] for curve in runs[name]["curves"].values()} for name in ("ddp", "gossip")}
    assert len(last["ddp"]) == 1 and len(last["gossip"]) == 3
    page = (tmp_path / "race.md").read_text()
    assert "| gossipdp | " in page and "its figures mean nothing" in page
    assert (tmp_path / "race-100mbit.png").stat().st_size > 10_000
    # What is finished is not played again.
    assert main(options) == 0 and {path.name for path in tmp_path.glob("*.json")} == {
        f"100mbit-power-0-{name}.json" for name in runs
    }
