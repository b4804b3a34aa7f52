"""The race: how runs become figures, and one short heat with real processes of all contestants."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from peers.jobs import byte_gpt
from simulations.processes.race.__main__ import main
from simulations.processes.race.entries import CONTESTANTS, FRAGMENTS, GREATER, RACED, SWEEP, delay_of
from simulations.processes.race.evaluation import Evaluation
from simulations.processes.race.page import write_page
from simulations.processes.race.rules import NETWORKS, QUICK, RULES
from simulations.processes.race.summary import line_of, seconds_to, spread
from simulations.processes.race.training import fragments_of


def run(seconds: float, *curve: tuple[float, float]) -> dict[str, object]:
    return {"seconds": seconds, "curve": curve}


def keep(folder: Path, entry: str, repeat: int, loss: float, finished: float | None = None) -> None:
    """A finished run on equal hosts, as the race keeps it."""
    figures = run(6.0, (3.0, loss + 1.0), (6.0, loss)) | {
        "single": loss,
        "rate": 10.0,
        "pause": 0.5,
        "sent": [1_000_000],
    }
    heat = {"entry": entry, "network": "20mbit", "condition": "equal", "repeat": repeat, "finished": finished}
    about = {"commit": "abc", "machine": "a machine", "on": "2026-01-01", "quick": False}
    folder.mkdir(exist_ok=True)
    (folder / f"20mbit-equal-{repeat}-{entry}.json").write_text(json.dumps(figures | heat | about))


def snapshot(folder: Path, host: int, seconds: float, size: str, seed: int) -> dict[str, torch.Tensor]:
    state = byte_gpt.build_model(size, seed).state_dict()
    save_file(state, folder / f"model-{host}-{seconds:.3f}.safetensors")
    return state


def loss_of(*states: dict[str, torch.Tensor]) -> float:
    model = byte_gpt.build_model(QUICK.size)
    model.load_state_dict({name: sum(state[name] for state in states) / len(states) for name in states[0]})
    return byte_gpt.evaluate(model, byte_gpt.validation_windows(QUICK.windows, QUICK.context))


def test_the_model_of_a_run_is_the_mean_of_its_hosts_and_holds_until_the_next_snapshot(tmp_path: Path) -> None:
    first, second = (snapshot(tmp_path, 0, seconds, QUICK.size, seed) for seconds, seed in ((0.5, 1), (3.0, 2)))
    other = snapshot(tmp_path, 1, 0.75, QUICK.size, 3)
    snapshot(tmp_path, 0, 6.0, QUICK.size, 4)  # after the end
    evaluation = Evaluation(tmp_path, QUICK, [0, 1], 5.0)
    expected = [(0.5, loss_of(first, other)), (3.0, loss_of(second, other))]
    assert np.allclose(evaluation.curve(), expected, atol=1e-4)
    assert evaluation.single() == pytest.approx((loss_of(second) + loss_of(other)) / 2, abs=1e-4)


def test_a_host_without_a_snapshot_leaves_the_run_without_a_loss(tmp_path: Path) -> None:
    snapshot(tmp_path, 0, 0.5, QUICK.size, 1)
    evaluation = Evaluation(tmp_path, QUICK, [0, 1], 5.0)
    assert evaluation.curve() == [] and math.isnan(evaluation.single())


def test_seconds_to_a_loss_are_those_of_the_first_snapshot_that_reaches_it() -> None:
    curve = [(1.0, 3.0), (2.0, 2.0), (3.0, 2.5), (4.0, 1.0)]
    assert seconds_to(2.0, curve) == 2.0 and seconds_to(0.5, curve) == math.inf


def test_a_figure_tells_how_many_repeats_reached_it() -> None:
    assert spread([1.0, 2.0, 6.0], 1) == "3.0 (1.0 to 6.0)"
    assert spread([2.0, math.inf, 4.0], 0) == "3 in 2 of 3"
    assert spread([math.inf], 0) == "not reached" and spread([2.0], 0) == "2"


def test_a_line_has_points_where_all_repeats_have_a_loss() -> None:
    line = line_of([run(6.0, (0.5, 4.0), (3.5, 2.0)), run(6.0, (2.5, 6.0))], 2.0)
    assert (line.x, line.y, line.low, line.high) == ([4.0, 6.0], [4.0, 4.0], [2.0, 2.0], [6.0, 6.0])


def test_the_page_has_the_runs_of_the_race_and_those_of_the_sweep_apart(tmp_path: Path) -> None:
    keep(tmp_path, "gossip", 0, 2.0, finished=1.9)
    keep(tmp_path, "gossip", 1, 2.2)
    keep(tmp_path / "sweep", "diloco500", 100, 2.4)
    raced, swept = write_page(tmp_path, tmp_path).read_text().split("## Sweep")
    assert "| gossipdp | 6 | 2.100 (2.000 to 2.200) |" in raced
    assert "`gossipdp finish` leaves: 1.900 in 1 of 2." in raced
    assert "| DiLoCo, H 500 |" in swept and "| DiLoCo, H 500 |" not in raced
    assert "| gossipdp |" not in swept


def test_the_sweep_prints_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path / "sweep", "local_sgd64", 100, 2.4)
    assert main(["--sweep", "--page", "--runs", str(tmp_path)]) == 0
    assert "| local SGD, every 64 | 6 | 2.400 | 2.400 | 10.00 | 0.5 | 1.0 |" in capsys.readouterr().out


def test_contestants_of_all_networks_and_of_the_sweep_can_be_made() -> None:
    assert set(RACED) == {network.name for network in NETWORKS}
    assert {*SWEEP, *(name for names in RACED.values() for name in names)} <= set(CONTESTANTS)


def test_fragments_have_each_parameter_once_and_the_greater_one_is_as_large_as_the_delay_assumes() -> None:
    model = byte_gpt.build_model(RULES.size)
    whole = sum(parameter.numel() for parameter in model.parameters())
    parts = [list(fragment.parameters()) for fragment in fragments_of(model, FRAGMENTS)]
    assert [id(each) for part in parts for each in part] == [id(each) for each in model.parameters()]
    sizes = [sum(parameter.numel() for parameter in part) for part in parts]
    assert max(sizes) / whole == pytest.approx(GREATER, abs=0.005)


def test_the_delay_of_streaming_lasts_longer_than_an_all_reduce_and_fits_between_two() -> None:
    for network, every in zip(NETWORKS, (100, 400), strict=True):
        delay = delay_of(network, RULES.step)
        assert delay * RULES.step > GREATER * network.all_reduce and delay < every // FRAGMENTS


@pytest.mark.parametrize("name", ["README.md", "docs/performance.md"])
def test_a_page_shows_the_figures_of_the_race_that_was_played(name: str) -> None:
    root = Path(__file__).parents[2]
    played = (root / "simulations" / "results" / "race.md").read_text().split("## Results")[0].splitlines()
    titles = tuple(
        f"| {title} | "
        for title in ("gossipdp", "DDP, fp16", "DiLoCo, H 200", "DiLoCo, H 50/500", "hivemind, every 100")
    )
    table = (root / name).read_text().split("longest pause, s |\n")[1].split("\n\n")[0].splitlines()[1:]
    assert len([line for line in table if line.startswith(titles)]) == len(titles)
    assert set(table) <= set(played)


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.needs("weather")
def test_all_contestants_race_and_a_lost_host_stops_all_groups_but_not_gossip(tmp_path: Path) -> None:
    options = ["--quick", "--networks", "100mbit", "--conditions", "power", "--runs", str(tmp_path)]
    assert main(options) == 0
    runs = {run["entry"]: run for run in map(json.loads, (path.read_text() for path in tmp_path.glob("*.json")))}
    assert {"gossip", "ddp", "local_sgd64", "diloco", "diloco200", "alone"} <= set(runs)
    for name, run in runs.items():
        assert run["rate"] > 0 and run["curve"], name
        assert name in ("alone", "diloco200") or min(run["sent"]) > 100_000, name
    for name in ("ddp", "local_sgd64", "diloco"):
        assert [what for what, _ in runs[name]["events"][:2]] == ["a host loses power", "a member fails"], name
        assert runs[name]["pause"] > runs["gossip"]["pause"], name
    assert [what for what, _ in runs["gossip"]["events"]] == ["a host loses power"]
    assert runs["gossip"]["finished"] < runs["gossip"]["single"] and runs["ddp"]["finished"] is None
    # Replicas of DDP are equal at every step, those of gossip are not.
    assert runs["ddp"]["single"] == pytest.approx(runs["ddp"]["curve"][-1][1], abs=1e-3)
    assert runs["gossip"]["single"] > runs["gossip"]["curve"][-1][1]
    page = (tmp_path / "race.md").read_text()
    assert "| gossipdp | " in page and "its figures mean nothing" in page
    assert (tmp_path / "race-100mbit.png").stat().st_size > 10_000
    # What is finished is not played again.
    assert main(options) == 0 and {path.name for path in tmp_path.glob("*.json")} == {
        f"100mbit-power-0-{name}.json" for name in runs
    }
