"""One machine among peers that the test plays: which increments count, epochs and their digests, and neighbours."""

from __future__ import annotations

from itertools import count

from gossipdp.protocol.epidemic.epoch_set import MAX_LIVES
from gossipdp.protocol.epidemic.epochs import GRACE, SETTLE
from gossipdp.protocol.epidemic.events import EpochClosed, RumourReceived, RumourVoided
from gossipdp.protocol.epidemic.signing import digest_name, void_name
from gossipdp.protocol.events import EpochDiverged, EpochSettled, Notice, UpdateRefused
from gossipdp.protocol.wire.epidemic_messages import (
    NO_BASE,
    NO_RUN,
    EpochDigest,
    EpochMark,
    Got,
    Graft,
    IHave,
    Prune,
    Rumour,
    Stage,
    Want,
)
from tests.protocol.epidemic.broadcast_network import peer, signature
from tests.protocol.epidemic.broadcast_rig import EPOCH, SPAN, Rig, Told, publish

# -- equivocation -----------------------------------------------------------------------------------------------------


def test_two_increments_of_one_number_are_taken_back_and_neighbours_get_the_proof(rig):
    one, other = Told(peer(1)), Told(peer(1), parts=[b"else"])
    rig.tell(peer(1), one)
    rig.take()
    rig.events()
    rig.say(peer(2), other.header, other.table)
    assert rig.events() == [RumourVoided(peer(1), EPOCH, ((one.header, (b"one", b"two", b"six")),))]
    assert rig.take(Rumour) == [(to, shown.header) for to in rig.near for shown in (one, other)]


def test_proof_voids_received_and_later_increments(rig):
    one, other = Told(peer(1)), Told(peer(1), parts=[b"else"])
    rig.say(peer(2), one.header)
    rig.say(peer(2), other.header)
    assert rig.events() == [RumourVoided(peer(1), EPOCH, ())]
    rig.take()
    rig.tell(peer(3), Told(peer(1), sequence=5), parts=[])
    assert rig.events() == []
    assert [m for _, m in rig.take(to=peer(3))] == [
        Prune((Told(peer(1), sequence=5).name,)),
        one.header,
        other.header,
    ]


def test_known_proof_is_not_answered(rig):
    one, other = Told(peer(1)), Told(peer(1), parts=[b"else"])
    for shown in (one, other):
        rig.say(peer(2), shown.header)
    rig.take()
    for shown in (one, other):
        rig.say(peer(3), shown.header)
    assert rig.take() == []


def test_header_without_a_table_does_not_block_the_increment(rig):
    told = Told(peer(1))
    rig.say(peer(2), told.header)
    assert rig.take() == [] and rig.events() == []
    rig.tell(peer(1), told)
    rig.say(peer(2), told.header)
    assert len(rig.events(RumourReceived)) == 1 and rig.take(Prune) == []


def test_payload_of_a_void_increment_is_neither_kept_nor_pushed(rig):
    one, other = Told(peer(1)), Told(peer(1), parts=[b"else"])
    rig.tell(peer(1), one)
    rig.say(peer(2), other.header)
    assert rig.machine._store.bytes == 0
    rig.take()
    rig.say(peer(2), Got(one.name, 0))
    rig.say(peer(3), Graft((Want(one.name, 0),)))
    assert rig.take() == [(peer(3), Prune((one.name,)))]


def test_proof_is_fetched_by_its_name(rig):
    one, other = Told(peer(1)), Told(peer(1), parts=[b"else"])
    for shown in (one, other):
        rig.say(peer(2), shown.header)
    rig.take()
    rig.say(peer(3), Graft((Want(void_name(peer(1), EPOCH, NO_RUN), 0),)))
    assert rig.take() == [(peer(3), one.header), (peer(3), other.header)]


def test_proof_is_listed_to_a_peer_that_lacks_it(rig):
    for shown in (Told(peer(1)), Told(peer(1), parts=[b"else"])):
        rig.say(peer(2), shown.header)
    rig.take()
    rig.say(peer(3), *statement(peer(3), []))
    assert rig.take(IHave) == [(peer(3), IHave(EPOCH, (void_name(peer(1), EPOCH, NO_RUN),)))]


def test_origin_with_too_many_lives_is_void(rig):
    lives = [Told(peer(1), incarnation=number) for number in range(1, MAX_LIVES + 2)]
    for told in lives:
        rig.tell(peer(1), told)
    (void,) = rig.events(RumourVoided)
    assert {rumour for rumour, _ in void.received} == {told.header for told in lives[:-1]}


def test_void_increment_without_its_payload_is_reported_without_parts():
    rig = Rig(retain=20)
    first = Told(peer(1), parts=[bytes(12)])
    rig.tell(peer(1), first)
    rig.tell(peer(2), Told(peer(2), parts=[bytes(15)]))
    rig.events()
    rig.say(peer(3), Told(peer(1), parts=[b"else"]).header)
    assert rig.events() == [RumourVoided(peer(1), EPOCH, ((first.header, ()),))]


