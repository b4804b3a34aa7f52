"""A single member takes the network's clock ahead only as fast as training could be."""

import pytest

from gossipdp.protocol.membership.clock_claims import (
    FASTER,
    LEAST,
    LONGEST,
    MOST_APART,
    ClockClaims,
    fastest,
    network_clock,
)

FAR = 1 << 30


@pytest.mark.parametrize(
    ("clock", "claims", "most", "expected"),
    [
        pytest.param(100, [], 10, 100, id="nobody claims anything"),
        pytest.param(100, [90], 10, 100, id="behind"),
        pytest.param(100, [108], 10, 108, id="a little ahead"),
        pytest.param(100, [FAR], 10, 110, id="one claim far ahead"),
        pytest.param(100, [FAR, 104], 10, 110, id="one far ahead, one a little"),
        pytest.param(100, [900, 905], 10, 900, id="two agree, as after a restart or a reunion"),
        pytest.param(100, [900, 905, FAR], 10, 905, id="two agree, and a third is far ahead"),
    ],
)
def test_network_clock(clock, claims, most, expected):
    assert network_clock(clock, claims, most) == expected


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [([], 0), ([5], 5), ([5, 20], 20), ([1, 1, 1, 10], 10), ([1, 1, 1, 1e6], MOST_APART)],
)
def test_fastest_speed_that_may_be_true(speeds, expected):
    assert fastest(speeds) == expected


def test_one_liar_among_peers_of_ten_steps_a_second__the_clock_gains_four_times_as_much_at_most():
    claims, clock = ClockClaims(0.0), 0
    for tenths in range(1, 6001):
        clock = claims.heard(clock, [FAR, tenths], [10.0, 10.0], tenths / 10)
    assert clock <= LEAST + FASTER * 10.0 * 600.0 + 1


def test_claims_after_a_long_sleep__there_is_room_for_a_minute():
    assert ClockClaims(0.0).heard(50, [FAR], [10.0], 86_400.0) == 50 + LEAST + FASTER * 10.0 * LONGEST


def test_honest_member_ten_times_as_fast_as_the_others__its_clock_is_the_networks():
    claims, clock = ClockClaims(0.0), 0
    for second in range(1, 100):
        clock = claims.heard(clock, [100 * second, 10 * second], [10.0, 10.0, 100.0], float(second))
        assert clock == 100 * second


def test_peer_that_knows_no_speed_yet__any_claim_is_believed():
    assert ClockClaims(0.0).heard(0, [FAR], [], 0.1) == FAR
