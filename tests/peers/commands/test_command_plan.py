"""`gossipdp plan`: what it prints, and what its pages show of it."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from gossipdp.config_loading import load
from peers.home import presets
from tests.peers.commands.running import Run

PAGE = Path(__file__).parents[3] / "docs" / "choosing.md"
FLAGS = ("--parameters", "100M", "--step-time", "1", "--hosts", "8", "--bandwidth", "1Gbit", "--latency", "1ms")
STATUS = {
    "parameters": 1_000_000, "samples_per_second": 64.0, "steps": 100, "samples": 1600,
    "last_exchange": {"seconds": 2.0, "received_bytes": 400_000},
}  # fmt: skip
MEMBERS = [
    {"me": True, "state": "alive", "trains": True, "samples_per_second": 64.0},
    {"state": "alive", "trains": True, "rtt": 0.02, "samples_per_second": 32.0},
]


def test_example_on_the_page_is_what_the_command_prints(gossipdp: Run) -> None:
    line, shown = re.findall(r"```console\n\$ (gossipdp plan.*?[^\\])\n(.*?)```", PAGE.read_text("utf-8"), re.S)[0]
    done = gossipdp(*shlex.split(line.replace("\\\n", ""))[1:])
    assert (done.code, done.out) == (0, shown)


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--price-per-gb", "0.09"),
        ("--bandwidth", "10Mbit", "--parameters", "60B", "--speeds", "1,2,4,16", "--price-per-gb", "900"),
        ("--bandwidth", "100Gbit", "--latency", "0ms", "--failures", "some"),
        ("--step-time", "10ms", "--bandwidth", "30Mbit", "--latency", "150ms", "--failures", "churn"),
        ("--hosts", "64", "--step-time", "30s", "--speeds", "1,9"),
    ],
)
def test_output_fits_80_columns_and_its_lines_are_a_run_file(gossipdp: Run, more: tuple[str, ...]) -> None:
    done = gossipdp("plan", *FLAGS, *more)
    assert done.code == 0 and max(map(len, done.out.splitlines())) <= 80
    table = done.out.split("\n\n")[1].splitlines()
    assert [line.split("  ")[0] for line in table] == [
        "way",
        "gossip",
        "DiLoCo, fp32",
        "DiLoCo, 4 bits",
        "DiLoCo, 4 bits, overlap",
        "local SGD",
        "DDP, bf16",
    ]
    assert ("price/h" in table[0]) is ("--price-per-gb" in more)
    settings = load(done.out[done.out.index("[exchange]") :], presets=presets())
    assert settings.exchange.every >= 50 and settings.exchange.bits == 3


def test_faster_links_and_larger_models_change_the_advice(gossipdp: Run) -> None:
    def advised(*more: str) -> dict[str, Any]:
        done = gossipdp("plan", *FLAGS, *more, "--json")
        return dict(json.loads(done.out))

    fast, slow = advised("--bandwidth", "10Gbit"), advised("--bandwidth", "100Mbit")
    huge = advised("--bandwidth", "100Mbit", "--parameters", "10B", "--step-time", "3")
    assert fast["advice"]["text"] == "Use DDP here." and slow["advice"]["text"] == "Use gossip here."
    assert slow["settings"]["exchange.every"] == 50 and huge["settings"]["exchange.every"] == 120


def test_json_has_every_way_and_its_figures(gossipdp: Run) -> None:
    told = json.loads(gossipdp("plan", *FLAGS, "--price-per-gb", "0.1", "--json").out)
    ways = {row["way"]: row for row in told["ways"]}
    # As in the page clock: bf16 gradients of 100 million parameters on 1 Gbit/s cost 68 % of the time.
    assert ways["DDP, bf16"]["lost"] == pytest.approx(0.682, abs=0.001)
    assert ways["gossip"]["sent_per_hour"] == pytest.approx(72 * 2 * 0.387e8, rel=2e-3)
    assert ways["gossip"]["price_per_hour"] == pytest.approx(ways["gossip"]["sent_per_hour"] * 1e-10)
    assert told["network"]["hosts"] == 8 and told["taken"] == {} and told["advice"]["use"] == "gossip"


def test_figures_of_a_running_network_are_named__and_flags_override_them(
    gossipdp: Run, answering: Any, tmp_path: Path
) -> None:
    answering(tmp_path, {"status": STATUS, "members": {"members": MEMBERS}})
    out = gossipdp("plan", "--from-running", "--home", tmp_path, "--bandwidth", "1Gbit").out
    heading = out.split("\n\n")[0]
    assert re.findall(r"^(\S[\w ]*?) ([\d.,]\S*(?:, \S+)?)(?: s| ms)?: ", heading, re.M) == [
        ("parameters", "1,000,000"),
        ("step time", "0.25"),
        ("hosts", "2"),
        ("speeds", "1, 0.5"),
        ("latency", "10"),
    ]
    there = " ".join(out.split("\n\n")[1].split())
    assert there == (
        "2 hosts of speeds 1, 2; 1,000,000 parameters, 0.5 s a step on the slowest; 1 Gbit/s, 10 ms one way."
    )
    told = json.loads(gossipdp("plan", "--from-running", "--home", tmp_path, "--json").out)
    assert told["taken"]["bandwidth"] == {
        "value": 200_000.0, "how": "what the last exchange reached; if the link carries more, give --bandwidth"
    }  # fmt: skip


def test_another_number_of_hosts_than_run_takes_no_speeds_of_them(
    gossipdp: Run, answering: Any, tmp_path: Path
) -> None:
    answering(tmp_path, {"status": STATUS, "members": {"members": MEMBERS}})
    told = json.loads(gossipdp("plan", "--from-running", "--home", tmp_path, "--hosts", "4", "--json").out)
    assert told["network"]["speeds"] == [1.0] * 4 and "speeds" not in told["taken"]


def test_running_network_without_a_figure__the_error_says_why(gossipdp: Run, answering: Any, tmp_path: Path) -> None:
    answering(tmp_path, {"status": STATUS | {"samples_per_second": None}, "members": {"members": MEMBERS}})
    done = gossipdp("plan", "--from-running", "--home", tmp_path)
    assert done.code == 3 and done.err.startswith("GD-324 the plan needs more figures\n")
    assert "no --step-time (this host has not trained for two rounds yet)\n" in done.err


def test_figures_that_are_missing_or_wrong(gossipdp: Run, tmp_path: Path) -> None:
    assert "seen: no --step-time, --hosts, --bandwidth, --latency" in gossipdp("plan", "--parameters", "1B").err
    done = gossipdp("plan", *FLAGS, "--bandwidth", "fast")
    assert done.code == 3 and done.err.startswith("GD-324 --bandwidth is not allowed\n  seen: 'fast'\n  do:   ")
    assert gossipdp("plan", "--from-running", "--home", tmp_path / "none").code == 4


def test_a_plan_needs_nothing_but_the_package(gossipdp: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "simulations"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "simulations", None)
    assert gossipdp("plan", *FLAGS).code == 0
