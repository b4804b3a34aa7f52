"""The suites of the laboratory: all can be played and reported, every mark can be missed, and small runs hold."""

import json
import re

import pytest

from simulations.lab.core import Setting
from simulations.lab.pages import main as pages
from simulations.lab.pages.main import SUITES
from simulations.lab.pages.report import About, page
from simulations.lab.runs import runs
from simulations.lab.runs.answers import Answer
from simulations.lab.runs.runs import Run
from simulations.lab.suites import b9, clock, scale
from simulations.lab.suites.arms import arms
from simulations.lab.suites.base import Arm, Outcome, Results
from simulations.lab.suites.model import diloco
from simulations.lab.theory.consensus import Row
from tests.simulations.lab.sample_runs import SMALL, answered, grid_of

TIMED = {"b4", "b9", "clock", "outer"}
"""suites that play rounds to choose their arms"""
ALL = [pytest.param(name, marks=pytest.mark.long) if name in TIMED else name for name in SUITES]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "scale", ["quick", *(pytest.param(each, marks=pytest.mark.long) for each in ("normal", "full"))]
)
def test_runs_of_a_suite_can_be_made_and_reported(name, scale):
    suite = SUITES[name]
    grid = suite.arms(scale)
    assert len({(arm.group, arm.label) for arm in grid}) == len(grid) > 0
    for arm in grid:
        json.dumps(arm.task.seeded(1).spec(), default=list)
        if isinstance(arm.task, Run):
            assert arm.task.made() is not None
            assert runs.TASKS[arm.task.problem](**arm.task.data).parameters > 0
    outcomes = [
        Outcome(arm, [answered(arm, 2.0 + 0.001 * place, seed) for seed in range(2)]) for place, arm in enumerate(grid)
    ]
    findings = suite.read(Results(outcomes))
    about = About(command="x", seeds=2, scale=scale, commit="c", machines=["m"], on="2026-01-02", runs=2, hours=0.1)
    text = page(suite, findings, about, {each.name: "file.png" for each in findings.graphs})
    assert suite.question in text
    assert not re.search(r"\bnan\b(?!, 3 bad| \(|,|\))", text)  # except the attack of that name
    for lines in (lines for each in findings.graphs for lines in each.panels.values()):
        assert lines and all(len(line.x) == len(line.y) > 0 for line in lines.values())


@pytest.mark.parametrize("name", ALL)
def test_suite_with_only_failed_runs_is_reported_and_meets_no_mark(name):
    suite = SUITES[name]
    outcomes = [Outcome(arm, [Answer({}, "code", 1.0, "fell over")]) for arm in suite.arms("quick")]
    findings = suite.read(Results(outcomes))
    assert not any(check.passed for check in findings.checks)


@pytest.mark.parametrize("name", ALL)
def test_suite_with_a_failed_seed_is_reported_and_meets_no_mark(name):
    suite = SUITES[name]
    outcomes = [
        Outcome(arm, [answered(arm, 2.0, 0), Answer({}, "code", 1.0, "fell over"), answered(arm, 2.0, 2)])
        for arm in suite.arms("quick")
    ]
    findings = suite.read(Results(outcomes))
    assert [check.name for check in findings.checks if check.passed] == []


@pytest.mark.parametrize("name", ["warmstart", "b6"])
def test_a_start_is_part_of_the_steps(name):
    for arm in SUITES[name].arms("normal"):
        setting = arm.task.setting
        before = setting.warmup + arm.task.options.get("warmup_steps", 0) + arm.task.data.get("steps", 0)
        total = before + setting.every * setting.rounds
        wanted = 1000 if name == "warmstart" else 800 if arm.group.startswith("bytes") else 400
        assert wanted - setting.every < total <= wanted, (arm.group, arm.label)


def test_b7_has_the_growth_without_momentum():
    arm = SUITES["b7"].arms("quick")[1]
    (row,) = arm.task.play()["rows"]
    assert row["ok"] and row["expected"] == pytest.approx((14 / 30) ** 0.5)
    assert arm.task.spec() != SUITES["b7"].arms("quick")[0].task.spec()


