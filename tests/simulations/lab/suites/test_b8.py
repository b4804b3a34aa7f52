"""Suite B8: its marks, and which arms it plays with which seeds and rates."""

import pytest

from simulations.lab.suites import b8
from simulations.lab.suites.base import Outcome, Results
from tests.simulations.lab.sample_runs import answered


def b8_findings(losses, seeds=1):
    outcomes = [
        Outcome(
            arm, [answered(arm, losses.get(arm.label, 1.9), seed) for seed in range(min(arm.seeds or seeds, seeds))]
        )
        for arm in b8.SUITE.arms("normal")
    ]
    return b8.SUITE.read(Results(outcomes))


def test_b8_marks_pairwise_from_the_given_start_and_from_its_own():
    mus = {"DiLoCo fp32, mu 0.6": 2.15, "DiLoCo fp32, mu 0.8": 2.16}
    found = b8_findings({"pairwise": 2.19, b8.STARTED: 2.21, **mus})
    met = {check.name: check.passed for check in found.checks}
    assert met["N = 8, cold: pairwise above DiLoCo fp32, mu 0.6, nats"]
    assert met["N = 32, warm: pairwise above DiLoCo fp32, mu 0.8, nats"]
    assert not met[f"N = 16, warm: {b8.STARTED} above DiLoCo fp32, mu 0.6, nats"]
    assert len(met) == 2 * len(b8.SIZES) + len(b8.OWN_SIZES)


@pytest.mark.parametrize("label", [b8.OURS, b8.STARTED, *b8.DILOCO])
def test_b8_plays_every_seed_of_arms_with_marks(label):
    found = [arm for arm in b8.SUITE.arms("normal") if arm.label == label and not arm.group.startswith(b8.BY_RATE)]
    assert found and all(arm.seeds is None for arm in found)


def test_b8_plays_every_method_and_start_at_every_rate_with_every_seed():
    findings = b8_findings({}, seeds=3)
    (table,) = (table for table in findings.tables if table.title.startswith("Learning rates"))
    assert table.columns == ("method", "0.001", "0.002", "0.004", "played at")
    assert {row[0] for row in table.rows} == {*b8.TRIED, *b8.OWN}
    rated = [arm for arm in b8.SUITE.arms("normal") if arm.group == b8.BY_RATE]
    assert len(rated) == 3 * len(table.rows) and all(arm.seeds is None for arm in rated)


def test_b8_plays_a_method_at_its_own_rate():
    for arm in b8.SUITE.arms("normal"):
        if arm.group != b8.BY_RATE:
            wanted = b8.TRANSFORMER.lr * b8.RATES.get(arm.task.method, 1.0)
            assert arm.task.setting.lr == pytest.approx(wanted), (arm.group, arm.label)


def test_b8_compares_with_one_seed_by_that_seed():
    found = b8_findings({"pairwise": 2.0, "DDP": 1.9}, seeds=3)
    told_by = {figure.name: figure.measured for figure in found.reported}
    assert told_by["N = 8, cold: pairwise above DDP at equal samples, nats"].startswith("0.100;")
    assert told_by["N = 16, cold: pairwise above DDP at equal samples, nats"].startswith("0.100 (1 seed)")


def test_b8_draws_sizes_with_equally_many_rounds():
    (drawn,) = (graph for graph in b8_findings({}).graphs if graph.name == "peers")
    assert {tuple(line.x) for lines in drawn.panels.values() for line in lines.values()} == {(4.0, 8.0, 16.0)}
