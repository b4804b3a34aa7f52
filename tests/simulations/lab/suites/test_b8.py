"""Suite B8: its marks, and which arms it plays with which seeds."""

import pytest

from simulations.lab.suites import b8
from simulations.lab.suites.base import Outcome, Results
from tests.simulations.lab.sample_runs import answered

MUS = ("DiLoCo fp32, mu 0.6", "DiLoCo fp32, mu 0.8")
"""cold, and after a warm start"""


def b8_findings(losses, seeds=1):
    outcomes = [
        Outcome(
            arm, [answered(arm, losses.get(arm.label, 1.9), seed) for seed in range(min(arm.seeds or seeds, seeds))]
        )
        for arm in b8.SUITE.arms("normal")
    ]
    return b8.SUITE.read(Results(outcomes))


def test_b8_marks_pairwise_from_the_given_start_and_from_its_own():
    found = b8_findings({b8.OURS: 2.19, b8.OWN: 2.22, MUS[0]: 2.15, MUS[1]: 2.16})
    met = {check.name: check.passed for check in found.checks}
    assert met["N = 8, cold: pairwise above DiLoCo fp32, mu 0.6, nats"]
    assert met["N = 32, warm: pairwise above DiLoCo fp32, mu 0.8, nats"]
    assert not met[f"N = 16, warm: {b8.OWN} above DiLoCo fp32, mu 0.8, nats"]
    assert len(met) == 2 * len(b8.SIZES) + len(b8.OWN_SIZES)


@pytest.mark.parametrize("label", [b8.OURS, b8.OWN, *MUS])
def test_b8_plays_every_seed_of_arms_with_marks(label):
    found = [arm for arm in b8.SUITE.arms("normal") if arm.label == label]
    assert found and all(arm.seeds is None for arm in found)


def test_b8_compares_with_one_seed_by_that_seed():
    found = b8_findings({b8.OURS: 2.0, "DDP": 1.9}, seeds=3)
    told_by = {figure.name: figure.measured for figure in found.reported}
    assert told_by["N = 8, cold: pairwise above DDP at equal samples, nats"].startswith("0.100;")
    assert told_by["N = 16, cold: pairwise above DDP at equal samples, nats"].startswith("0.100 (1 seed)")


def test_b8_draws_every_size_after_a_warm_start():
    (drawn,) = b8_findings({}).graphs
    assert list(drawn.panels) == [f"N = {peers}, warm" for peers in b8.SIZES]
    assert set(drawn.panels["N = 8, warm"]) == {b8.OURS, b8.OWN, MUS[1], "DDP"}