def test_b3_marks_the_churn_of_its_design_beside_the_harsher_one():
    grid = grid_of("b3")
    outcomes = [Outcome(arm, [answered(arm, 2.0 + 0.08 * (arm.group == "churn and loss"), 0)]) for arm in grid]
    met = {check.name: check.passed for check in SUITES["b3"].read(Results(outcomes)).checks}
    assert len(met) == 4 and met["pairwise, one goes, one comes, and loss: loss above the calm run's, nats"]
    assert not met["pairwise, churn and loss: loss above the calm run's, nats"]
    (lab,) = {
        round(arm.task.options["share"] * arm.task.setting.peers) for arm in grid if arm.group.startswith("one goes")
    }
    assert lab == 1


def test_defaults_report_rates_lengths_and_optimizers_without_marks():
    outcomes = [Outcome(arm, [answered(arm, 2.0, 0)]) for arm in grid_of("defaults")]
    found = [figure.name for figure in SUITES["defaults"].read(Results(outcomes)).reported]
    assert sum(name.startswith("pairwise: lr 0.008 above") for name in found) == 1
    assert sum("AdamW at its best lr" in name for name in found) == sum(": H 20 above" in name for name in found) == 2


@pytest.mark.long
def test_b9_labels_cold_starts_and_steps_per_round():
    outcomes = [Outcome(arm, [answered(arm, 2.0, 0)]) for arm in grid_of("b9")]
    names = [figure.name for figure in b9.SUITE.read(Results(outcomes)).reported]
    where = f"{b9.TRANSFORMING}, both cold: pairwise below DiLoCo fp32, H 200 (1 of 639 steps) at equal time, nats"
    assert where in names
    assert where.replace("both cold: pairwise", f"own start against cold: {b9.OWN}") in names


def test_b7_says_which_lines_are_exact_and_meets_none_if_a_seed_failed():
    arm = SUITES["b7"].arms("quick")[0]
    rows = [
        Row("hypercube, N 4: exact after log2 N", 2, 2, 0.0, True)._asdict(),
        Row("any", 0.5, 0.5, 0.0, True)._asdict(),
    ]
    good, bad = Answer({"rows": rows}, "code", 1.0), Answer({}, "code", 1.0, "fell")
    checks = SUITES["b7"].read(Results([Outcome(arm, [good, good])])).checks
    assert [check.mark for check in checks] == ["2 exactly", "0.5000 to 1 %"] and all(check.passed for check in checks)
    checks = SUITES["b7"].read(Results([Outcome(arm, [good, bad])])).checks
    assert not any(check.passed for check in checks) and "1 seeds failed" in checks[0].measured


@pytest.mark.long
def test_clock_names_all_methods_near_the_best():
    losses = {"DDP": 2.0, "pairwise": 2.009, "DiLoCo fp32, H 20": 2.011}
    outcomes = [Outcome(arm, [answered(arm, losses.get(arm.label, 2.5), 0)]) for arm in clock.SUITE.arms("quick")]
    note = clock.SUITE.read(Results(outcomes)).notes[0]
    assert f"{clock.FAST}, equal: DDP, pairwise;" in note


def test_schedule_is_counted_from_the_begin_of_a_cycle():
    """The first round of a run is the second step of its first cycle. With eight peers, 2 rounds end the cycle."""
    still = Setting(peers=8, every=1, rounds=8, inner="sgd", lr=0.0)
    options = {**scale.AGREEING, **scale.MEETING["hypercube"]}
    run = Run(setting=still, problem="consensus", data={"peers": 8}, options=options)
    for seed in range(3):
        one = run.seeded(seed)
        curve = one.curve(one.play())
        assert scale.rounds_of_cycle(curve) == 3.0 < scale.rounds_to_agree(curve) <= 5.0


@pytest.mark.long
def test_clock_compares_with_the_best_all_reduce_separately():
    losses = {"pairwise, its own warm start": 1.9, "pairwise": 2.1, "DiLoCo 4-bit, overlapped, H 20": 2.0}
    losses[other := "DiLoCo fp32, H 20, its own warm start"] = 1.0
    outcomes = [Outcome(arm, [answered(arm, losses.get(arm.label, 2.5), 0)]) for arm in clock.SUITE.arms("quick")]
    found = {figure.name: figure.measured for figure in clock.SUITE.read(Results(outcomes)).reported}
    best = "below the best all-reduce (DDP, DiLoCo in all its forms, local SGD)"
    for where in ("100 M, 1 Gbit/s, equal", f"{clock.FAST}, equal"):
        assert f"{where}, own start against any: pairwise, its own warm start {best} ({other}), nats" in found
        cold = found[f"{where}, all cold: pairwise {best} (DiLoCo 4-bit, overlapped, H 20), nats"]
        assert cold.startswith("-")
    assert {"DDP", "local SGD, H 80"} < set(clock.ALL_REDUCE) < set(clock.OTHERS)
    assert not {"SwarmSGD, H 20", "NoLoCo, H 20", "DeMo", "parameter server"} & set(clock.ALL_REDUCE)


