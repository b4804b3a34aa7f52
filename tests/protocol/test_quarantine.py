"""Strikes and pauses as a table: a habit sets a member aside, time brings it back, a relapse costs twice as much."""

from __future__ import annotations

import pytest

from gossipdp.protocol.quarantine import Quarantine, QuarantineConfig

CONFIG = QuarantineConfig(strikes=3, together=0.5, forgiven=100.0, shortest=10.0, longest=60.0, remembered=4)


def struck(times, config=CONFIG):
    """After each fault: is it a strike, and for how long is its doer set aside?"""
    quarantine = Quarantine(config)
    return [(quarantine.strike(b"bad", now), quarantine.left(b"bad", now)) for now in times]


@pytest.mark.parametrize(
    ("times", "pauses"),
    [
        ([0.0], [0.0]),
        ([0.0, 1.0, 2.0], [0.0, 0.0, 10.0]),
        ([0.0, 99.0, 198.0], [0.0, 0.0, 10.0]),  # each one within `forgiven` of the last
        ([0.0, 101.0, 202.0, 303.0], [0.0, 0.0, 0.0, 0.0]),  # one at a time is forgiven one at a time
        ([0.0, 1.0, 2.0, 13.0, 34.0, 75.0, 136.0], [0.0, 0.0, 10.0, 20.0, 40.0, 60.0, 60.0]),
        ([0.0, 1.0, 2.0, 13.0, 250.0], [0.0, 0.0, 10.0, 20.0, 10.0]),  # two of four forgiven, then the third
        ([0.0, 1.0, 2.0, 1000.0], [0.0, 0.0, 10.0, 0.0]),
    ],
)
def test_pause_after_each_strike(times, pauses):
    assert struck(times) == [(True, pause) for pause in pauses]


def test_faults_that_come_together_are_one_strike():
    """A window of chunks, all of one bad exchange."""
    assert struck([0.0, 0.0, 0.4, 1.0, 1.0, 1.4]) == [(kept, 0.0) for kept in (True, False, False, True, False, False)]


def test_what_comes_from_whom_is_set_aside_makes_its_pause_no_longer():
    outcomes = struck([0.0, 1.0, 2.0, 2.1, 7.0, 11.9, 12.0])
    assert outcomes[2:] == [
        (True, 10.0),
        (False, pytest.approx(9.9)),
        (False, 5.0),
        (False, pytest.approx(0.1)),
        (True, 20.0),
    ]


def test_member_is_aside_for_its_pause_and_no_longer():
    quarantine = Quarantine(CONFIG)
    for now in (0.0, 1.0, 2.0):
        assert not quarantine.aside(now)
        quarantine.strike(b"bad", now)
    assert quarantine.aside(2.0) == quarantine.aside(11.9) == [b"bad"]
    assert not quarantine.aside(12.0) and quarantine.left(b"bad", 12.0) == 0.0
    assert quarantine.strikes(b"other", 2.0) == 0 and quarantine.left(b"other", 2.0) == 0.0


def test_strikes_are_taken_back_one_by_one_after_the_pause():
    """Were they taken back during it, a long pause would forgive the very habit it is for."""
    quarantine = Quarantine(CONFIG)
    for now in (0.0, 1.0, 2.0):
        quarantine.strike(b"bad", now)
    counts = {now: quarantine.strikes(b"bad", now) for now in (2.0, 12.0, 111.0, 112.0, 212.0, 312.0, 900.0)}
    assert counts == {2.0: 3, 12.0: 3, 111.0: 3, 112.0: 2, 212.0: 1, 312.0: 0, 900.0: 0}


def test_whoever_goes_on_and_on_is_soon_set_aside_for_the_longest():
    outcomes, now = [], 0.0
    quarantine = Quarantine(CONFIG)
    for _ in range(200):
        quarantine.strike(b"bad", now)
        outcomes.append(quarantine.left(b"bad", now))
        now += 1.0 + outcomes[-1]
    assert outcomes[:7] == [0.0, 0.0, 10.0, 20.0, 40.0, 60.0, 60.0] and set(outcomes[6:]) == {60.0}


def test_only_so_many_are_remembered_and_the_longest_unstruck_goes_first():
    quarantine = Quarantine(CONFIG)
    for number in range(4):
        quarantine.strike(bytes([number]), float(number))
    quarantine.strike(bytes([0]), 4.0)
    quarantine.strike(bytes([9]), 5.0)
    assert [quarantine.strikes(bytes([number]), 5.0) for number in (0, 1, 2, 3, 9)] == [2, 0, 1, 1, 1]


def test_by_default_a_hostile_partner_is_set_aside_well_within_ten_exchanges():
    """T12: met every 100 s, it is met three times, and then once in a pause."""
    times = [100.0 * met for met in range(6)]
    assert struck(times, QuarantineConfig()) == [
        (True, 0.0),
        (True, 0.0),
        (True, 60.0),
        (True, 120.0),
        (False, 20.0),
        (True, 240.0),
    ]
