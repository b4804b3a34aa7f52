"""Suite B1: its marks, its findings, and arms at equal bytes."""

from dataclasses import replace

import pytest

from simulations.lab.problems import PROBLEMS
from simulations.lab.runs import equal_time
from simulations.lab.suites import b1, b1_arms
from simulations.lab.suites.base import Outcome, Results
from tests.simulations.lab.sample_runs import answered, grid_of


def test_marks_of_b1_are_met_and_missed_by_the_figures_they_name():
    grid = b1.SUITE.arms("normal")

    def checks(pairwise, diloco):
        told_losses = {"pairwise": pairwise, "DiLoCo fp32": diloco}
        outcomes = [Outcome(arm, [answered(arm, told_losses.get(arm.label, 9.0), 0)]) for arm in grid]
        return {found.name: found for found in b1.SUITE.read(Results(outcomes)).checks}

    name = "pairwise: loss above DiLoCo fp32's, nats"
    assert checks(2.04, 2.0)[name].passed and not checks(2.06, 2.0)[name].passed
    assert checks(2.06, 2.0)[name].measured.startswith("0.060 (1 seed)")
    assert not checks(2.0, 2.0)["pairwise: DiLoCo's bytes over its own"].passed


def b1_findings(losses):
    """Findings of B1 from one loss per seed by label. Single replicas are as good as their mean."""
    outcomes = []
    for arm in b1.SUITE.arms("normal"):
        answers = [answered(arm, 0.0, 0) for _ in range(min(arm.seeds or 3, 3))]
        for answer, loss in zip(answers, losses.get(arm.label, (9.0, 9.0, 9.0)), strict=False):
            answer.result["points"][-1][4] = answer.result["points"][-1][6] = loss
        outcomes.append(Outcome(arm, answers))
    return b1.SUITE.read(Results(outcomes))


def test_b1_compares_with_every_setting_of_noloco_and_every_seed():
    others = {"NoLoCo 0.7, 0.7, 0.7": (2.5, 2.5, 2.5), "NoLoCo 0.3, 0.9, 0.9": (3.0, 1.9, 1.9)}
    found = {check.name: check for check in b1_findings({"pairwise": (2.3, 2.3, 2.3), **others}).checks}
    mark = found["pairwise below the best NoLoCo of the grid (NoLoCo 0.3, 0.9, 0.9), nats"]
    assert not mark.passed and mark.measured.startswith("-0.033 (-0.400 to 0.700);")
    assert all(arm.seeds is None for arm in b1.SUITE.arms("normal") if arm.label in b1_arms.NOLOCO)


def test_b1_marks_the_gap_of_each_variant_and_sums_up_its_marks():
    findings = b1_findings({"pairwise": (2.0, 2.0, 2.0)})
    gaps = [check.name for check in findings.checks if "single replicas above their mean, nats" in check.name]
    assert len(gaps) == len(b1.COLD) + len(b1_arms.OWN_WARM) + len(b1_arms.SHORT_WARM)
    assert all(b1.SUITE.attempts(name) for name in gaps)
    rows = {row[0]: row[1:] for row in findings.tables[0].rows}
    assert len(rows) == len(gaps) and rows["pairwise"][-1] == "no"  # all runs have the same bytes here
    assert rows["pairwise"][2] == "0.0000"


def test_arms_of_b1_at_equal_bytes_cost_about_the_same():
    """By the methods' own byte counts, without training. Escalated blocks add 3 to 5 %."""
    grid = {arm.label: arm.task for arm in grid_of("b1") if arm.group in (b1_arms.COLD_GROUP, b1_arms.FEWER_GROUP)}
    for label in b1_arms.EQUALLED:
        run = replace(grid[label], setting=replace(grid[label].setting, peers=16))
        lab, method = equal_time.ClockLab(PROBLEMS["quadratic"](size=51_584), run.setting), run.made()
        method.begin(lab)
        for _ in range(2):
            method.round(lab)
        total = run.setting.rounds * lab.received.mean() / 2 / 51_584
        assert total == pytest.approx(67.0, rel=0.06), label
