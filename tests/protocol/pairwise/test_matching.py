"""Random matching by offer and accept (algorithms section 7): choice, pauses, wants, and guests beside them."""

from collections import Counter
from random import Random

import pytest
from msgspec.structs import replace

from gossipdp.protocol.causes import Objection
from gossipdp.protocol.pairwise.matching import MOST_GUESTS, choose_partner, guests_per_round, out_of_reach
from gossipdp.protocol.pairwise.timetable import exchanges_per_round
from gossipdp.protocol.wire.messages import Member, State
from tests.protocol.pairwise.matching_rig import ALIVE, IDS, matching


@pytest.mark.parametrize(
    ("members", "most", "exchanges"),
    [(1, 3, 1), (2, 3, 1), (3, 3, 2), (4, 3, 2), (5, 3, 3), (16, 3, 3), (1000, 3, 3), (64, 2, 2), (2, 2, 1)],
)
def test_exchanges_per_round_are_log2_up_to_the_limit(members, most, exchanges):
    assert exchanges_per_round(members, most) == exchanges


def test_equal_links_are_chosen_equally_often():
    counts = Counter(choose_partner(IDS, lambda peer: 0.02, 0.8, Random(seed)) for seed in range(8000))
    assert set(counts) == set(IDS) and all(abs(count - 1000) < 5 * 30 for count in counts.values())


def test_near_members_are_favoured_and_far_ones_still_chosen():
    near = IDS[0]
    counts = Counter(
        choose_partner(IDS, lambda peer: 0.0 if peer == near else 0.095, 0.8, Random(seed)) for seed in range(8000)
    )
    # 80 % by weights 200 to 7 times 10, 20 % uniform over 8.
    expected = 8000 * (0.8 * 200 / 270 + 0.2 / 8)
    assert abs(counts[near] - expected) < 5 * 45
    assert min(counts[peer] for peer in IDS[1:]) > 8000 * 0.2 / 8


def test_unknown_round_trip_times_count_as_near():
    assert choose_partner(IDS, lambda peer: None, 1.0, Random(1)) in IDS


def test_refusals_of_live_members_are_remembered():
    machine = matching()
    for number in range(10_000):
        alive = [replace(member, id=number.to_bytes(32, "big")) for member in ALIVE[:1]]
        machine.want(1, 10.0 * number)
        partner = machine.candidate(alive, {}, (), lambda peer: None, 10.0 * number)
        machine.offer(partner, number, None, 10.0 * number)
        machine.refused("busy", 10.0 * number)
        assert len(machine.reasons) <= 2


def test_no_partner_is_chosen_while_none_is_wanted():
    assert matching().candidate(ALIVE, {}, (), lambda peer: None, 0.0) is None


def test_one_offer_is_out_at_a_time():
    machine = matching()
    machine.want(2, 0.0)
    partner = machine.candidate(ALIVE, {}, (), lambda peer: None, 0.0)
    machine.offer(partner, 1, 0.1, 0.0)
    assert machine.candidate(ALIVE, {}, (), lambda peer: None, 0.0) is None
    assert machine.timer() == pytest.approx(0.7) and machine.offered.expires == pytest.approx(1.4)


def test_scheduled_partner_is_waited_for_until_patience_ends_then_any_member_will_do():
    machine = matching(patience=1.0)
    machine.want(1, 0.0)

    def chosen(now, excluded=()):
        return machine.candidate(ALIVE, dict.fromkeys(excluded, ""), (), lambda peer: 0.1, now, scheduled=IDS[3])

    assert [chosen(now) for now in (0.0, 0.7, 1.39)] == [IDS[3]] * 3
    assert len({chosen(1.4 + 0.01 * number) for number in range(200)}) > 4
    assert IDS[3] not in {chosen(0.5, excluded=IDS[3:4]) for _ in range(50)}


def test_pauses_after_refusals_double_up_to_the_longest():
    machine, pauses, now = matching(pause=0.1, longest_pause=1.0), [], 0.0
    machine.want(1, now)
    for exchange in range(8):
        machine.offer(IDS[0], exchange, None, now)
        machine.refused("busy", now)
        pauses.append(machine.timer() - now)
        now = machine.timer()
    for number, pause in enumerate(pauses):
        shortest = min(0.1 * 2**number, 1.0)
        assert shortest <= pause <= 2 * shortest


