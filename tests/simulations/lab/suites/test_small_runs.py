"""Small runs hold with a wide margin: which method is ahead, and at which cost."""

from __future__ import annotations

import pytest

from simulations.lab.runs.runs import Run
from simulations.lab.suites.model import diloco
from tests.simulations.lab.sample_runs import SMALL


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
