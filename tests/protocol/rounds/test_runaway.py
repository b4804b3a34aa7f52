"""The last line of defence: a peer whose rounds grow and grow steps as if alone, and comes back."""

import pytest

from gossipdp.protocol.rounds.runaway import CALM, LONGEST, WINDOW, Runaway

CALM_ROUNDS = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.0, 1.1]
GROWING = [2.0, 4.0, 8.0, 16.0, 32.0]


def played(lengths, *, alone=False, runaway=None):
    """The rounds after which `active` changed, from 0, and what they were played on."""
    runaway = runaway or Runaway()
    return [at for at, length in enumerate(lengths) if runaway.round_done(length, length, alone=alone)], runaway


def calm(rounds):
    return (CALM_ROUNDS * rounds)[:rounds]


@pytest.mark.parametrize(
    "lengths",
    [
        CALM_ROUNDS + GROWING,
        CALM_ROUNDS + [3.0 * 3.0**number for number in range(4)],
        [1.2**number for number in range(60)],  # slowly
        [1.25**number * (1.0, 1.6)[number % 2] for number in range(60)],  # in swings of two rounds
        calm(WINDOW) + [10.0] + [10.0 * 1.2**number for number in range(60)],  # after a rate was raised
    ],
)
def test_rounds_that_grow_beyond_all_measure_make_a_peer_step_as_if_alone(lengths):
    changes, _ = played(lengths)
    assert changes and lengths[changes[0]] < 1000.0 * lengths[0]


@pytest.mark.parametrize(
    "lengths",
    [
        [2.0 * number + 1.0 for number in range(100)],  # a linear warm-up from 0
        CALM_ROUNDS + 20 * [10.0] + 20 * [100.0],  # rates that are raised tenfold
        [*CALM_ROUNDS, 11.0, 10.0, 9.0, 8.0, 8.0, 7.0],  # a layer that is thawed
        calm(WINDOW) + [1.04**number for number in range(200)],  # slow growth
        [*CALM_ROUNDS, 3.0, 9.0, 1.0, 27.0, 1.0, 81.0],  # noise
        100 * [0.0] + [1.0],
    ],
)
def test_growth_that_training_shows_too_is_none(lengths):
    assert played(lengths)[0] == []


def test_peer_that_is_alone_steps_so_anyway():
    assert played(CALM_ROUNDS + GROWING, alone=True)[0] == []


def test_weight_falls_to_nothing_and_comes_back_by_doubling_to_half():
    _, runaway = played(CALM_ROUNDS + GROWING)
    shares = [runaway.share]
    for _ in range(9):
        runaway.round_done(32.0, 32.0, alone=False)
        shares.append(runaway.share)
    assert shares == [0.25, 0.0625, 0.0, 0.0, 0.0625, 0.125, 0.25, 0.5, 0.5, 0.5] and not runaway.active


def test_calm_rounds_give_the_whole_weight_back():
    _, runaway = played(CALM_ROUNDS + GROWING + 4 * [32.0])
    assert played((LONGEST - 1) * [32.0], runaway=runaway)[0] == [] and runaway.share == 0.5
    assert played([32.0], runaway=runaway)[0] == [] and runaway.share == 1.0


def test_peer_stays_as_if_alone_while_its_rounds_grow():
    _, runaway = played(CALM_ROUNDS + GROWING)
    assert played([32.0 * 2.0**number for number in range(1, 60)], runaway=runaway)[0] == []


def test_each_relapse_doubles_the_calm_rounds_that_are_needed_and_halves_the_weight():
    _, runaway = played(CALM_ROUNDS)
    needed, most, again, length = [], [], [], 1.0
    for _ in range(6):
        while not runaway.active:
            length *= 2.0
            runaway.round_done(length, length, alone=False)
        needed.append(0)
        again.append(runaway.again)
        while runaway.active:
            runaway.round_done(length, length, alone=False)
            needed[-1] += 1
        for _ in range(2 * CALM):
            runaway.round_done(length, length, alone=False)
        most.append(runaway.share)
    assert needed == [CALM, 2 * CALM, 4 * CALM, 8 * CALM, LONGEST, LONGEST]
    assert again == [False, *5 * [True]]
    assert most == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16, 1 / 16]


def test_relapse_is_noticed_at_once():
    _, runaway = played(CALM_ROUNDS + GROWING + 4 * [32.0])
    assert played([64.0, 128.0, 256.0, 512.0, 1024.0], runaway=runaway)[0] == [4]


def test_another_model_begins_anew():
    _, runaway = played(CALM_ROUNDS + GROWING)
    runaway.begin()
    assert not runaway.active and runaway.share == 1.0 and played(GROWING, runaway=runaway)[0] == []


def test_rounding_is_no_growth_and_no_reason_to_stay_alone():
    runaway = Runaway()
    assert not any(runaway.round_done(1e-9 * length, 1e-4, alone=False) for length in CALM_ROUNDS + GROWING)
    _, runaway = played(CALM_ROUNDS + GROWING)
    assert played([0.0, 2e-8, 0.0, 0.0, 1e-8, 0.0], runaway=runaway)[0] == [3]
