"""The map of one eigenvalue by one round (algorithms section 3b) against runs of the product's pairwise."""

import numpy as np
import pytest

from simulations.lab.theory.feedback import Loop, measured, polynomial

EXPLODES = Loop(h=1 / 64, every=20, lands=0.9)
POINTS = [
    EXPLODES,
    Loop(h=1 / 64, every=20, lands=0.3),
    Loop(h=1 / 64, every=20, lands=0.6, mu=0.0),
    pytest.param(Loop(h=0.1, every=20, lands=0.6), marks=pytest.mark.long),
    pytest.param(Loop(h=1e-3, every=20, lands=0.6), marks=pytest.mark.long),
]


@pytest.mark.parametrize("loop", POINTS, ids=str)
def test_growth_of_a_difference_is_the_largest_root(loop):
    assert measured(loop, rounds=20) == pytest.approx(loop.growth(), rel=0.01)


def test_stable_region_ends_where_corrections_land_late():
    growths = [Loop(h=1 / 64, every=20, lands=lands).growth() for lands in (0.05, 0.3, 0.6, 0.9, 1.0)]
    assert growths[0] < growths[1] < 1.0 < growths[2] < growths[3] < growths[4]
    assert Loop(h=1 / 64, every=20, lands=0.9, mu=0.0).growth() > 1.0
    assert all(Loop(h=1 / 64, every=20, lands=lands).growth(mixing=False) < 1.0 for lands in (0.05, 0.9))


@pytest.mark.parametrize(("h", "lands", "mu"), [(0.05, 0.25, 0.8), (0.3, 0.75, 0.8), (0.02, 1.0, 0.0)])
def test_polynomial_is_that_of_the_map_without_inner_momentum(h, lands, mu):
    loop = Loop(h=h, every=20, lands=lands, beta=0.0, mu=mu)
    taken = 1.0 - (1.0 - h) ** (20 - 20 * lands)
    found = polynomial(1.0 - (1.0 - h) ** 20, taken, mu=mu, kappa=0.3 if mu else 0.0)
    assert np.sort(np.abs(np.roots(found)))[-1] == pytest.approx(loop.growth(), rel=1e-9)


def test_a_measured_share_makes_the_loop_stable_in_theory_and_in_a_noisy_run():
    assert EXPLODES.growth() > 1.8 and EXPLODES.growth(guarded=True) < 0.5
    assert measured(EXPLODES, noise=1.0, rounds=16) > 1.8
    assert measured(EXPLODES, noise=1.0, guard="g", rounds=16) < 0.65


def test_without_noise_the_last_line_of_defence_alone_stops_the_growth():
    """D, c and earlier D are parallel then, so c counts as progress."""
    assert measured(EXPLODES, guard="g", rounds=16) == pytest.approx(EXPLODES.growth(), rel=0.01)
    assert measured(EXPLODES, guard="both", rounds=30) < 1.0
