"""Scenarios at small size, their reports, and the command that plays, draws and searches (T4, T5, T7)."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.wire.messages import Lane, StateRefuse
from simulations import main as command
from simulations.check import Check
from simulations.main import SCENARIOS, Entry, Options, UnplayableError, simulate
from simulations.scenarios import chaos, churn, flash_crowd, mass_kill, partition, stragglers
from simulations.scenarios.base import Scenario, play
from simulations.scenarios.detection.report import detection_report
from simulations.scenarios.findings import Findings, Panel, Report
from simulations.scenarios.observed import Act, EndedExchange, Observation, ObservedCluster
from simulations.scenarios.picture import draw
from simulations.scenarios.reports import cold_start_report, data_report, relayed_report, scale_report
from simulations.scenarios.tables import print_report
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.faults import Fault
from simulations.simulator.network import Conditions, Network
from tests.simulations.faulty_responders import forget_mixed_chunks

CAMPAIGNS = {"chaos": "T1", "mass-kill": "T4", "partition": "T5", "scale": "T21", "stragglers": "T7"}
SMALL = {
    "chaos": lambda: play(chaos.SCENARIO, 3),
    "churn": lambda: play(churn.SCENARIO, 1, 4),
    "cold-start": lambda: cold_start_report(3, 3),
    "data": lambda: data_report(1, 6),
    "detection": lambda: detection_report(1, 32),
    "flash-crowd": lambda: play(flash_crowd.SCENARIO, 1, 7),
    "mass-kill": lambda: play(mass_kill.SCENARIO, 1, 4),
    "partition": lambda: play(partition.SCENARIO, 1, 10),
    "relayed": lambda: relayed_report(0, 60),
    "scale": lambda: scale_report(1, 24),
    "stragglers": lambda: play(stragglers.SCENARIO, 1, 6),
}


LONG = {"churn", "cold-start", "flash-crowd", "partition"}


def marked(name):
    marks = [pytest.mark.campaign(CAMPAIGNS[name])] if name in CAMPAIGNS else []
    return pytest.param(name, marks=[*marks, pytest.mark.long] if name in LONG else marks)


@pytest.fixture(params=map(marked, SMALL), scope="module")
def report(request):
    """Each scenario runs once."""
    return SMALL[request.param]()


def test_scenario_holds_every_invariant_and_meets_its_marks(report):
    assert report.passed, (report.violation, [check for check in report.findings.checks if not check.passed])
    assert report.findings.checks and report.findings.panels
    assert all(len(row) == len(report.findings.columns) for row in report.findings.rows)
    assert all(
        len(times) == len(values) > 0 for panel in report.findings.panels for times, values in panel.lines.values()
    )


def test_table_fits_eighty_columns(report):
    out = io.StringIO()
    print_report(report, "runs/simulate/x.png", "python -m simulations x", Console(file=out, width=200))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 and report.question in lines[0]
    assert sum(line.startswith("met") for line in lines) == len(report.findings.checks)


def test_picture_is_drawn(report, tmp_path):
    draw(report, tmp_path / "deep" / "x.png")
    data = (tmp_path / "deep" / "x.png").read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) > 20_000


def test_every_scenario_of_the_command_is_played_here():
    assert set(SMALL) == set(SCENARIOS)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["churn", "flash-crowd", "mass-kill", "partition", "stragglers"])
def test_scenario_at_its_own_size_meets_its_marks(name, seed):
    report = SCENARIOS[name].run(seed, SCENARIOS[name].peers)
    assert report.passed, (report.violation, report.findings.checks)


@pytest.mark.campaign("T5")
@pytest.mark.long
def test_network_that_was_cut_twice_learns_as_well_as_a_whole_one(record_property):
    """The loss of the last 15 s is within 2 %: a noisy quadratic, mean over peers, summed over three seeds."""
    losses = {"cut": 0.0, "whole": 0.0}
    for seed in range(1, 4):
        cut = partition.plan(seed, 10)
        for name, plan in (("cut", cut), ("whole", replace(cut, script=()))):
            cluster, seen = Cluster(seed, plan), []
            end = plan.forming + plan.chaos + plan.calm
            for second in range(1, 16):
                cluster.network.at(
                    end - second, "look", None, lambda cluster=cluster, seen=seen: seen.append(loss(cluster))
                )
            cluster.run()
            losses[name] += float(np.mean(seen))
    record_property("loss of the cut against the whole", losses["cut"] / losses["whole"])
    assert losses["cut"] <= 1.02 * losses["whole"]


def loss(cluster):
    optimum = cluster.trainers[0].optimum
    return np.mean([np.mean((host.algorithm.ledger.a - optimum) ** 2) for host in cluster.network.hosts])


# -- measurements -----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("report", ["partition"], indirect=True)
def test_each_half_knows_only_itself_until_the_heal(report):
    rows = {row[0]: row for row in report.findings.rows}
    assert rows["cut 50/50"][1] == "5" and rows["50/50 healed"][1] == "10"
    assert rows["cut 90/10"][1] == "9 / 1" and rows["90/10 healed"][1] == "10"


@pytest.mark.parametrize("report", ["stragglers"], indirect=True)
def test_slow_peers_do_not_delay_fast_ones(report):
    rows = {row[:2]: row for row in report.findings.rows}
    fast, ten, hundred = (float(rows["some slow", name][2]) for name in ("fast", "10 times slower", "100 times slower"))
    assert 4.75 <= fast <= 5.3 and 0.3 <= ten <= 0.7 and hundred <= 0.12


@pytest.mark.long
@pytest.mark.parametrize("report", ["flash-crowd"], indirect=True)
def test_flash_crowd_gets_each_chunk_about_once(report):
    (sent,) = (check.measured for check in report.findings.checks if "chunks of state" in check.name)
    assert 95 <= float(sent.rstrip("%")) <= 150


def observations(count, **fields):
    fixed = {"up": (0, 1), "ready": (0, 1), "seen": {0: 2, 1: 2}, "failed": {}, "distance": 0.1, "steps": {0: 0, 1: 0}}
    return [Observation(float(at), **(fixed | fields)) for at in range(count)]


def test_exchange_rate_counts_both_sides_of_ready_peers():
    run = ObservedCluster(1, chaos.plan(1, 3))
    run.observations.extend(observations(60))
    ended = (10.0, (0, 1)), (20.0, (0, 2)), (70.0, (0, 1))
    run.exchanges.extend(EndedExchange(at, hosts, 0.2) for at, hosts in ended)
    minute = Act("", 0.0, 60.0)
    assert run.exchange_rate(minute, (0, 1)) == pytest.approx(3 / 2)
    assert run.exchange_rate(minute, (0, 1), among=True) == pytest.approx(2 / 2)
    assert run.exchange_rate(minute, (2,)) == 0.0 and run.distance(minute) == 0.1
    assert run.seconds_until(lambda one: True, since=5.5) == 0.5
    assert run.seconds_until(lambda one: False, since=5.5) == float("inf")


def test_chaos_of_another_size_has_times_and_speeds_of_that_size():
    drawn = Plan.draw(5)
    assert (drawn.peers, drawn.slowness, drawn.calm) == (3, (1.0, 0.5, 2.0), 12.0)
    larger, largest, smaller = (chaos.plan(5, peers) for peers in (12, 40, 2))
    assert [len(plan.slowness) for plan in (larger, largest, smaller)] == [12, 40, 2]
    assert larger.slowness[:3] == drawn.slowness == largest.slowness[:3]
    assert [(plan.forming, plan.calm) for plan in (larger, largest, smaller)] == [
        (6.0, 13.0),
        (10.0, 15.0),
        (6.0, 12.0),
    ]
    assert min(fault.at for fault in largest.script) >= 10.0
    assert not chaos.plan(10, 20).agree and chaos.plan(10, 12).agree
    assert chaos.plan(5, 3) == drawn == chaos.plan(5, 0)


def test_chaos_misses_its_mark_if_nothing_was_checked():
    run = ObservedCluster(1, chaos.plan(1, 3))
    run.observations.extend(observations(60))
    assert not chaos.read(run).checks[0].passed
    run.books.mixed = run.books.checked = 9
    assert not chaos.read(run).checks[0].passed, "not at rest"
    run.books.rested = True
    assert chaos.read(run).checks[0].passed


# -- faults that scenarios write ------------------------------------------------------------------------------------


def test_joiner_does_not_start_before_its_fault():
    plan = replace(chaos.plan(3, 3), script=(Fault(at=8.0, kind="join", hosts=(2,), lasts=0.0),), agree=False)
    run = ObservedCluster(1, plan)
    run.run()
    assert run.started_at[2, 1] == 8.0 and max(run.started_at[host, 1] for host in (0, 1)) < 3.0
    assert (2, 1) in run.trains_at


def test_fault_that_waits_for_a_message_strikes_its_sender_once():
    script = (
        Fault(at=7.0, kind="lose", hosts=(0,), lasts=0.0, on="Ack", busy=True),
        Fault(at=7.0, kind="crash", hosts=(0,), lasts=1.0, on="Ack", busy=True),
        Fault(at=7.0, kind="pause", hosts=(1,), lasts=1.0, on="StateRefuse"),
    )
    conditions = Conditions()
    plan = replace(chaos.plan(3, 3), script=script, conditions=conditions, agree=False)
    records = []
    Cluster(1, plan, records.append).run()
    struck = [record for record in records if record.kind == "fault"]
    lost = [record for record in records if record.kind == "lost"]
    assert [record.what.kind for record in struck] == ["lose", "crash"]  # no StateRefuse was sent
    assert [type(record.what).__name__ for record in lost] == ["Ack"]
    assert struck[0].host == struck[1].host == lost[0].host and struck[0].at == struck[1].at == lost[0].at


def test_straggler_is_fast_again_when_the_fault_ends():
    run = Cluster(1, replace(chaos.plan(3, 2), agree=False, script=(
        Fault(at=7.0, kind="straggler", hosts=(1,), lasts=5.0, factor=20.0),
    )))  # fmt: skip
    steps = {}
    for at in (7.0, 11.9, 18.0):
        run.network.at(at, "look", None, lambda at=at: steps.__setitem__(at, [run.trainers[n].steps for n in (0, 1)]))
    run.run()
    slow, fast = [steps[11.9][host] - steps[7.0][host] for host in (1, 0)]
    assert fast >= 23 and slow <= 2 and steps[18.0][1] - steps[11.9][1] >= 10


def test_data_lanes_of_a_host_share_its_uplink():
    conditions = Conditions(latency=0.0, bandwidth=1e6, uplink=1e3)
    network = Network(1, conditions, listen=lambda host, event: None)
    config = Cluster(1, chaos.plan(3, 3)).network.hosts[0].config
    hosts = [network.add(config) for _ in range(3)]
    for host in hosts:
        network.start(host, seeds=())
    for target, lane in ((1, Lane.DATA), (2, Lane.DATA), (2, Lane.CONTROL)):
        message = StateRefuse(1, "gone")
        envelope = Envelope(to=hosts[target].id, address="", lane=lane, message=message, frames=[b"x" * 500])
        network._transmit(hosts[0], envelope)
    times = [(host, when) for when, _, kind, host, _, _ in sorted(network._heap) if kind == "message StateRefuse"]
    assert [(host.index, round(when, 2)) for host, when in times] == [(2, 0.0), (1, 0.5), (2, 1.0)]


# -- the command ----------------------------------------------------------------------------------------------------


def made(passed=True, seed=0):
    """A made-up report."""
    check = Check("peers are content", ">= 90 %", "95 %" if passed else "12 %", passed)
    panel = Panel("contentment", {"all": ([0.0, 1.0], [0.5, 0.9])})
    findings = Findings(("who", "how"), [("p0", "well")], [check], [panel])
    return Report("none", "Are they content?", seed, 2, findings, "", None, None, 100, 10.0, 0.5, "00")


@pytest.fixture
def content(monkeypatch):
    """A scenario whose third seed misses its mark."""
    played = []

    def run(seed, peers):
        played.append(seed)
        return made(seed != 12, seed)

    monkeypatch.setitem(SCENARIOS, "none", Entry("Are they content?", 2, run))
    return played


def test_met_mark_is_exit_0_and_the_picture_is_in_the_out_folder(content, tmp_path, capsys):
    assert simulate("none", Options(seed=3, out=tmp_path)) == 0
    out = capsys.readouterr().out
    assert "peers are content" in out and "replay" not in out and (tmp_path / "none-seed3.png").exists()


def test_missed_mark_is_exit_1_and_the_output_has_the_replay_command(content, tmp_path, capsys):
    assert simulate("none", Options(seed=12, out=tmp_path, picture=False)) == 1
    out = capsys.readouterr().out
    assert "MISSED" in out and "replay: python -m simulations none --seed 12" in out and not list(tmp_path.iterdir())


def test_search_stops_at_the_first_seed_that_fails(content, tmp_path, capsys):
    assert simulate("none", Options(seed=10, out=tmp_path, until_failure=True, picture=False)) == 1
    told = capsys.readouterr()
    assert content == [10, 11, 12] and "3 seeds, the last 12" in told.err and "--seed 12" in told.out


def test_search_ends_after_the_given_number_of_seeds(content, tmp_path, capsys):
    assert simulate("none", Options(seed=20, out=tmp_path, until_failure=True, seeds=4)) == 0
    assert content == [20, 21, 22, 23] and "4 seeds from 20 on, none failed" in capsys.readouterr().err


def test_json_is_the_whole_output(content, tmp_path, capsys):
    assert simulate("none", Options(seed=12, out=tmp_path, as_json=True)) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["passed"] is False and shown["rows"] == [{"who": "p0", "how": "well"}]
    assert shown["checks"][0]["measured"] == "12 %" and Path(shown["picture"]).exists()


def test_without_matplotlib_the_table_is_printed_without_a_picture(content, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert simulate("none", Options(seed=1, out=tmp_path)) == 0
    told = capsys.readouterr()
    assert "pip install 'gossipdp[demo]'" in told.err and "peers are content" in told.out


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("nonsense", Options(), "no scenario 'nonsense'; there are chaos"),
        ("stragglers", Options(peers=3), "at least 6 peers"),
        ("scale", Options(replay=Path("x")), "no plan to replay"),
    ],
)
def test_unplayable_options_raise(name, options, words):
    with pytest.raises(UnplayableError, match=words):
        simulate(name, options)


def test_replay_file_without_a_run_raises(tmp_path):
    (tmp_path / "x.json").write_text('{"seed": 1}')
    with pytest.raises(UnplayableError, match="holds no run"):
        simulate("chaos", Options(replay=tmp_path / "x.json"))


@pytest.mark.long
def test_violation_is_shrunk_told_and_replayed(tmp_path, capsys, monkeypatch):
    forget_mixed_chunks(monkeypatch)

    def plan(seed, peers):
        script = (Fault(at=8.0, kind="pause", hosts=(1,), lasts=0.3),)
        return replace(
            chaos.plan(5, 3), size=300, script=script, conditions=Conditions(loss=0.4), chaos=6.0, agree=False
        )

    scenario = Scenario("chaos", "Does it hold?", 3, plan, chaos.read)
    monkeypatch.setitem(SCENARIOS, "chaos", command.of_whole_peers(scenario))
    assert simulate("chaos", Options(seed=5, out=tmp_path, shrink=10.0)) == 1
    told = capsys.readouterr()
    assert "VIOLATED: I2" in told.out and "never settled" in told.out and "shrunk in" in told.out
    assert "replay: python -m simulations chaos --seed 5" in told.out and (tmp_path / "chaos-seed5.png").exists()
    small = tmp_path / "chaos-seed5-small.json"
    assert f"python -m simulations chaos --replay {small}" in told.out.replace("\n", " ")
    assert small.with_suffix(".txt").read_text().strip() in told.out
    assert simulate("chaos", Options(replay=small, out=tmp_path, picture=False)) == 1
    assert "never settled" in capsys.readouterr().out
