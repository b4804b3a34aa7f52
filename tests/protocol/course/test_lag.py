"""When a peer has fallen behind the network, as tables (algorithms section 8)."""

import pytest

from gossipdp.protocol.course.lag import (
    ALONE,
    ALONE_FOR,
    ASKING,
    BEHIND,
    LAG_ROUNDS,
    LISTEN,
    NEW,
    Clocks,
    Lag,
    steps_made,
)
from gossipdp.protocol.membership.progress import Own, ProgressBoard
from gossipdp.protocol.wire.messages import Progress
from tests.protocol.membership.machines import TRUSTING

EVERY, PERIOD = 10, 0.5
A, B, C, D = (bytes([letter]) * 32 for letter in b"abcd")
LIMIT = LAG_ROUNDS * EVERY


class One:
    """Peer B, in step with A, C and D at step 100."""

    def __init__(self, side=(A, C, D)):
        self.board, self.side = ProgressBoard(B, TRUSTING), side
        self.own = Own(100, 10, 0, 0.0)
        self.tell(**dict.fromkeys("acd", 100))
        self.lag = Lag(every=EVERY, period=PERIOD)
        self.mixed(0.0)

    def mixed(self, now):
        """An exchange has begun and ended."""
        self.lag.began(self.clocks)
        self.lag.mixed(self.clocks, now)

    def suspected(self, now):
        return self.lag.possible(self.own.alone, now) and self.lag.far(self.clocks)

    @property
    def clocks(self):
        reports = (self.board.of(peer) for peer in self.side)
        return Clocks(self.board.clock(), self.own, [report for report in reports if report is not None])

    def tell(self, **clocks):
        self.board.merge(Progress(bytes([ord(name)]) * 32, clock, clock, 1, 1) for name, clock in clocks.items())


@pytest.mark.parametrize(
    ("clocks", "lag"),
    [
        ({}, 0),
        ({"a": 900}, 0),
        ({"a": 130, "c": 120}, 20),
        ({"a": 130, "c": 120, "d": 125}, 25),
        ({"a": 150, "c": 150}, 50),
    ],
)
def test_lag_is_the_clock_that_two_others_report_since_the_last_exchange(clocks, lag):
    one = One()
    one.tell(**clocks)
    assert one.lag.steps(one.clocks) == lag
    one.mixed(1.0)
    assert one.lag.steps(one.clocks) == 0


def test_lag_counts_only_members_that_this_peer_would_exchange_with():
    one = One(side=(A,))
    one.tell(a=200, c=200)
    assert one.lag.steps(one.clocks) == 0


@pytest.mark.parametrize(("ahead", "suspected"), [(LIMIT, False), (LIMIT + 1, True)])
def test_peer_cut_off_suspects_itself_past_three_rounds(ahead, suspected):
    one = One()
    one.tell(a=100 + ahead, c=100 + ahead)
    assert not one.suspected(5.0)
    one.lag.cut_off()
    assert one.suspected(5.0) == suspected


@pytest.mark.parametrize(("transfer", "suspected"), [(0.0, True), (40.0, True), (41.0, False)])
def test_limit_is_twice_what_a_transfer_is_expected_to_take_if_that_is_more(transfer, suspected):
    """Otherwise a peer on a slow link would fetch the model for ever."""
    one = One()
    one.own = one.own._replace(transfer=transfer)
    one.tell(a=181, c=181)
    one.lag.cut_off()
    assert one.suspected(5.0) == suspected


@pytest.mark.parametrize(
    ("alone", "after", "suspected"),
    [
        (ALONE - 1, ALONE_FOR * PERIOD, False),
        (ALONE, ALONE_FOR * PERIOD - 1.0, False),
        (ALONE, ALONE_FOR * PERIOD, True),
    ],
)
def test_peer_never_cut_off_lags_only_after_many_rounds_and_periods(alone, after, suspected):
    one = One()
    one.own = one.own._replace(alone=alone)
    one.tell(a=500, c=500)
    assert one.suspected(after) == suspected


