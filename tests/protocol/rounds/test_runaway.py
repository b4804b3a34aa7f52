"""The last line of defence: a peer whose rounds grow and grow steps as if alone, and comes back."""

import pytest

from gossipdp.protocol.rounds.runaway import CALM, LONGEST, Runaway

CALM_ROUNDS = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.0, 1.1]
GROWING = [2.0, 4.0, 8.0, 16.0]


def played(lengths, *, alone=False, runaway=None):
    """The rounds after which `active` changed, from 0, and what they were played on."""
    runaway = runaway or Runaway()
    return [at for at, length in enumerate(lengths) if runaway.round_done(length, length, alone=alone)], runaway


def test_rounds_that_grow_beyond_all_measure_make_a_peer_step_as_if_alone():
    changes, runaway = played(CALM_ROUNDS + GROWING)
    assert changes == [len(CALM_ROUNDS) + 3] and runaway.active


@pytest.mark.parametrize(
    "lengths",
    [
        [2.0 * number + 1.0 for number in range(100)],  # a linear warm-up from 0
        CALM_ROUNDS + 20 * [10.0] + 20 * [100.0],  # rates that are raised tenfold
        CALM_ROUNDS + [1.2**number for number in range(60)],  # slow growth
        [*CALM_ROUNDS, 3.0, 9.0, 1.0, 27.0, 1.0, 81.0],  # noise
        100 * [0.0] + [1.0],
    ],
)
def test_growth_that_training_shows_too_is_none(lengths):
    assert played(lengths)[0] == []


def test_peer_that_is_alone_steps_so_anyway():
    assert played(CALM_ROUNDS + GROWING, alone=True)[0] == []


def test_weight_falls_to_nothing_and_comes_back_by_doubling():
    _, runaway = played(CALM_ROUNDS + GROWING)
    shares = [runaway.share]
    for _ in range(10):
        runaway.round_done(16.0, 16.0, alone=False)
        shares.append(runaway.share)
    assert shares == [0.25, 0.0625, 0.0, 0.0, 0.0625, 0.125, 0.25, 0.5, 1.0, 1.0, 1.0] and not runaway.active


def test_peer_stays_as_if_alone_while_its_rounds_grow():
    _, runaway = played(CALM_ROUNDS + GROWING)
    assert played([16.0 * 2.0**number for number in range(1, 60)], runaway=runaway)[0] == []


def test_each_relapse_doubles_the_calm_rounds_that_are_needed_up_to_a_bound():
    _, runaway = played([])
    needed = []
    for _ in range(6):
        played(CALM_ROUNDS + GROWING, runaway=runaway)
        needed.append(0)
        while runaway.active:
            runaway.round_done(16.0, 16.0, alone=False)
            needed[-1] += 1
    assert needed == [CALM, 2 * CALM, 4 * CALM, 8 * CALM, LONGEST, LONGEST]


def test_another_model_begins_anew():
    _, runaway = played(CALM_ROUNDS + GROWING)
    runaway.begin()
    assert not runaway.active and runaway.share == 1.0 and played(GROWING, runaway=runaway)[0] == []


def test_rounding_is_no_growth_and_no_reason_to_stay_alone():
    runaway = Runaway()
    assert not any(runaway.round_done(1e-9 * length, 1e-4, alone=False) for length in CALM_ROUNDS + GROWING)
    _, runaway = played(CALM_ROUNDS + GROWING)
    assert played([0.0, 2e-8, 0.0, 0.0, 1e-8, 0.0], runaway=runaway)[0] == [3]