def test_refused_peer_asks_soon_again_in_its_next_round_even_if_that_is_short():
    """Otherwise two peers in step would leave a third one out: they would be busy or done whenever it asks."""
    machine, now = matching(pause=0.1, longest_pause=4.0), 0.0
    machine.want(1, now)
    for number in range(8):
        machine.offer(IDS[0], number, None, now)
        machine.refused(Objection.DONE, now)
        now, before = machine.timer(), now
    assert now > before + 2.0
    now = before + 0.3
    for number in range(10):
        machine.want(1, now)
        assert machine.timer() <= now + 0.1
        now = machine.timer()
        machine.offer(IDS[0], number, None, now)
        machine.refused(Objection.DONE, now)
        now += 0.3


def test_refused_member_is_not_asked_again_while_others_are_fresh():
    machine, asked, now = matching(), [], 0.0
    machine.want(1, now)
    for exchange in range(3):
        partner = machine.candidate(ALIVE[:3], {}, (), lambda peer: None, now)
        asked.append(partner)
        machine.offer(partner, exchange, None, now)
        machine.refused("busy", now)
        now = machine.timer()
    assert sorted(asked) == IDS[:3]
    assert machine.candidate(ALIVE[:3], {}, (), lambda peer: None, now) in IDS


def test_excluded_members_are_never_chosen():
    machine = matching()
    machine.want(1, 0.0)
    assert machine.candidate(ALIVE[:2], {IDS[0]: "unsettled"}, (), lambda peer: None, 0.0) == IDS[1]
    assert machine.candidate(ALIVE[:1], {IDS[0]: "unsettled"}, (), lambda peer: None, 0.0) is None
    assert machine.timer() > 0.0


def test_match_counts_whichever_peer_offered_and_unmatched_restores_only_what_was_counted():
    machine = matching()
    machine.want(1, 0.0)
    machine.matched()
    assert machine.wanted == 0 and machine.timer() is None
    machine.unmatched(IDS[0], 0.0)
    assert machine.wanted == 1
    machine.matched()
    machine.matched()
    machine.unmatched(IDS[0], 0.0)
    assert machine.wanted == 0


def test_last_partner_is_asked_again_only_after_the_time_that_exchange_took():
    machine = matching(lonely=2.0)
    a, b = IDS[:2]
    machine.parted(a, 3.0)
    machine.want(1, 10.0)

    def asked(now, alive=ALIVE[:2]):
        return machine.candidate(alive, {}, (), lambda peer: None, now)

    assert {asked(10.0 + 0.1 * tick) for tick in range(29)} == {b}
    machine.offer(b, 1, None, 12.9)
    machine.refused(Objection.BUSY, 12.9)
    assert not machine.lonely(12.95), "by its own choice"
    assert asked(13.1) == a, "no other member is free"
    machine.matched()
    machine.unmatched(a, 13.2)
    assert asked(13.5, ALIVE[:1]) == a, "its time is over; and nothing was mixed"
    machine.matched()
    machine.parted(a, 3.0)
    machine.want(1, 20.0)
    assert asked(20.0, ALIVE[:1]) == a, "there is no other member"


@pytest.mark.parametrize("reason", [Objection.JOINING, Objection.DONE, Objection.SILENT, "a word of another version"])
def test_last_partner_is_asked_again_at_once_when_all_others_have_refused_for_long(reason):
    machine = matching()
    a, b = IDS[:2]
    machine.parted(a, 60.0)
    machine.want(1, 10.0)
    machine.offer(b, 1, None, 10.0)
    machine.refused(reason, 10.1)
    assert machine.candidate(ALIVE[:2], {}, (), lambda peer: None, 10.3) == a


@pytest.mark.parametrize(
    ("offered_to", "source", "yields"),
    [(None, IDS[1], True), (IDS[1], IDS[1], False), (IDS[0], IDS[0], True), (IDS[3], IDS[1], False)],
)
def test_crossing_offer_yields_to_the_lower_id_only(offered_to, source, yields):
    """This peer's id lies between the first and the second of the list."""
    me, machine = b"a" * 31 + b"z", matching()
    if offered_to is not None:
        machine.offer(offered_to, 1, None, 0.0)
    assert machine.yields_to(source, me) is yields


def test_loneliness_is_reported_once_in_a_period_and_ends_at_a_match():
    machine = matching(lonely=10.0)
    machine.want(1, 0.0)
    assert [machine.lonely(now) for now in (9.0, 10.0, 11.0, 19.9, 20.0)] == [False, True, False, False, True]
    machine.matched()
    machine.want(1, 21.0)
    assert not machine.lonely(30.0) and machine.lonely(31.0)


