"""Suite B8: its marks, the rule by which it decides, and what `auto` should take."""

from __future__ import annotations

import math

import pytest

from simulations.lab.suites import b8
from simulations.lab.suites.base import Outcome, Results
from tests.simulations.lab.sample_runs import answered, ended, outcome


def b8_findings(losses, seeds=1):
    outcomes = [
        Outcome(
            arm, [answered(arm, losses.get(arm.label, 1.9), seed) for seed in range(min(arm.seeds or seeds, seeds))]
        )
        for arm in b8.SUITE.arms("normal")
    ]
    return b8.SUITE.read(Results(outcomes))


def test_b8_marks_the_shipped_strategy_and_reports_the_others():
    mus = {"DiLoCo fp32, mu 0.6": 2.15, "DiLoCo fp32, mu 0.8": 2.16}
    own = {"pairwise, its own warm start": 2.11, "epidemic k=128, its own warm start": 2.1}
    own |= {"epidemic k=256, its own warm start": 2.12}
    found = b8_findings({"pairwise": 2.19, "epidemic k=128": 2.18, "epidemic k=256": 2.1, **mus, **own})
    met = {check.name: check.passed for check in found.checks}
    for group in ("N = 8, cold", "N = 32, warm"):
        name = f"{group}: pairwise, which is what auto takes, above the best of 3 (epidemic k=256), nats"
        assert not met[name]
    assert met["N = 8, cold: pairwise above DiLoCo fp32, mu 0.6, nats"]
    assert met["N = 32, warm: pairwise above DiLoCo fp32, mu 0.8, nats"]
    starts = "pairwise, its own warm start, which is what auto takes, above the best of 3"
    assert met[f"N = 16, warm: {starts} (epidemic k=128, its own warm start), nats"]
    assert not any(name.startswith("N = 32, warm: pairwise, its own") for name in met)
    rules = {row[0]: row[-1].partition(" ")[0] for row in found.tables[0].rows}
    assert rules == {
        "pairwise, which is what auto takes": "0.090",
        "epidemic k=128": "0.080",
        "epidemic k=256": "0.000",
        "epidemic k=128 while at most 10 contribute, else pairwise": "0.090",
        "epidemic k=256 while at most 10 contribute, else pairwise": "0.090",
    }


@pytest.mark.parametrize("label", ["epidemic k=256", *b8.OWN, *b8.DILOCO])
def test_b8_plays_every_seed_of_arms_with_marks(label):
    found = [arm for arm in b8.SUITE.arms("normal") if arm.label == label and not arm.group.startswith(b8.BY_RATE)]
    assert found and all(arm.seeds is None for arm in found)


def b8_decision(lost, seeds=3):
    """The decision if an epidemic with its own start is worse than pairwise by `lost` nats, by k and N."""

    def ended_at(label, peers):
        more = lost.get((label, peers), 0.1)
        return [ended(2.0 + (0.0 if label == "pairwise" else more)) for _ in range(seeds)]

    sizes = {
        peers: {label: outcome(*ended_at(label, peers), label=label) for label in b8.OURS} for peers in b8.OWN_SIZES
    }
    return b8.decided(sizes)


LEAN, WIDE = "epidemic k=128", "epidemic k=256"


@pytest.mark.parametrize(
    ("lost", "kind", "upto"),
    [
        ({}, LEAN, 0),
        ({(LEAN, 4): -0.019, (LEAN, 8): -0.03}, LEAN, 0),  # a tie at the smallest N goes to pairwise
        ({(LEAN, 4): -0.03, (LEAN, 16): -0.5}, LEAN, 4),  # only up to the first N at which it is not better
        ({(LEAN, 4): -0.03, (WIDE, 4): -0.03, (WIDE, 8): -0.03}, WIDE, 8),
        ({(LEAN, 4): -0.03, (WIDE, 4): -0.045}, LEAN, 4),  # of two that reach equally far, the one of fewer bytes
        ({(LEAN, 4): -0.03, (WIDE, 4): -0.06}, WIDE, 4),
        ({(LEAN, 4): math.nan}, LEAN, 0),
    ],
)
def test_b8_decides_by_its_rule(lost, kind, upto):
    found, most, _ = b8_decision(lost)
    assert most == upto and (found == kind or not upto)


def test_b8_decides_nothing_with_fewer_seeds_than_three():
    better = {(label, peers): -0.5 for label in (LEAN, WIDE) for peers in b8.OWN_SIZES}
    assert b8_decision(better)[1] == 16 and b8_decision(better, seeds=2)[1] == 0


def test_b8_says_which_strategy_auto_should_take():
    own = {"pairwise, its own warm start": 2.1, "epidemic k=256, its own warm start": 2.0}
    findings = b8_findings(own | {"epidemic k=128, its own warm start": 2.09}, seeds=3)
    assert (
        "**What `auto` has to take, by the rule above: epidemic k=256 while at most 16 contribute" in findings.notes[0]
    )
    table = findings.tables[1]
    assert table.columns == ("", "N = 4, warm", "N = 8, warm", "N = 16, warm", "the most")
    most = {row[0]: row[-1] for row in table.rows}
    assert most["what the rule decides (epidemic k=256 while at most 16 contribute, else pairwise)"] == "0.000"
    assert most["pairwise, which is what auto takes"] == "0.100"


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