# -- epochs -----------------------------------------------------------------------------------------------------------


def test_epoch_closes_and_settles_with_the_clock_and_is_forgotten(rig):
    told = Told(peer(1))
    rig.tell(peer(1), told)
    rig.events()
    rig.machine.advance((EPOCH + GRACE + 1) * SPAN, 0.0)
    closed = {event.epoch: event for event in rig.events(EpochClosed)}
    assert (closed[EPOCH].rumours, closed[EPOCH].samples) == (1, 10)
    rig.machine.advance((EPOCH + GRACE + SETTLE + 1) * SPAN, 0.0)
    assert EPOCH in [event.epoch for event in rig.events(EpochSettled)]
    assert rig.machine._store.bytes == 0
    rig.take()
    rig.tell(peer(1), told)
    assert rig.events() == []


NUMBERS = count(1)


def statement(by, marks, *, first=EPOCH, reply=False, link=False, base=NO_BASE, run=NO_RUN, number=None):
    message = EpochDigest(first, tuple(marks), reply, link, base, run, next(NUMBERS) if number is None else number)
    return message, signature(by, digest_name(message, run))


def test_digest_that_differs_is_answered_with_names_and_the_same_digest_with_silence(rig):
    told = Told(peer(1))
    rig.tell(peer(1), told)
    mine = rig.machine._epochs.marks()
    rig.take()
    rig.say(peer(2), *statement(peer(2), mine, reply=True))
    assert rig.take() == []
    rig.say(peer(2), *statement(peer(2), [], reply=True))
    names, back = rig.take()
    assert names == (peer(2), IHave(EPOCH, (told.name,))) and back[1].marks == mine and not back[1].reply
    rig.say(peer(2), *statement(peer(2), [], reply=True))
    assert rig.take() == []


def test_names_of_dropped_payloads_are_not_listed():
    rig = Rig(retain=20)
    first, second = Told(peer(1), parts=[bytes(12)]), Told(peer(2), parts=[bytes(15)])
    rig.tell(peer(1), first)
    rig.tell(peer(2), second)
    rig.take()
    rig.say(peer(2), *statement(peer(2), []))
    assert rig.take(IHave) == [(peer(2), IHave(EPOCH, (second.name,)))]
    assert rig.machine._epochs.marks()[-1].count == 2


def test_digest_signed_by_another_is_refused(rig):
    rig.say(peer(2), *statement(peer(1), []))
    assert rig.events() == [UpdateRefused(peer(2), "signature")]


def test_digest_with_other_settings_is_no_fault_and_reported_to_the_operator_once():
    rig = Rig(run=b"A" * 16)
    for _ in range(3):
        rig.say(peer(2), *statement(peer(2), [], run=b"B" * 16, link=True, reply=True))
        rig.wait(2.0)
    [notice] = rig.events()
    assert isinstance(notice, Notice) and notice.code == "GD-303"
    assert rig.take() == [(peer(2), Prune(link=False))] * 3, "they are no neighbours and compare nothing"
    assert not rig.strikes.count(peer(2), rig.now) and peer(2) not in rig.machine.bases
    rig.say(peer(2), *statement(peer(1), [], run=b"A" * 16))
    assert rig.events() == [UpdateRefused(peer(2), "signature")]


def test_increment_with_other_settings_is_ignored_and_no_fault():
    rig, told = Rig(run=b"A" * 16), Told(peer(2), run=b"B" * 16)
    rig.say(peer(2), IHave(EPOCH, (told.name,)))
    rig.tell(peer(2), told)
    assert rig.events() == [] and rig.take() == [(peer(2), Prune((told.name,)))]
    assert rig.machine.counts["settings"] == 1 and not rig.machine.counts["payload"]
    rig.wait(60.0)
    assert rig.take() == [], "nor is it asked for"
    good = Told(peer(2), run=b"A" * 16)
    rig.tell(peer(2), good)
    assert len(rig.events(RumourReceived)) == 1


def test_own_increments_name_their_settings():
    rig = Rig(run=b"A" * 16)
    _, rumour = publish(rig)
    assert rumour.run == b"A" * 16


def test_digests_go_to_random_members():
    rig = Rig(members=12, sync=2.0)
    rig.wait(60.0)
    sent = rig.take(EpochDigest)
    assert 20 <= len(sent) <= 45 and len({to for to, _ in sent}) > 6


