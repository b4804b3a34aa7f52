"""When a peer that does not train fetches the model anew (`rules`)."""

from dataclasses import replace

import pytest

from gossipdp.protocol.course.facts import Age, Facts
from gossipdp.protocol.course.rules import MOST_FETCHES, MOST_ROUNDS, SPARE_ROUNDS, more_than_a_copy, renewal, stale
from gossipdp.protocol.course.table import Reason

EVERY = 50
FACTS = Facts(
    clock=1000, every=EVERY, waits=False, begins=False, ends=False, spare=False, last=False, closing=False, closes=False
)


class Idle:
    """An idle peer whose model came at the network's clock 1,000, by a transfer that took `transfer` steps."""

    def __init__(self, transfer=0, **facts):
        self.facts, self.age = replace(FACTS, **facts), Age()
        self.age.came(transfer, transfer, FACTS.clock)

    def set(self, **facts):
        self.facts = replace(self.facts, **facts)

    @property
    def clock(self):
        return self.facts.clock

    @property
    def reason(self):
        return renewal(self.age, self.facts)

    @property
    def stale(self):
        return stale(self.age, self.clock, EVERY, ends=self.facts.ends, spare=self.facts.spare)

    @property
    def counts(self):
        return more_than_a_copy(self.age, ends=self.facts.ends)

    def trains(self, trains):
        self.age.trains(trains, self.clock)

    def came(self):
        self.age.came(0, 0, self.clock)

    def attempted(self, reason, *, complete):
        self.age.attempted(reason, self.facts, complete=complete)

    def reason_after(self, steps):
        self.set(clock=FACTS.clock + steps)
        return self.reason


@pytest.mark.parametrize(
    ("waits", "begins", "rounds", "reason"),
    [
        (False, False, SPARE_ROUNDS, Reason.IDLE),
        (True, False, MOST_ROUNDS, Reason.LATE),
        (False, True, MOST_ROUNDS, Reason.IDLE),
    ],
)
def test_idle_peer_fetches_when_its_model_is_some_rounds_old_and_sooner_for_a_process(waits, begins, rounds, reason):
    peer = Idle(waits=waits, begins=begins)
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
    peer.trains(True)
    peer.trains(False)
    peer.set(ends=True, spare=spare, last=last, closing=closing)
    assert peer.reason_after(rounds * EVERY) is None
    assert (peer.reason_after(rounds * EVERY + 1) is Reason.IDLE) is spare


@pytest.mark.parametrize("spare", [False, True])
def test_own_model_of_a_spare_is_stale_and_a_copy_for_two_rounds_is_not(spare):
    peer = Idle()
    peer.trains(True)
    peer.trains(False)
    peer.set(ends=True, spare=spare)
    assert peer.stale is spare
    peer.came()
    peer.set(clock=peer.clock + MOST_ROUNDS * EVERY)
    assert not peer.stale
    peer.set(clock=peer.clock + 1)
    assert peer.stale
    peer.attempted(Reason.IDLE, complete=False)
    assert not peer.stale, "no member has a newer one"


def test_peer_that_closes_fetches_nothing_because_a_copy_would_change_the_mean():
    peer = Idle()
    peer.set(ends=True, closes=True)
    assert peer.reason_after(100 * SPARE_ROUNDS * EVERY) is None


def test_process_that_needs_long_for_its_first_round_has_the_model_fetched_ever_more_rarely():
    peer, fetched = Idle(), []
    peer.set(begins=True)
    while len(fetched) < 5:
        peer.set(clock=peer.clock + 1)
        if (reason := peer.reason) is not None:
            fetched.append(peer.clock - 1000)
            peer.came()
            peer.attempted(reason, complete=True)
    waited = [after - before - 1 for before, after in zip([0, *fetched], fetched, strict=False)]
    assert waited == [rounds * EVERY for rounds in (2, 4, 8, SPARE_ROUNDS, SPARE_ROUNDS)]
    peer.age.arrives(doubted=False)
    assert peer.reason_after(fetched[-1] + MOST_ROUNDS * EVERY + 1) is Reason.IDLE


def test_peer_that_trains_fetches_nothing_and_counts_how_old_its_model_was():
    peer = Idle()
    peer.set(clock=peer.clock + 30)
    assert peer.age.at(peer.clock) == 30
    peer.trains(True)
    assert peer.age.behind == 30
    assert peer.reason_after(100 * EVERY) is None and peer.age.drift(peer.clock) == 0
    peer.trains(False)
    assert peer.age.drift(peer.clock) == 0 and peer.age.trained


def test_model_of_a_peer_that_does_not_train_counts_only_if_it_has_ended_its_part_of_the_run():
    peer = Idle()
    assert not peer.counts
    peer.trains(True)
    assert peer.counts
    peer.trains(False)
    assert not peer.counts
    peer.set(ends=True)
    assert peer.counts
    peer.came()
    assert not peer.counts


def test_model_after_a_long_transfer_is_not_fetched_again_before_it_is_twice_as_old():
    peer = Idle(transfer=400)
    peer.set(waits=True)
    assert (peer.reason_after(400), peer.reason_after(401)) == (None, Reason.LATE)


def test_failed_fetch_is_not_tried_again_for_the_process_that_waits():
    peer = Idle()
    peer.set(waits=True)
    assert peer.reason_after(500) is Reason.LATE
    peer.attempted(Reason.LATE, complete=False)
    assert peer.reason is None


def test_idle_fetch_that_fails_while_a_process_comes_is_followed_by_one_for_it():
    peer = Idle()
    assert peer.reason_after(5000) is Reason.IDLE
    peer.set(waits=True)
    peer.attempted(Reason.IDLE, complete=False)
    assert peer.reason is Reason.LATE
    peer.attempted(Reason.LATE, complete=False)
    assert peer.reason is None


def test_old_models_keep_a_process_waiting_for_two_fetches_at_most():
    peer = Idle()
    peer.set(waits=True)
    peer.age.behind = 500
    for fetch in range(MOST_FETCHES):
        assert peer.reason is Reason.LATE, fetch
        peer.age.came(500, 0, peer.clock)
        peer.attempted(Reason.LATE, complete=True)
    assert peer.reason is None


def test_own_first_round_does_not_make_the_model_older():
    peer = Idle()
    peer.set(clock=peer.clock + 51)
    peer.age.stepped(51, peer.clock)
    peer.trains(True)
    assert peer.age.behind == 0
    peer.trains(False)
    assert peer.age.current(peer.clock) == peer.clock
