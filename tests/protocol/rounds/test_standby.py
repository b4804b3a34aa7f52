"""When a peer that does not train fetches the model anew (`standby`)."""

import pytest

from gossipdp.protocol.partition.reasons import Reason
from gossipdp.protocol.rounds.standby import MOST_FETCHES, MOST_ROUNDS, SPARE_ROUNDS, Standby

EVERY = 50


class Idle:
    """An idle peer whose model came at the network's clock 1,000, by a transfer that took no time."""

    def __init__(self, transfer=0):
        self.ends = self.spare = self.last = self.closing = self.closes = False
        self.clock, self.behind, self.waits, self.begins, self.givers = 1000, transfer, False, False, [b"a"]
        self.standby = Standby(
            clock=lambda: self.clock,
            every=lambda: EVERY,
            behind=lambda: self.behind,
            waits=lambda: self.waits,
            begins=lambda: self.begins,
            givers=lambda: self.givers,
            ends=lambda: self.ends,
            spare=lambda: self.spare,
            last=lambda: self.last,
            closing=lambda: self.closing,
            closes=lambda: self.closes,
        )
        self.standby.came(transfer)

    def reason_after(self, steps):
        self.clock = 1000 + steps
        return self.standby.reason


@pytest.mark.parametrize(
    ("waits", "begins", "rounds", "reason"),
    [
        (False, False, SPARE_ROUNDS, Reason.IDLE),
        (True, False, MOST_ROUNDS, Reason.LATE),
        (False, True, MOST_ROUNDS, Reason.IDLE),
    ],
)
def test_idle_peer_fetches_when_its_model_is_some_rounds_old_and_sooner_for_a_process(waits, begins, rounds, reason):
    peer = Idle()
    peer.waits, peer.begins = waits, begins
    assert (peer.reason_after(rounds * EVERY), peer.reason_after(rounds * EVERY + 1)) == (None, reason)


@pytest.mark.parametrize(
    ("spare", "last", "closing", "rounds"),
    [
        (False, False, False, 1000),
        (False, True, True, 1000),
        (True, False, False, SPARE_ROUNDS),
        (True, True, False, 0),
        (True, False, True, MOST_ROUNDS),
    ],
)
def test_peer_that_ended_its_training_keeps_its_model_unless_its_steps_are_handed_in(spare, last, closing, rounds):
    peer = Idle()
    peer.standby.trains(True)
    peer.standby.trains(False)
    peer.ends, peer.spare, peer.last, peer.closing = True, spare, last, closing
    assert peer.reason_after(rounds * EVERY) is None
    assert (peer.reason_after(rounds * EVERY + 1) is Reason.IDLE) is spare


@pytest.mark.parametrize("spare", [False, True])
def test_own_model_of_a_spare_is_stale_and_a_copy_for_two_rounds_is_not(spare):
    peer = Idle()
    peer.standby.trains(True)
    peer.standby.trains(False)
    peer.ends, peer.spare = True, spare
    assert peer.standby.stale is spare
    peer.standby.came(0)
    peer.clock += MOST_ROUNDS * EVERY
    assert not peer.standby.stale
    peer.clock += 1
    assert peer.standby.stale
    peer.standby.tried(Reason.IDLE, complete=False)
    assert not peer.standby.stale, "no member has a newer one"


def test_peer_that_closes_fetches_nothing_because_a_copy_would_change_the_mean():
    peer = Idle()
    peer.ends = peer.closes = True
    assert peer.reason_after(100 * SPARE_ROUNDS * EVERY) is None


def test_process_that_needs_long_for_its_first_round_has_the_model_fetched_ever_more_rarely():
    peer, fetched = Idle(), []
    peer.begins = True
    while len(fetched) < 5:
        peer.clock += 1
        if (reason := peer.standby.reason) is not None:
            fetched.append(peer.clock - 1000)
            peer.standby.came(0)
            peer.standby.tried(reason, complete=True)
    waited = [after - before - 1 for before, after in zip([0, *fetched], fetched, strict=False)]
    assert waited == [rounds * EVERY for rounds in (2, 4, 8, SPARE_ROUNDS, SPARE_ROUNDS)]
    peer.standby.arrives()
    assert peer.reason_after(fetched[-1] + MOST_ROUNDS * EVERY + 1) is Reason.IDLE


def test_peer_that_trains_fetches_nothing_and_counts_how_old_its_model_was():
    peer = Idle()
    peer.clock += 30
    assert (peer.standby.age, peer.standby.trains(True)) == (30, 30)
    assert peer.reason_after(100 * EVERY) is None and peer.standby.drift == 0
    peer.standby.trains(False)
    assert peer.standby.drift == 0 and peer.standby.trained


def test_model_of_a_peer_that_does_not_train_counts_only_if_it_has_ended_its_part_of_the_run():
    peer = Idle()
    assert not peer.standby.counts
    peer.standby.trains(True)
    assert peer.standby.counts
    peer.standby.trains(False)
    assert not peer.standby.counts
    peer.ends = True
    assert peer.standby.counts
    peer.standby.came(0)
    assert not peer.standby.counts


def test_model_after_a_long_transfer_is_not_fetched_again_before_it_is_twice_as_old():
    peer = Idle(transfer=400)
    peer.waits = True
    assert (peer.reason_after(400), peer.reason_after(401)) == (None, Reason.LATE)


def test_failed_fetch_is_not_tried_again_for_the_process_that_waits():
    peer = Idle()
    peer.waits = True
    assert peer.reason_after(500) is Reason.LATE
    peer.standby.tried(Reason.LATE, complete=False)
    assert peer.standby.reason is None


def test_idle_fetch_that_fails_while_a_process_comes_is_followed_by_one_for_it():
    peer = Idle()
    assert peer.reason_after(5000) is Reason.IDLE
    peer.waits = True
    peer.standby.tried(Reason.IDLE, complete=False)
    assert peer.standby.reason is Reason.LATE
    peer.standby.tried(Reason.LATE, complete=False)
    assert peer.standby.reason is None


def test_old_models_keep_a_process_waiting_for_two_fetches_at_most():
    peer = Idle()
    peer.waits, peer.behind = True, 500
    for fetch in range(MOST_FETCHES):
        assert peer.standby.reason is Reason.LATE, fetch
        peer.standby.came(0)
        peer.standby.tried(Reason.LATE, complete=True)
    assert peer.standby.reason is None


def test_without_members_to_fetch_from_a_process_does_not_wait():
    peer = Idle()
    peer.waits, peer.givers = True, []
    assert peer.reason_after(10_000) is None


def test_own_first_round_does_not_make_the_model_older():
    peer = Idle()
    peer.clock += 51
    peer.standby.stepped(51)
    assert peer.standby.trains(True) == 0
    peer.standby.trains(False)
    assert peer.standby.clock == peer.clock
