"""The map of one eigenvalue by one round (algorithms section 3b) against runs of the product's pairwise."""

import numpy as np
import pytest

from simulations.lab.theory.feedback import Loop, measured, polynomial

EXPLODES = Loop(h=1 / 64, every=20, lands=0.9)
POINTS = [
    EXPLODES,
    Loop(h=0.03, every=20, lands=0.3),
    Loop(h=1 / 64, every=20, lands=0.6, mu=0.0),
    pytest.param(Loop(h=0.1, every=20, lands=0.6), marks=pytest.mark.long),
    pytest.param(Loop(h=1e-3, every=20, lands=0.6), marks=pytest.mark.long),
]


@pytest.mark.parametrize("loop", POINTS, ids=str)
def test_growth_of_a_difference_is_the_largest_root(loop):
    assert measured(loop, rounds=20) == pytest.approx(loop.growth(), rel=0.01)


def test_stable_region_ends_where_corrections_land_late():
    growths = [Loop(h=1 / 64, every=20, lands=lands).growth() for lands in (0.05, 0.3, 0.6, 0.9, 1.0)]
    assert max(growths[:2]) < 1.0 < growths[2] < growths[3] < growths[4]
    assert Loop(h=1 / 64, every=20, lands=0.9, mu=0.0).growth() > 1.0
    assert all(Loop(h=1 / 64, every=20, lands=lands).growth(mixing=False) < 1.0 for lands in (0.05, 0.9))


@pytest.mark.parametrize(("h", "lands", "mu"), [(0.05, 0.5, 0.8), (0.3, 0.75, 0.8), (0.02, 1.0, 0.0)])
def test_polynomial_is_that_of_the_map_without_inner_momentum(h, lands, mu):
    loop = Loop(h=h, every=20, lands=lands, beta=0.0, mu=mu)
    taken = 1.0 - (1.0 - h) ** (20 - 20 * lands)
    found = polynomial(1.0 - (1.0 - h) ** 20, taken, mu=mu, kappa=0.3 if mu else 0.0)
    assert np.sort(np.abs(np.roots(found)))[-1] == pytest.approx(loop.growth(), rel=1e-9)


TURNS = Loop(h=0.65, every=5, lands=0.45)
"""D turns by a right angle each round"""
REPEATS = Loop(h=0.1, every=20, lands=0.6)
"""D grows along itself"""


@pytest.mark.parametrize("loop", [EXPLODES, TURNS, REPEATS], ids=str)
def test_g_makes_the_loop_stable_in_theory_and_in_runs(loop):
    assert loop.growth() > 1.25 and loop.growth(guarded=True) < 0.85
    assert measured(loop, rounds=30) > 1.25
    assert measured(loop, guard="g", rounds=30) < 0.9


def test_noise_does_not_hide_the_loop():
    assert measured(EXPLODES, noise=1.0, rounds=16) > 1.8
    assert measured(EXPLODES, noise=1.0, guard="g", rounds=16) < 0.65


@pytest.mark.parametrize("every", [5, 20, 100])
def test_whole_swings_leave_no_eigenvalue_that_explodes(every):
    """Wherever a host alone is stable, whenever the exchange lands."""
    for h in np.geomspace(1e-4, 3.6, 40):
        for lands in np.linspace(0.05, 1.0, 20):
            assert Loop(h=float(h), every=every, lands=float(lands)).growth(guarded=True) < 1.0


@pytest.mark.parametrize(("loop", "cosine"), [(EXPLODES, -1.0), (TURNS, 0.1), (REPEATS, 1.0)], ids=str)
def test_root_tells_how_d_stands_to_the_d_before(loop, cosine):
    root = loop.root()
    assert root.real / abs(root) == pytest.approx(cosine, abs=0.05)