def test_b5_reports_what_happens_without_defence():
    outcomes = [Outcome(arm, [answered(arm, 2.0, 0)]) for arm in SUITES["b5"].arms("quick")]
    names = [figure.name for figure in SUITES["b5"].read(Results(outcomes)).reported]
    bare = [name for name in names if name.startswith("without defence")]
    assert len(bare) == 2 and all("pairwise, no clipping" in name for name in bare)
    assert any(name.startswith("pairwise, clip 1: accuracy lost, worst of sign flip, alie") for name in names)


def test_b5_marks_the_designed_attacks_separately_from_stronger_ones():
    grid = SUITES["b5"].arms("quick")
    outcomes = []
    for arm in grid:
        answer = answered(arm, 2.0, 0)
        if arm.group.startswith("sign flip x10"):
            answer.result["points"][-1][5] = 0.2
        outcomes.append(Outcome(arm, [answer]))
    met = {check.name: check.passed for check in SUITES["b5"].read(Results(outcomes)).checks}
    assert all(met[name] != ("sign flip x10, alie z=1.5" in name) for name in met) and len(met) == 2


@pytest.mark.parametrize("name", ALL)
def test_every_mark_can_be_missed(name):
    suite = SUITES[name]
    outcomes = [Outcome(arm, [answered(arm, 2.0, 0)]) for arm in suite.arms("quick")]
    for found in suite.read(Results(outcomes)).checks:
        assert re.search(r"\d", found.mark) and found.mark != "reported", found


def test_arms_of_one_setting_share_it():
    grid = arms("g", SMALL, {"a": ("ddp", {}), "b": ("pairwise", {"bits": 5})}, seeds=1)
    assert [arm.task.setting for arm in grid] == [SMALL, SMALL]
    assert [len(pages.tasks_of(arm, 3)) for arm in grid] == [1, 1]
    assert [each.task.setting.seed for each in pages.tasks_of(Arm("g", "l", Run(setting=SMALL)), 3)] == [0, 1, 2]


@pytest.fixture(scope="module")
def ends():
    """Last points of one seed, by method."""
    ways = {
        "ddp": Run(setting=SMALL, method="ddp"),
        "diloco": Run(setting=SMALL, method="diloco", options=diloco(SMALL.rounds)),
        "pairwise": Run(setting=SMALL),
        "lean": Run(setting=SMALL, options={"early": 0.0, "exchanges": 1}),
        "fp32": Run(setting=SMALL, options={"codec": "fp32"}),
        "noloco": Run(setting=SMALL, method="noloco"),
        "local": Run(setting=SMALL, method="local-only"),
    }
    return {name: run.curve(run.play()).last for name, run in ways.items()}


@pytest.mark.long
def test_synchronous_steps_are_the_best_at_equal_samples(ends):
    others = [point.loss for name, point in ends.items() if name != "ddp"]
    assert ends["ddp"].loss < min(others) - 0.02


@pytest.mark.long
def test_pairwise_is_better_than_being_alone_and_than_noloco(ends):
    assert ends["pairwise"].loss < ends["local"].loss - 0.1
    assert ends["pairwise"].loss < ends["noloco"].loss - 0.05


@pytest.mark.long
def test_pairwise_is_about_as_good_as_diloco_for_a_fraction_of_its_bytes(ends):
    assert ends["pairwise"].loss < ends["diloco"].loss + 0.08
    assert ends["lean"].bytes < ends["diloco"].bytes / 8
    assert ends["pairwise"].bytes < ends["diloco"].bytes / 4


@pytest.mark.long
def test_four_bits_are_as_good_as_thirty_two(ends):
    assert abs(ends["pairwise"].loss - ends["fp32"].loss) < 0.04
    assert ends["pairwise"].bytes < ends["fp32"].bytes / 5


def test_single_replicas_are_hardly_worse_than_their_mean(ends):
    assert ends["pairwise"].replica_loss - ends["pairwise"].loss < 0.02
    assert ends["pairwise"].distance < 0.5 * ends["local"].distance
