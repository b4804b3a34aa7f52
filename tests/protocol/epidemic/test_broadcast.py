"""One machine among peers that the test plays: increments that it takes, passes on and publishes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gossipdp.errors import LocalProtocolError
from gossipdp.protocol.epidemic.epoch_set import MAX_LIVES
from gossipdp.protocol.epidemic.events import RumourReceived
from gossipdp.protocol.wire.epidemic_messages import MAX_SEQUENCE, Got, IHave, Prune, Rumour, RumourPart
from tests.protocol.epidemic.broadcast_network import peer, verify
from tests.protocol.epidemic.broadcast_rig import EPOCH, ME, SPAN, Told, publish

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
