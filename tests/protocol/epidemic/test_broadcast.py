"""One machine among peers that the test plays: increments that it takes, passes on, fetches and refuses."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gossipdp.errors import LocalProtocolError
from gossipdp.protocol.epidemic.epoch_set import MAX_LIVES
from gossipdp.protocol.epidemic.epochs import AHEAD, GRACE, SETTLE
from gossipdp.protocol.epidemic.events import RumourReceived
from gossipdp.protocol.epidemic.link import MAX_GRAFTS
from gossipdp.protocol.epidemic.signing import name_of
from gossipdp.protocol.events import UpdateRefused
from gossipdp.protocol.wire.epidemic_messages import (
    MAX_SEQUENCE,
    NO_RUN,
    Got,
    Graft,
    IHave,
    Prune,
    Rumour,
    RumourPart,
    Want,
)
from tests.protocol.epidemic.broadcast_network import peer, verify
from tests.protocol.epidemic.broadcast_rig import EPOCH, ME, SPAN, STRANGER, Rig, Told, publish


@pytest.fixture
def rig():
    return Rig()


# -- arrival ----------------------------------------------------------------------------------------------------------


def test_increment_from_a_neighbour_is_handed_out_once_whole(rig):
    told = Told(peer(1))
    rig.tell(peer(1), told, parts=[0, 2])
    assert rig.events() == []
    rig.tell(peer(1), told, parts=[1])
    assert rig.events() == [RumourReceived(told.name, told.header, (b"one", b"two", b"six"))]
    rig.tell(peer(2), told)
    assert rig.events() == []


def test_each_part_is_answered_with_what_is_here(rig):
    told = Told(peer(1))
    rig.tell(peer(1), told, parts=[2, 0])
    assert rig.take(Got) == [(peer(1), Got(told.name, have)) for have in (0, 0b100, 0b101)]
    assert rig.machine.counts == {"payload": 6}


def test_header_goes_on_to_all_neighbours_and_parts_to_those_that_want_them_before_the_rest_has_come(rig):
    told = Told(peer(1))
    rig.tell(peer(1), told, parts=[0])
    assert {to for to, _ in rig.take(Rumour)} == {peer(2), peer(3)}
    rig.say(peer(2), Got(told.name, 0))
    assert rig.take(RumourPart) == [(peer(2), RumourPart(told.name, 0))]
    rig.say(peer(2), Got(told.name, 1))
    rig.tell(peer(1), told, parts=[2])
    assert rig.take(RumourPart) == [(peer(2), RumourPart(told.name, 2))]


def test_hops_count_the_links_from_the_origin(rig):
    told = Told(peer(1))
    rig.say(peer(1), replace(told.header, hops=4), told.table)
    assert {message.hops for _, message in rig.take(Rumour)} == {5}


def test_header_from_a_second_neighbour_is_pruned_and_from_then_on_that_link_is_lazy(rig):
    told, later = Told(peer(1)), Told(peer(1), sequence=1)
    rig.tell(peer(1), told, parts=[0])
    rig.say(peer(2), told.header, told.table)
    assert rig.take(Prune) == [(peer(2), Prune((told.name,)))]
    rig.say(peer(3), Prune((told.name,)))
    rig.tell(peer(1), told, parts=[1, 2])
    rig.take()
    rig.tell(peer(1), later)
    assert [to for to, _ in rig.take(Rumour)] == [peer(2)]


def test_increments_are_not_pushed_back_to_the_upstream_of_their_origin(rig):
    rig.tell(peer(1), Told(peer(2)))
    rig.take()
    later = Told(peer(2), sequence=1)
    rig.tell(peer(3), later)
    assert rig.take((Rumour, IHave)) == [(peer(1), IHave(EPOCH, (later.name,), 2))]


def test_complete_increment_is_announced_over_the_other_links(rig):
    told = Told(peer(1))
    rig.say(peer(1), told.header, told.table)
    rig.say(peer(3), Prune((told.name,)))
    rig.take()
    rig.tell(peer(1), told)
    assert rig.take(IHave) == [(peer(3), IHave(EPOCH, (told.name,), 2))]


def test_second_payload_is_counted_and_answered(rig):
    told = Told(peer(1))
    rig.tell(peer(1), told)
    rig.take()
    rig.say(peer(2), RumourPart(told.name, 1), b"two")
    assert rig.take() == [(peer(2), Got(told.name, 0b111))]
    assert rig.machine.counts["repeated"] == 3


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("signature", Told(peer(2), by=peer(1))),
        ("terms", Told(peer(1), clock=(EPOCH + 1) * SPAN)),
    ],
)
def test_forged_or_wrong_header_is_refused_and_blamed_on_the_sender(reason, told):
    rig = Rig()
    rig.tell(peer(1), told)
    assert rig.events() == [UpdateRefused(peer(1), reason)]
    assert rig.take() == [] and rig.machine.counts[reason] == 1 and rig.machine.counts["payload"] == 0


def test_increment_too_long_for_the_model_is_refused_and_blamed_on_the_origin(rig):
    rig.machine.limit(1000)
    told = Told(peer(2), parts=[bytes(1001)])
    rig.tell(peer(1), told)
    assert rig.events() == [UpdateRefused(peer(2), "size")]
    assert rig.take() == [] and rig.machine.counts["payload"] == 0
    rig.tell(peer(1), Told(peer(2), sequence=1, parts=[bytes(1000)]))
    assert [len(event.parts[0]) for event in rig.events(RumourReceived)] == [1000]


def test_increment_with_another_table_is_refused(rig):
    rig.say(peer(1), Told(peer(1)).header, Told(peer(1), parts=[b"else"]).table)
    assert rig.events() == [UpdateRefused(peer(1), "table")]


@pytest.mark.parametrize("payload", [b"tWo", b"twoo", b""])
def test_bad_part_is_refused_and_fetched_from_another_peer(rig, payload):
    told = Told(peer(1))
    rig.say(peer(1), told.header, told.table)
    rig.say(peer(2), told.header, told.table)
    rig.take()
    rig.say(peer(1), RumourPart(told.name, 1), payload)
    assert rig.events() == [UpdateRefused(peer(1), "hash")]
    assert (peer(2), Graft((Want(told.name, 0),))) in rig.take()
    rig.tell(peer(2), told)
    assert [event.parts[1] for event in rig.events(RumourReceived)] == [b"two"]


def test_part_past_the_last_is_refused(rig):
    told = Told(peer(1))
    rig.say(peer(1), told.header, told.table)
    rig.say(peer(1), RumourPart(told.name, 3), b"two")
    assert rig.events() == [UpdateRefused(peer(1), "hash")]


def wrong(rig, sequence):
    """A neighbour sends a bad part of an increment that another one offers too."""
    told = Told(peer(3), sequence=sequence)
    for source in (peer(1), peer(2)):
        rig.say(source, told.header, told.table)
    rig.say(peer(1), RumourPart(told.name, 1), b"tWo")


def test_bad_parts_together_are_one_strike_and_their_sender_is_not_set_aside(rig):
    for sequence in range(3):
        wrong(rig, sequence)
    assert rig.events() == [UpdateRefused(peer(1), "hash")] * 3
    assert rig.strikes.count(peer(1), rig.now) == 1
    rig.tell(peer(1), Told(peer(1)))
    assert len(rig.events(RumourReceived)) == 1 and not rig.machine.counts["shunned"]


def test_peer_with_several_strikes_is_set_aside_for_a_while(rig):
    for sequence in range(3):
        wrong(rig, sequence)
        rig.wait(2.0)
    good = Told(peer(1))
    rig.tell(peer(1), good)
    assert rig.events(RumourReceived) == [] and rig.machine.counts["shunned"] == 4
    rig.wait(61.0)
    rig.tell(peer(1), good)
    assert len(rig.events(RumourReceived)) == 1


def test_fetch_moves_from_a_peer_that_is_set_aside(rig):
    coming = Told(peer(3), sequence=9)
    rig.say(peer(1), coming.header, coming.table)
    rig.say(peer(2), coming.header, coming.table)
    for sequence in range(3):
        rig.take()
        wrong(rig, sequence)
        rig.wait(1.0)
    wants = [want.name for to, message in rig.take(Graft) if to == peer(2) for want in message.wants]
    assert coming.name in wants and peer(1) not in {link.peer for link in rig.machine._links.neighbours()}


@pytest.mark.parametrize(("epoch", "taken"), [(EPOCH - GRACE - SETTLE - 1, 0), (EPOCH - GRACE - SETTLE, 1),
                                              (EPOCH + AHEAD, 1), (EPOCH + AHEAD + 1, 0)])  # fmt: skip
def test_increment_of_an_epoch_too_old_or_too_far_ahead_is_not_taken(rig, epoch, taken):
    told = Told(peer(1), epoch=epoch)
    rig.tell(peer(1), told)
    assert len(rig.events()) == taken
    assert rig.take(Prune) == [(peer(1), Prune((told.name,)))] * (1 - taken)


def test_increment_is_refused_until_its_origin_is_a_member(rig):
    told = Told(STRANGER)
    rig.tell(peer(1), told)
    assert rig.events() == [] and rig.machine.counts["origin"] == 1
    rig.members.add(STRANGER)
    rig.tell(peer(1), told)
    assert len(rig.events(RumourReceived)) == 1


def test_payloads_beyond_the_cap_drop_the_oldest_which_are_no_longer_served():
    rig = Rig(retain=20)
    first, second = Told(peer(1), parts=[bytes(12)]), Told(peer(2), parts=[bytes(15)])
    rig.tell(peer(1), first)
    rig.tell(peer(2), second)
    assert len(rig.events(RumourReceived)) == 2 and rig.machine._store.get(first.name) is None
    rig.take()
    rig.say(peer(3), Graft((Want(first.name, 0), Want(second.name, 0))))
    sent = rig.take(to=peer(3))
    assert (peer(3), Prune((first.name,))) in sent and [m.part for _, m in sent if isinstance(m, RumourPart)] == [0]
    rig.tell(peer(3), first)
    assert rig.events(RumourReceived) == []


def test_unapplied_payloads_fill_the_store_which_then_refuses_more():
    rig = Rig(members=50, applies=False, retain=4 << 20)
    told = [Told(peer(number), parts=[bytes([number]) * (1 << 20)]) for number in range(1, 49)]
    for each in told:
        rig.tell(each.header.origin, each)
    waiting = rig.events(RumourReceived)
    assert len(waiting) == 4 and rig.machine._store.bytes == 4 << 20
    assert rig.machine.counts["room"] == 44
    for event in waiting:
        rig.machine.applied(event.name)
    rig.tell(told[-1].header.origin, told[-1])
    assert [event.name for event in rig.events(RumourReceived)] == [told[-1].name]


# -- fetching ---------------------------------------------------------------------------------------------------------


def test_announced_increment_is_grafted_after_the_tree_had_its_time(rig):
    told = Told(peer(1))
    rig.say(peer(2), IHave(EPOCH, (told.name,)))
    rig.wait(0.9)
    assert rig.take() == []
    rig.wait(0.2)
    assert rig.take() == [(peer(2), Graft((Want(told.name, 0),)))]
    rig.tell(peer(2), told)
    assert len(rig.events(RumourReceived)) == 1


def test_announced_increment_that_the_tree_brings_is_not_grafted(rig):
    told = Told(peer(1))
    rig.say(peer(2), IHave(EPOCH, (told.name,)))
    rig.tell(peer(1), told)
    rig.take()
    rig.wait(30.0)
    assert rig.take(Graft) == []


def test_source_that_falls_silent_is_replaced_by_another_and_only_the_rest_is_asked_for(rig):
    told = Told(peer(1))
    rig.tell(peer(1), told, parts=[0])
    rig.say(peer(2), IHave(EPOCH, (told.name,)))
    rig.take()
    rig.wait(6.1)
    assert (peer(2), Graft((Want(told.name, 1),))) in rig.take()


def test_source_that_is_gone_is_replaced_at_once(rig):
    told = Told(peer(1))
    rig.tell(peer(2), told, parts=[0])
    rig.say(peer(3), told.header, told.table)
    rig.take()
    rig.machine.link_down(peer(2), rig.now)
    assert (peer(3), Graft((Want(told.name, 1),))) in rig.take()


def test_offer_is_taken_up_when_no_peer_sends_the_increment_any_more(rig):
    told = Told(peer(1))
    rig.tell(peer(1), told, parts=[0])
    rig.machine.link_down(peer(1), rig.now)
    rig.take()
    rig.say(peer(2), told.header, told.table)
    assert rig.take() == [(peer(2), Got(told.name, 0b001))]
    rig.say(peer(3), told.header, told.table)
    assert rig.take() == [(peer(3), Prune((told.name,)))]


def test_graft_makes_the_link_eager_again(rig):
    told, later = Told(peer(1)), Told(peer(1), sequence=1)
    rig.say(peer(1), told.header, told.table)
    rig.say(peer(3), Prune((told.name,)))
    rig.tell(peer(1), told)
    rig.say(peer(3), Graft((Want(told.name, 0b011),)))
    assert [m.part for _, m in rig.take(RumourPart, peer(3))] == [2]
    rig.say(peer(3), Got(told.name, 0b111))
    rig.tell(peer(1), later, parts=[0])
    assert [type(m) for _, m in rig.take((Rumour, RumourPart), peer(3))] == [Rumour, RumourPart]


def test_graft_of_a_complete_increment_makes_the_link_eager_too(rig):
    """A peer that found a much shorter path sends such a graft."""
    told, later = Told(peer(1)), Told(peer(1), sequence=1)
    rig.tell(peer(1), told)
    rig.say(peer(3), Prune((told.name,)))
    rig.say(peer(3), Graft((Want(told.name, 0b111),)))
    rig.take()
    rig.tell(peer(1), later, parts=[0])
    assert [type(m) for _, m in rig.take((Rumour, RumourPart), peer(3))] == [Rumour, RumourPart]


def test_graft_of_an_unknown_increment_is_denied(rig):
    rig.say(peer(2), Graft((Want(bytes(32), 0),)))
    assert rig.take() == [(peer(2), Prune((bytes(32),)))]


def test_repeated_graft_of_one_increment_is_denied_in_the_end(rig):
    told = Told(peer(1))
    rig.tell(peer(1), told)
    for _ in range(MAX_GRAFTS + 2):
        rig.say(peer(2), Graft((Want(told.name, 0),)))
    assert [m for _, m in rig.take(Prune, peer(2))] == [Prune((told.name,))] * 2


def test_much_shorter_path_is_used_for_the_next_increments(rig):
    told = Told(peer(1))
    rig.say(peer(2), replace(told.header, hops=6), told.table)
    for number in range(3):
        rig.say(peer(2), RumourPart(told.name, number), told.parts[number])
    rig.take()
    rig.say(peer(3), IHave(EPOCH, (told.name,), 4))
    assert rig.take() == []
    rig.say(peer(3), IHave(EPOCH, (told.name,), 3))
    assert rig.take() == [(peer(2), Prune((told.name,))), (peer(3), Graft((Want(told.name, 0b111),)))]


def test_endless_names_are_counted_and_not_kept(rig):
    for number in range(20):
        names = tuple((64 * number + place).to_bytes(32, "big") for place in range(64))
        rig.say(peer(1), IHave(EPOCH, names))
    assert rig.machine.counts["endless"] == 20 * 64 - 512 and len(rig.machine._fetches) == 512


# -- a slow neighbour -------------------------------------------------------------------------------------------------


def test_silent_neighbour_gets_no_more_than_its_window_and_delays_no_other():
    rig = Rig(window=4)
    parts = [bytes([number]) * 1000 for number in range(60)]
    _, first = rig.machine.publish(parts, weight=0.5, clock=EPOCH * SPAN, samples=1, now=0.0)
    name = name_of(first, NO_RUN)
    for slow in (peer(1), peer(2)):
        rig.say(slow, Got(name, 0))
    sent = {peer(1): 0, peer(2): 0}
    for _ in range(200):
        came = rig.take(RumourPart)
        for to, message in came:
            sent[to] |= 1 << message.part
            if to == peer(2):
                rig.say(to, Got(name, sent[to]))
    assert sent[peer(2)] == (1 << 60) - 1 and sent[peer(1)].bit_count() == 1


def test_part_without_an_answer_is_sent_again(rig):
    told = Told(peer(1))
    rig.tell(peer(1), told)
    rig.say(peer(2), Got(told.name, 0))
    assert [m.part for _, m in rig.take(RumourPart, peer(2))] == [0]
    rig.wait(4.1)
    assert [m.part for _, m in rig.take(RumourPart, peer(2))][:1] == [0]


def test_dropped_payload_leaves_every_link_which_goes_on_with_the_next():
    rig = Rig(retain=30, window=1)
    first, second = (Told(peer(number), parts=[bytes(size)]) for number, size in ((1, 12), (2, 15)))
    third = Told(peer(3), parts=[bytes(14)])
    for told, source in ((first, peer(1)), (second, peer(2))):
        rig.tell(source, told)
    link = rig.machine._links.get(peer(3))
    for told in (first, second):
        rig.say(peer(3), Graft((Want(told.name, 0),)))
    under_way = [m.name for _, m in rig.take(RumourPart, peer(3))]
    assert under_way == [first.name]
    rig.say(peer(3), third.header, third.table)
    assert first.name not in link.pushes
    assert [m.name for _, m in rig.take(RumourPart, peer(3))] == [second.name]


# -- publishing -------------------------------------------------------------------------------------------------------


def test_own_increment_is_pushed_to_all_and_not_handed_out(rig):
    name, rumour = publish(rig)
    assert rig.take() == [(to, rumour) for to in rig.near] and rig.events() == []
    assert verify(ME, name, rumour.signature) and rumour.hops == 1


def test_own_increments_of_an_epoch_are_counted_and_limited(rig):
    assert [publish(rig)[1].sequence for _ in range(MAX_SEQUENCE + 1)] == [*range(MAX_SEQUENCE + 1)]
    assert publish(rig) is None
    assert publish(rig, clock=(EPOCH + 1) * SPAN)[1].sequence == 0


def test_fifth_life_in_one_epoch_publishes_nothing_and_proves_nothing_against_itself(rig):
    for life in range(2, 2 + MAX_LIVES):
        rig.tell(peer(1), Told(ME, incarnation=life))
    rig.take()
    assert not rig.machine.takes(EPOCH * SPAN) and publish(rig) is None
    assert rig.machine._epochs.of(EPOCH).proofs() == [] and rig.take() == []
    assert rig.machine.takes((EPOCH + 1) * SPAN)


def test_fourth_life_goes_on_publishing(rig):
    for life in range(2, 1 + MAX_LIVES):
        rig.tell(peer(1), Told(ME, incarnation=life))
    assert publish(rig) is not None and rig.machine.takes(EPOCH * SPAN) and publish(rig) is not None


def test_increment_of_a_distant_epoch_is_not_published(rig):
    assert publish(rig, clock=0) is None and publish(rig, clock=99 * SPAN) is None


def test_impossible_parts_raise(rig):
    with pytest.raises(LocalProtocolError):
        publish(rig, b"")
