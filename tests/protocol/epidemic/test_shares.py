"""Each member's share of an epoch follows the samples that it claims (algorithms section 4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossipdp.protocol.epidemic.events import EpochClosed
from gossipdp.protocol.epidemic.shares import Shares
from tests.protocol.epidemic.increments import closed


def test_before_the_first_closed_epoch_all_count_as_equally_fast():
    assert Shares(50).of(800, 50, 4) == 0.25


def test_shares_follow_samples_a_step_for_any_length_of_rounds():
    shares = Shares(50)
    closed(shares, 3, (4000, 3), (4000, 3))
    assert shares.of(1000, 50, 3) == shares.of(2000, 100, 3) == shares.of(500, 25, 3) == 0.25


def test_epoch_without_a_round_counts_but_not_those_before_the_first_increment():
    shares = Shares(50)
    closed(shares, 3, (0, 0), (0, 0), (4000, 2), (0, 0))
    assert shares.of(2000, 100, 2) == 0.5


def test_newcomer_counts_as_one_of_average_speed():
    shares = Shares(50)
    closed(shares, 3, (1000, 1))
    assert shares.of(1000, 50, 1) == 1.0
    assert shares.of(1000, 50, 2) == 0.5


def test_epoch_with_part_of_a_newcomers_samples_does_not_enlarge_shares():
    """A network of four forms: one peer, then three more with short rounds, then all with whole rounds.

    Without the rule each of the four had share 1 after the third epoch, which moved the model four times too far.
    """
    shares, told = Shares(30), []
    for epoch, (samples, origins) in enumerate([(100, 1), (120, 1), (80, 4), (480, 4), (480, 4), (480, 4)]):
        shares.closed(EpochClosed(epoch, bytes(16), origins, samples, origins, -(-samples // max(1, origins))))
        told.append(shares.of(120, 30, 4))
    assert all(0.2 <= share <= 0.3 for share in told), told


def test_newcomers_one_after_the_other_count_as_of_average_speed():
    shares = Shares(30)
    for epoch, (samples, origins) in enumerate([(120, 1), (140, 2), (260, 3), (380, 4)]):
        shares.closed(EpochClosed(epoch, bytes(16), origins, samples, origins, -(-samples // max(1, origins))))
        assert shares.of(120, 30, 5) == pytest.approx(0.2)
    shares.closed(EpochClosed(4, bytes(16), 4, 480, 4, 120))
    assert shares.of(120, 30, 4) == 0.25


@pytest.mark.parametrize("lie", [1000, 1 << 40])
def test_claims_of_a_member_alone_in_an_epoch_leave_the_other_shares(lie):
    shares = Shares(50)
    closed(shares, 3, (3000, 3), (3000, 3), (lie, 1), (3000, 3))
    assert shares.of(1000, 50, 3) > 0.08


def test_member_that_skipped_an_epoch_is_no_newcomer():
    shares = Shares(50)
    closed(shares, 3, (2000, 2), (1000, 1), (2000, 2))
    assert shares.of(1000, 50, 2) == pytest.approx(0.6)


@given(st.integers(0, 10**9), st.integers(-5, 10**6), st.integers(1, 100), st.integers(0, 10**9))
def test_share_is_above_zero_and_at_most_one(samples, steps, members, total):
    shares = Shares(50)
    closed(shares, 3, (total, min(total, 5)))
    assert 0.0 < shares.of(samples, steps, members) <= 1.0