def asking():
    one = One()
    one.tell(a=200, c=200)
    one.lag.cut_off()
    assert one.suspected(5.0)
    one.lag.ask(5.0)
    return one


@pytest.mark.parametrize(
    ("answers", "proven"),
    [
        ({A: 0, C: LIMIT}, True),
        ({A: 0}, False),
        ({A: 0, C: LIMIT + 1}, False),
        ({A: BEHIND, C: NEW, D: BEHIND}, False),
    ],
)
def test_two_in_step_prove_that_there_is_a_network(answers, proven):
    one = asking()
    for peer, steps in answers.items():
        one.lag.heard(peer, steps)
    heard = 5.0 + LISTEN * PERIOD
    assert not one.lag.proven(one.clocks, heard - 0.1) and one.lag.proven(one.clocks, heard) == proven
    assert not one.lag.disproven(5.0 + ASKING * PERIOD - 0.1) and one.lag.disproven(5.0 + ASKING * PERIOD)


def test_member_that_begins_to_follow_others_is_no_voucher_any_more():
    one = asking()
    one.lag.heard(A, 0)
    one.lag.heard(C, 0)
    one.lag.heard(C, BEHIND)
    assert not one.lag.proven(one.clocks, 5.0 + LISTEN * PERIOD) and one.lag.vouchers == [A]


def test_exchange_that_comes_through_ends_the_asking():
    one = asking()
    assert one.lag.far(one.clocks)
    one.mixed(6.0)
    assert not one.lag.far(one.clocks) and not one.suspected(7.0)


def test_peer_that_has_just_caught_up_does_not_vouch_until_it_has_kept_step():
    """After a storm the first two peers that meet are no network yet."""
    one = asking()
    one.mixed(6.0)
    assert one.lag.told(one.clocks) == NEW
    one.tell(a=200 + LIMIT)
    assert one.lag.told(one.clocks) < NEW
    one.mixed(7.0)
    assert one.lag.told(one.clocks) == 0


def test_exchange_that_a_peer_slept_through_does_not_count_as_in_step():
    one = One()
    one.lag.began(one.clocks)
    one.lag.cut_off()
    one.tell(a=400, c=400)
    one.lag.mixed(one.clocks, 60.0)
    assert one.lag.steps(one.clocks) == 300 and one.lag.told(one.clocks) == NEW and one.suspected(61.0)
    one.lag.mixed(one.clocks, 62.0)
    assert one.lag.far(one.clocks), "the exchange had begun before"
    one.mixed(63.0)
    assert not one.lag.far(one.clocks) and not one.suspected(64.0)


def test_straggler_that_exchanges_now_and_then_vouches():
    one = One()
    for clock in range(130, 300, 30):
        one.tell(a=clock, c=clock)
        one.mixed(float(clock))
        assert one.lag.told(one.clocks) == 0 and not one.suspected(float(clock))


@pytest.mark.parametrize(
    ("clock", "steps", "trained", "made"),
    [
        (130, 130, 100, 30),
        (130, 900, 100, 30),
        (1 << 20, 130, 100, 30),
        (1 << 20, 100, 100, 0),
        (130, 130, None, 30),
        (90, 90, 80, -10),
    ],
    ids=["both", "has trained before", "leads by a lie", "stands and was led", "was unknown", "is behind"],
)
def test_member_counts_no_more_steps_than_it_has_trained_itself(clock, steps, trained, made):
    assert steps_made(Progress(A, clock, steps, 1, 1), 100, trained) == made


def test_one_lie_takes_the_clocks_of_all_ahead__the_peer_does_not_lag():
    one = One()
    one.board.merge(Progress(peer, 1 << 20, steps, 1, 1) for peer, steps in ((A, 1 << 20), (C, 104), (D, 104)))
    one.lag.cut_off()
    assert one.lag.steps(one.clocks) == 4 and not one.suspected(5.0)


def test_only_one_member_is_far_ahead__the_peer_that_was_cut_off_does_not_ask():
    one = One()
    one.tell(a=1 << 20)
    one.lag.cut_off()
    assert not one.suspected(5.0)
