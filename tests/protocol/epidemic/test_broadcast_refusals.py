"""One machine among peers that the test plays: headers and parts that it refuses, and their senders."""

from __future__ import annotations

import pytest

from gossipdp.protocol.epidemic.epochs import AHEAD, GRACE, SETTLE
from gossipdp.protocol.epidemic.events import RumourReceived
from gossipdp.protocol.events import UpdateRefused
from gossipdp.protocol.wire.epidemic_messages import Graft, Prune, RumourPart, Want
from tests.protocol.epidemic.broadcast_network import peer
from tests.protocol.epidemic.broadcast_rig import EPOCH, SPAN, STRANGER, Rig, Told


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