def test_long_round_whose_exchanges_were_made_ahead_is_not_lonely():
    machine = matching(lonely=10.0)
    machine.want(1, 0.0)
    machine.matched()
    machine.matched()
    machine.want(1, 60.0)
    machine.want(1, 120.0)
    assert not machine.lonely(129.0) and machine.lonely(130.0)


def test_peer_refused_with_done_for_ever_is_lonely():
    machine, told = matching(lonely=10.0), []
    for number in range(6):
        machine.want(1, 20.0 * number)
        machine.offer(IDS[0], number, None, 20.0 * number)
        machine.refused(Objection.DONE, 20.0 * number + 9.0)
        told.append(machine.lonely(20.0 * number + 18.0))
    assert told == [False, False, False, True, True, True]


def test_peer_refused_with_done_is_not_lonely_before_the_next_round():
    """Rounds may be minutes long."""
    machine = matching(lonely=10.0)
    machine.want(1, 0.0)
    for now in (4.0, 12.0, 21.0):
        machine.offer(IDS[0], 1, None, now)
        machine.refused(Objection.DONE, now)
    assert not machine.lonely(30.9) and machine.lonely(31.0)


@pytest.mark.parametrize(
    ("mine", "theirs", "linked", "asked"),
    [
        ("h:1", "h:2", False, True),
        ("", "h:2", False, True),
        ("h:1", "", True, True),
        ("h:1", "", False, False),
        ("", "", False, False),
        ("", "", True, False),
    ],
)
def test_outbound_only_member_is_asked_only_over_an_open_link(mine, theirs, linked, asked):
    me, other = Member(IDS[0], "", mine, 1, 0, State.ALIVE), Member(IDS[1], "", theirs, 1, 0, State.ALIVE)
    excluded, machine = out_of_reach(me, [other], lambda peer: linked), matching()
    machine.want(1, 0.0)
    assert machine.candidate([other], excluded, (), lambda peer: None, 0.0) == (IDS[1] if asked else None)
    assert excluded == ({} if asked else {IDS[1]: "outbound-only"})


def test_guests_are_accepted_once_the_own_exchanges_are_made_and_count_for_no_round():
    machine = matching()
    machine.want(1, 0.0)
    machine.matched()
    assert not machine.accepts(IDS[0], counts=True, steps=True, guests=0), (
        "they ask first, and are none of the next round"
    )
    for _ in range(2):
        assert machine.accepts(IDS[0], counts=True, steps=True, guests=2)
        machine.matched(guest=True)
    assert not machine.accepts(IDS[0], counts=True, steps=True, guests=2) and machine.accepts(
        IDS[0], counts=True, steps=True
    )
    assert (machine.wanted, machine.ahead) == (0, 0)
    machine.want(1, 1.0)
    assert machine.wanted == 1 and machine.accepts(IDS[0], counts=True, steps=True, guests=2)
    machine.matched(guest=True)
    assert machine.wanted == 0, "a wanted exchange may be one with a guest"
    assert machine.accepts(IDS[0], counts=True, steps=True, guests=1)


def test_guest_is_no_last_partner():
    machine = matching()
    a, b = IDS[:2]
    machine.want(1, 0.0)
    machine.matched()
    machine.parted(a, 60.0)
    machine.matched(guest=True)
    machine.parted(b, 1.0)
    machine.want(1, 10.0)
    assert machine.candidate(ALIVE[:2], {}, (), lambda peer: None, 12.0) == b


def test_guest_exchange_that_mixes_nothing_leaves_the_own_exchanges_unchanged():
    machine = matching()
    machine.want(1, 0.0)
    machine.matched()
    machine.matched(guest=True)
    machine.want(1, 1.0)
    machine.unmatched(b"g", 1.0)
    assert machine.wanted == 1 and not machine.refusals
    assert machine.candidate(ALIVE[:1], {}, (), lambda peer: None, 1.0) is not None, "no pause either"


@pytest.mark.parametrize(
    ("dialled", "others", "guests", "turns"),
    [(4, 0, 0, 1), (60, 4, 1, 1), (2, 2, 1, 1), (2, 3, 2, 1), (1, 4, 4, 1), (1, 5, MOST_GUESTS, 2), (2, 62, 4, 8)],
)
def test_guests_of_a_round_are_the_outbound_only_members_per_dialable_one(dialled, others, guests, turns):
    members = ALIVE[:1] * dialled
    members += [replace(ALIVE[0], address="")] * others
    assert guests_per_round(members) == (guests, turns)
