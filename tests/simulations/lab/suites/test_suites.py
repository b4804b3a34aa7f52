"""The suites of the laboratory: all can be played and reported, every mark can be missed, and small runs hold."""

import json
import re

import pytest

from simulations.lab.pages import main as pages
from simulations.lab.pages.main import SUITES
from simulations.lab.pages.report import About, page
from simulations.lab.runs import runs
from simulations.lab.runs.answers import Answer
from simulations.lab.runs.runs import Run
from simulations.lab.suites import b9, clock
from simulations.lab.suites.arms import arms
from simulations.lab.suites.base import Arm, Outcome, Results
from simulations.lab.suites.model import diloco
from simulations.lab.theory.consensus import Row
from tests.simulations.lab.sample_runs import SMALL, answered

TIMED = {"b9", "clock"}
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
    assert not re.search(r"\bnan\b", text)
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


def test_b7_has_the_growth_without_momentum():
    arm = SUITES["b7"].arms("quick")[1]
    (row,) = arm.task.play()["rows"]
    assert row["ok"] and row["expected"] == pytest.approx((14 / 30) ** 0.5)
    assert arm.task.spec() != SUITES["b7"].arms("quick")[0].task.spec()


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


def reported_by(suite, groups, labels, losses):
    """What a suite reports of runs that end at once, by name. Methods without a loss in `losses` have 2.5."""
    arms = [Arm(group, label, Run(setting=SMALL)) for group in groups for label in labels]
    outcomes = [Outcome(arm, [answered(arm, losses.get(arm.label, 2.5), 0)]) for arm in arms]
    return {figure.name: figure.measured for figure in suite.read(Results(outcomes)).reported}


def test_b9_compares_each_start_with_the_best_momentum_of_diloco_from_the_same():
    cold, started = "DiLoCo 4-bit, mu 0.4", "DiLoCo 4-bit, overlapped, H 80, its own warm start, mu 0.8"
    losses = {b9.OURS: 1.9, "pairwise": 2.0, cold: 2.25, started: 1.8}
    found = reported_by(b9.SUITE, ["a model"], b9.WAYS, losses)
    assert found == {
        f"a model: pairwise below {cold}": "0.250 (1 seed)",
        f"a model: {b9.OURS} below {started}": "-0.100 (1 seed)",
    }


def test_clock_compares_with_the_best_that_wait_and_with_the_best_of_all():
    waits, free = "DiLoCo 4-bit, H 20", "DiLoCo 4-bit, overlapped, H 20"
    found = reported_by(clock.SUITE, ["a link, equal"], clock.LABELS, {clock.OURS: 1.9, waits: 2.1, free: 2.0})
    name = "a link, equal: below the best of all"
    assert found == {
        f"{name} that wait ({waits})": "0.200 (1 seed)",
        f"{name} ({free})": "0.100 (1 seed)",
    }


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
        "local": Run(setting=SMALL, method="local-only"),
    }
    return {name: run.curve(run.play()).last for name, run in ways.items()}


@pytest.mark.long
def test_synchronous_steps_are_the_best_at_equal_samples(ends):
    others = [point.loss for name, point in ends.items() if name != "ddp"]
    assert ends["ddp"].loss < min(others) - 0.02


@pytest.mark.long
def test_pairwise_is_better_than_being_alone(ends):
    assert ends["pairwise"].loss < ends["local"].loss - 0.1


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