def test_peer_in_the_minority_on_a_settled_epoch_reports_it_once(rig):
    rig.machine.advance((EPOCH + GRACE + SETTLE + 1) * SPAN, 0.0)
    mark = EpochMark(EPOCH, Stage.SETTLED, 1, bytes([9] * 16))
    for number in (1, 2, 3, 1, 2):
        rig.say(peer(number), *statement(peer(number), [mark], first=EPOCH + 1))
    assert rig.events(EpochDiverged) == [EpochDiverged(EPOCH, 1, 3, tuple(peer(number) for number in (1, 2, 3)))]


def test_late_digest_does_not_replace_a_newer_one(rig):
    rig.say(peer(1), *statement(peer(1), [], base=b"founded at last".ljust(16), number=2 << 32))
    rig.say(peer(1), *statement(peer(1), [], base=b"founded at first".ljust(16), number=1 << 32 | 9))
    assert rig.machine.bases[peer(1)] == b"founded at last".ljust(16)


def test_digests_of_another_founding_are_not_counted(rig):
    rig.machine.advance((EPOCH + GRACE + SETTLE + 1) * SPAN, 0.0)
    mark = EpochMark(EPOCH, Stage.SETTLED, 1, bytes([9] * 16))
    for number in (1, 2, 3):
        rig.say(peer(number), *statement(peer(number), [mark], first=EPOCH + 1, base=bytes([7] * 16)))
    assert rig.events(EpochDiverged) == [] and set(rig.machine.bases.values()) == {bytes([7] * 16)}


# -- neighbours -------------------------------------------------------------------------------------------------------


def test_chosen_neighbours_are_told_and_those_that_choose_this_peer_are_taken():
    rig = Rig(members=30)
    assert len(rig.near) == 3
    other = next(peer(number) for number in range(1, 30) if peer(number) not in rig.near)
    rig.say(other, *statement(other, [], link=True))
    publish(rig)
    assert other in {to for to, _ in rig.take(Rumour)}
    rig.say(other, Prune(link=False))
    publish(rig)
    assert other not in {to for to, _ in rig.take(Rumour)}


def test_neighbour_that_had_set_this_peer_aside_is_greeted_with_the_next_epoch():
    rig = Rig(members=30)
    chosen, choosing = rig.near[0], next(peer(number) for number in range(1, 30) if peer(number) not in rig.near)
    rig.say(choosing, *statement(choosing, [], link=True))
    rig.take()
    rig.machine.advance((EPOCH + 1) * SPAN, rig.now)
    links = {to: message.link for to, message in rig.take(EpochDigest)}
    assert links[chosen] and not links[choosing], "a peer that chose this one says so itself"


def test_new_member_is_greeted_with_the_digest(rig):
    rig.machine.neighbours({peer(1), peer(2), peer(7)}, 0.0)
    ((to, message),) = rig.take(EpochDigest)
    assert to == peer(7) and message.link and message.reply


def test_alone_there_is_nothing_to_do():
    rig = Rig(members=1)
    assert publish(rig) is not None
    assert rig.take() == [] and rig.machine.timer() is None


def test_digests_heard_while_the_state_is_replaced_do_not_count_for_the_next(rig):
    rig.machine.advance((EPOCH + GRACE + SETTLE + 1) * SPAN, 0.0)
    mark = EpochMark(EPOCH, Stage.SETTLED, 1, bytes([9] * 16))
    summary = rig.machine.summary()
    rig.machine.hold()
    for number in (1, 2, 3):
        rig.say(peer(number), *statement(peer(number), [mark], first=EPOCH + 1))
    assert not rig.events(EpochDiverged)
    assert rig.machine.adopt(summary, 0.0)
    for number in (1, 2, 3):
        rig.say(peer(number), *statement(peer(number), [mark], first=EPOCH + 1))
    assert len(rig.events(EpochDiverged)) == 1


# -- a founding ----------------------------------------------------------------------------------------------------


def test_founding_hands_out_nothing_that_may_be_in_its_state(rig):
    publish(rig)
    before, after = Told(peer(1)), Told(peer(1), epoch=EPOCH + 1)
    rig.tell(peer(1), before)
    rig.events()
    rig.machine.found(rig.now, b"founded anew".ljust(16))
    rig.tell(peer(1), before)
    assert not rig.events(RumourReceived), "so far: the own one, the other one, and that one again"
    assert publish(rig) is None, "nothing of this epoch counts any more"
    rig.machine.advance((EPOCH + 1) * SPAN, rig.now)
    rig.tell(peer(1), after)
    [received] = rig.events(RumourReceived)
    assert received.rumour == after.header and publish(rig, clock=(EPOCH + 1) * SPAN)


def test_state_of_a_founding_is_taken_over_in_the_epoch_it_was_founded_in():
    founder, joiner = Rig(), Rig()
    founder.machine.found(0.0, b"founded anew".ljust(16))
    assert joiner.machine.adopt(founder.machine.summary(), 0.0) and joiner.machine.base == founder.machine.base
