"""The set of an epoch: the same in any order, closed and settled by one rule, weighed and voted on."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipdp.protocol.epidemic import epoch_set
from gossipdp.protocol.epidemic.epoch_set import EMPTY, MAX_LIVES, EpochSet, Outcome
from gossipdp.protocol.epidemic.epochs import (
    AHEAD,
    BEHIND,
    GRACE,
    KEPT,
    LONGER,
    MAX_HELD,
    QUORUM,
    SETTLE,
    YOUNG,
    Epochs,
)
from gossipdp.protocol.epidemic.events import EpochClosed
from gossipdp.protocol.epidemic.shares import Shares
from gossipdp.protocol.epidemic.signing import make, name_of, void_name
from gossipdp.protocol.wire.epidemic_messages import LONGEST, Rumour, Stage
from tests.protocol.epidemic.broadcast_network import peer, signature

RUN = b"run"


def rumour(origin=0, incarnation=1, sequence=0, payload=b"x", *, epoch=7, samples=10, weight=0.5, length=0.0):
    fields = (peer(origin), incarnation, epoch, sequence, weight, 100 * epoch, samples, 1, 1, bytes(32), bytes(64))
    draft = Rumour(*fields, length=length)
    return make(draft, [payload], RUN, lambda data: signature(peer(origin), data))[0]


def take(kept, said):
    """Claim and complete an increment. Returns the verdict."""
    name = name_of(said, RUN)
    verdict = kept.claim(name, said)
    if verdict.outcome is Outcome.NEW:
        kept.complete(name, said)
    return verdict


def filled(*said):
    kept = EpochSet(7, RUN)
    for each in said:
        take(kept, each)
    return kept


words = st.builds(rumour, st.integers(0, 2), st.integers(1, 6), st.integers(0, 1), st.sampled_from([b"x"] * 5 + [b"y"]))


@pytest.mark.parametrize(
    ("made", "counted"),
    [([], 0), ([0, 0], 0), ([10], 10), ([10, 320], 330), ([10, 1 << 40], 330), ([10, 10, 0, 1 << 40], 340)],
)
def test_impossible_samples_do_not_leave_other_peers_without_a_share(made, counted):
    said = [rumour(origin, samples=samples) for origin, samples in enumerate(made)]
    assert filled(*said).samples == counted


def test_shares_sum_to_at_most_one_though_half_of_the_peers_are_far_faster():
    made, shares = [1000, 1000, 1000, 10, 10, 10], Shares(50)
    kept = filled(*(rumour(origin, samples=samples) for origin, samples in enumerate(made)))
    shares.closed(EpochClosed(7, kept.digest, 6, kept.samples, 6, kept.middle))
    assert sum(shares.of(samples, 50, 6) for samples in made) == pytest.approx(1.0)


# -- lengths of increments --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "middle"),
    [([], 0.0), ([0.0, 0.0], 0.0), ([3.0], 6.0), ([3.0, 0.0], 6.0), ([1.0, 3.0], 6.0), ([1.0, 2.0, 1e9], 4.0)],
)
def test_usual_is_the_length_of_the_middle_origin_for_a_share_of_one(lengths, middle):
    assert filled(*(rumour(origin, length=length) for origin, length in enumerate(lengths))).length == middle


def test_many_increments_lives_or_a_zero_share_do_not_shift_the_median():
    many = [rumour(9, life, number, length=1e9) for life in (1, 2, 3) for number in range(4)]
    none = [rumour(8, length=1e9, weight=0.0), rumour(7, length=LONGEST, weight=5e-324)]
    assert filled(*(rumour(n, length=1.0) for n in range(4)), *many, *none).length == 2.0
    assert filled(*none).length == LONGEST


def test_largest_length_is_a_multiple_of_the_usual_length_epochs_ago():
    epochs = Epochs(100, RUN)
    epochs.held = False
    longest = {}
    for epoch in range(30):
        epochs.advance(100 * epoch)
        for live in range(epochs.first, epoch + AHEAD + 1):
            longest.setdefault(live, epochs.longest(live))
            assert epochs.longest(live) == longest[live], "it does not change while an epoch is live"
        if epoch != 9:
            take(epochs.of(epoch), rumour(epoch=epoch, length=1.0 + epoch))
    assert all(longest[epoch] == math.inf for epoch in range(BEHIND + YOUNG)), "training is only beginning"
    for epoch in range(BEHIND + YOUNG, 29):
        before = epoch - BEHIND - (epoch - BEHIND == 9)
        assert longest[epoch] == LONGER * 2.0 * (1.0 + before), "an epoch without increments uses the one before"
    held = Epochs(100, RUN)
    taken = 25
    past = {epoch: usual for epoch, usual in epochs.usual.items() if epoch < taken - GRACE - SETTLE}
    held.restart(taken - GRACE - SETTLE, {}, usual=past)
    held.advance(100 * (taken + MAX_HELD))
    held.held = False
    held.advance(100 * (taken + MAX_HELD + 1))
    for epoch in range(taken - GRACE - SETTLE, taken):
        assert held.longest(epoch) == longest[epoch], "a peer whose fetch took long cuts like all others"


# -- a set ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.lists(words, max_size=14), st.randoms())
def test_any_order_and_repetition_of_the_same_increments_gives_the_same_set(said, random):
    shuffled = said + said[::2]
    random.shuffle(shuffled)
    one, two = filled(*said), filled(*shuffled)
    assert (one.names(), one.digest, one.samples) == (two.names(), two.digest, two.samples)


def test_two_of_one_number_prove_their_origin_void_in_either_order():
    first, second, other = rumour(), rumour(payload=b"y"), rumour(1)
    kept = filled(first, rumour(sequence=1), other)
    verdict = take(kept, second)
    assert verdict.outcome is Outcome.PROOF and verdict.proof == (first, second)
    assert {name for name, _ in verdict.fallen} == {name_of(first, RUN), name_of(rumour(sequence=1), RUN)}
    assert kept.inside == {name_of(other, RUN): other} and kept.samples == 10
    assert kept.proof(void_name(peer(0), 7, RUN)) == (first, second) and kept.holds(void_name(peer(0), 7, RUN))
    assert take(kept, rumour(sequence=3)).outcome is Outcome.VOID
    assert filled(second, first, other).digest == kept.digest


def test_more_lives_than_a_peer_can_have_in_an_epoch_are_proof():
    lives = [rumour(incarnation=number) for number in range(1, MAX_LIVES + 2)]
    kept = filled(*lives[:-1])
    assert len(kept.inside) == MAX_LIVES
    verdict = take(kept, lives[-1])
    assert verdict.outcome is Outcome.PROOF and set(verdict.proof) == set(lives) and not kept.inside
    assert filled(*verdict.proof).digest == kept.digest


def test_same_increment_again_is_known():
    kept = filled(rumour())
    assert kept.claim(name_of(rumour(), RUN), rumour()).outcome is Outcome.KNOWN
    assert filled(rumour(epoch=8)).digest != kept.digest


def test_full_epoch_takes_only_proofs(monkeypatch):
    monkeypatch.setattr(epoch_set, "MAX_RUMOURS", 3)
    kept = filled(*(rumour(number) for number in range(3)))
    assert take(kept, rumour(9)).outcome is Outcome.FULL and len(kept.inside) == 3
    assert take(kept, rumour(0, payload=b"y")).outcome is Outcome.PROOF


def test_claimed_increment_counts_once_it_is_complete():
    kept = EpochSet(7, RUN)
    kept.claim(name_of(rumour(), RUN), rumour())
    assert kept.digest == EMPTY and kept.samples == 0
    kept.complete(name_of(rumour(), RUN), rumour())
    assert kept.digest != EMPTY and kept.samples == 10


# -- the clock --------------------------------------------------------------------------------------------------------


def running(epoch=7):
    """Epochs of 100 steps, at the start of one."""
    made = Epochs(100, RUN)
    made.restart(max(0, epoch - GRACE - SETTLE), {})
    made.held = False
    made.advance(100 * epoch)
    return made


def test_epoch_closes_after_the_grace_and_settles_after_the_repair():
    made = running()
    take(made.of(7), rumour())
    closed_at, settled_at = {}, {}
    for epoch in range(8, 14):
        closed, settled = made.advance(100 * epoch)
        closed_at |= {each.epoch: (epoch, len(each.inside)) for each in closed}
        settled_at |= {each.epoch: (epoch, len(each.inside)) for each in settled}
    assert closed_at[7] == (7 + GRACE + 1, 1) and settled_at[7] == (7 + GRACE + SETTLE + 1, 1)
    assert list(closed_at) == [4, 5, 6, 7, 8, 9] and list(settled_at) == [3, 4, 5, 6, 7, 8]
    assert not made.admits(8) and made.admits(9)


def test_clock_never_goes_back_and_a_late_epoch_is_not_admitted():
    made = running(7)
    assert made.advance(100) == ([], []) and made.current == 7
    assert [epoch for epoch in range(20) if made.admits(epoch)] == [*range(7 - GRACE - SETTLE, 7 + AHEAD + 1)]


def test_clock_that_jumps_takes_no_time():
    made = running(7)
    take(made.of(7), rumour())
    closed, settled = made.advance(100 * 4_000_000_000)
    assert len(closed) <= KEPT + SETTLE + 1 and len(settled) <= KEPT + 1 and 7 in [each.epoch for each in settled]
    assert len(made.settled()) == KEPT


def test_while_held_nothing_settles_but_what_is_older_than_all_bounds():
    made = running(7)
    made.held = True
    made.advance(100 * (7 + MAX_HELD))
    assert made.first == 7 - GRACE - SETTLE
    made.advance(100 * (8 + MAX_HELD))
    assert made.first == 8 - GRACE - SETTLE


def test_marks_name_the_stage_of_each_epoch():
    made = running(7)
    for epoch in (3, 4, 7):
        take(made.of(epoch), rumour(epoch=epoch))
    assert [(mark.epoch, mark.stage) for mark in made.marks()] == [
        (3, Stage.CLOSED),
        (4, Stage.OPEN),
        (7, Stage.OPEN),
    ]
    made.advance(800)
    assert (made.marks()[0].epoch, made.marks()[0].stage, made.marks()[0].count) == (3, Stage.SETTLED, 1)


# -- statements about settled epochs ----------------------------------------------------------------------------------


def settled(others):
    made = running(7)
    made.advance(100 * (8 + GRACE + SETTLE))
    return [made.vote(peer(number), 7, digest, 20, ME) for number, digest in enumerate(others)], made


OTHER = bytes([255] * 16)
ME = peer(99)


def test_minority_is_found_once_enough_digests_were_heard():
    verdicts, made = settled([OTHER] * QUORUM)
    assert verdicts == [None] * (QUORUM - 1) + [(1, tuple(peer(number) for number in range(QUORUM)))]
    assert made.vote(peer(9), 7, OTHER, 20, ME) is None


def test_minority_of_other_digests_changes_nothing():
    verdicts, _ = settled([OTHER, OTHER, EMPTY, EMPTY, EMPTY, EMPTY, OTHER])
    assert verdicts == [None] * 7


def test_one_peer_has_one_vote():
    made = settled([])[1]
    assert [made.vote(peer(0), 7, OTHER, 20, ME) for _ in range(9)] == [None] * 9


@pytest.mark.parametrize("digest", [OTHER, bytes(16)])
def test_of_two_equal_camps_that_of_the_lowest_id_wins(digest):
    low, high = sorted((peer(0), peer(1)))
    assert settled([])[1].vote(low, 7, digest, 1, high) == (1, (low,))
    assert settled([])[1].vote(high, 7, digest, 1, low) is None


def test_digest_of_an_epoch_not_settled_here_does_not_count():
    made = running(7)
    assert [made.vote(peer(number), 7, OTHER, 20, ME) for number in range(9)] == [None] * 9


def test_unnoticed_difference_is_never_forgotten():
    one, other = running(7), running(7)
    take(one.of(7), rumour())
    for made in (one, other):
        take(made.of(8), rumour(epoch=8))
        made.advance(100 * (30 + GRACE + SETTLE))
    assert one.settled()[29].digest != other.settled()[29].digest
    again = running(7)
    take(again.of(8), rumour(epoch=8))
    again.advance(100 * (10 + GRACE + SETTLE))
    again.advance(100 * (30 + GRACE + SETTLE))
    assert other.settled()[29].digest == again.settled()[29].digest, "whenever the clock was heard of"


def test_states_of_two_foundings_always_differ():
    one, other = Epochs(100, RUN), Epochs(100, RUN)
    one.restart(0, {}, b"a" * 16)
    other.restart(0, {}, b"b" * 16)
    for made in (one, other):
        made.held = False
        take(made.of(0), rumour(epoch=0))
        made.advance(100 * 9)
    assert one.settled()[0].digest != other.settled()[0].digest


def test_more_than_half_of_all_need_not_wait_for_a_quorum():
    made = settled([])[1]
    assert [made.vote(peer(number), 7, OTHER, 5, ME) for number in range(4)] == [
        *[None] * 3,
        (1, tuple(peer(number) for number in range(4))),
    ]
