"""One machine among peers that the test plays: announced increments that it fetches, and slow neighbours."""

from __future__ import annotations

from msgspec.structs import replace

from gossipdp.protocol.epidemic.events import RumourReceived
from gossipdp.protocol.epidemic.link import MAX_GRAFTS
from gossipdp.protocol.epidemic.signing import name_of
from gossipdp.protocol.wire.epidemic_messages import NO_RUN, Got, Graft, IHave, Prune, Rumour, RumourPart, Want
from tests.protocol.epidemic.broadcast_network import peer
from tests.protocol.epidemic.broadcast_rig import EPOCH, SPAN, Rig, Told

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
