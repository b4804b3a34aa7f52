"""Members known by hearsay: how many are believed. Members that a peer heard itself: they come first, and are kept."""

from itertools import count
from random import Random

from msgspec.structs import replace

from gossipdp.protocol.admission.register import Admission
from gossipdp.protocol.membership.config import LAN
from gossipdp.protocol.membership.introductions import A_MINUTE, most_hearsay, most_live
from gossipdp.protocol.membership.view import View
from gossipdp.protocol.wire.messages import Ping, Pong, State
from tests.protocol.membership.machines import Peer, peer_id, record


def introduce(peer: Peer, numbers: range, *, by: int = 1, now: float = 0.0, state: State = State.ALIVE) -> int:
    """Members that `by` names and that are not known yet; how many are known then."""
    for start in range(numbers.start, numbers.stop, 12):
        some = range(start, min(start + 12, numbers.stop))
        peer.hear(Pong(0, (record(by), *(record(number, state=state) for number in some))), by, now)
    return sum(peer_id(number) in peer.membership.members for number in numbers)


def test_live_members_introduced_in_a_minute_are_bounded_in_proportion_to_those_heard() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1),)), 1, 0.0)
    assert introduce(peer, range(100, 400)) == most_live(1) == 80
    assert peer.membership.refused == 220
    peer.hear(Ping(1, (record(399),)), 399, 0.0)
    assert peer.state_of(399) == State.ALIVE, "it speaks itself"
    for number in range(100, 105):
        peer.hear(Ping(1, (record(number),)), number, 0.0)
    assert introduce(peer, range(100, 400)) == most_live(7) + 1


def test_refused_live_members_are_accepted_in_later_minutes_up_to_the_bound_on_hearsay() -> None:
    peer, many = Peer(record(0)), range(100, 2000)
    peer.hear(Ping(1, (record(1),)), 1, 0.0)
    known = [introduce(peer, many, now=60.0 * minute) for minute in range(16)]
    assert known == [min(most_live(1) * (minute + 1), most_hearsay(1)) for minute in range(16)]
    assert known[-1] == 1040 < len(many)


def test_few_members_known_by_hearsay_are_contacted_once_some_were_silent_and_all_when_one_answers() -> None:
    peer = Peer(record(0))
    for number in (1, 2, 3):
        peer.hear(Ping(1, (record(number),)), number, 0.0)
    introduce(peer, range(100, 180))
    view, heard = peer.membership._view, {peer_id(number): number for number in (1, 2, 3)}
    assert len(view.candidates(Random(1))) == 83

    def run(until: float, answering: dict[bytes, int]) -> int:
        while (due := peer.membership.timer()) is not None and due < until:
            peer.membership.handle_timer(due)
            for envelope in peer.sent():
                if isinstance(envelope.message, Ping) and envelope.to in answering:
                    peer.hear(Pong(envelope.message.sequence), answering[envelope.to], due)
        return len(view.candidates(Random(1)))

    assert run(30.0, heard) == 3 + 8 and set(heard) <= set(view.candidates(Random(1)))
    introduce(peer, range(200, 400), now=90.0)
    assert len(view.contacts.hearsay) == most_live(3) == 112
    assert run(120.0, heard | {peer_id(number): number for number in range(100, 400)}) > 60


def test_dead_members_count_once_they_are_said_to_live() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1),)), 1, 0.0)
    assert introduce(peer, range(100, 300), state=State.FAILED) == 200
    risen = [record(number, refutation=1) for number in range(100, 300)]
    for start in range(0, 200, 12):
        peer.hear(Pong(0, (record(1), *risen[start : start + 12])), 1, 0.0)
    assert sum(peer.state_of(number) == State.ALIVE for number in range(100, 300)) == most_live(1)


def test_one_member_introduces_a_bounded_number_a_minute_and_another_as_many() -> None:
    peer = Peer(record(0))
    for number in (1, 2):
        peer.hear(Ping(1, (record(number),)), number, 0.0)
    many = range(1000, 1000 + 2 * A_MINUTE)
    assert introduce(peer, many, state=State.LEFT) == A_MINUTE
    assert introduce(peer, many, now=59.0, state=State.LEFT) == A_MINUTE
    assert introduce(peer, range(1000, 1000 + A_MINUTE + 100), by=2, now=59.0, state=State.LEFT) == A_MINUTE + 100
    assert introduce(peer, many, now=60.0, state=State.LEFT) == 2 * A_MINUTE


def test_members_heard_are_probed_as_often_with_any_number_known_by_hearsay() -> None:
    peer = Peer(record(0))
    for number in range(1, 6):
        peer.hear(Ping(1, (record(number),)), number, 0.0)
    introduce(peer, range(100, 200))
    probed = [peer_id(number) for number in range(1, 6)]
    seen, sequences = [], count(1)
    while (due := peer.membership.timer()) is not None and due < 120.0:
        peer.membership.handle_timer(due)
        for envelope in peer.sent():
            if isinstance(envelope.message, Ping) and envelope.to in probed:
                seen.append((envelope.to, due))
                number = probed.index(envelope.to) + 1
                peer.hear(Pong(envelope.message.sequence, (record(number),)), number, due)
        for number in range(100, 200):  # none of them answers, and another member denies that they are dead
            known = peer.membership.members[peer_id(number)]
            if known.state != State.ALIVE:
                denied = record(number, refutation=known.refutation + 1)
                peer.hear(Ping(next(sequences), (record(1), denied)), 1, due)
    assert {peer for peer, at in seen if at > 60.0} == set(probed) and len(seen) >= 4 * len(probed)
    assert peer.membership.health.multiplier == 1


def test_only_members_heard_once_that_have_not_left_are_looked_for_after_a_restart() -> None:
    peer = Peer(record(0))
    peer.membership.remember([record(7), record(8), record(9)], {})
    peer.hear(Ping(1, (record(1),)), 1, 0.0)
    peer.hear(Ping(1, (record(2),)), 2, 0.0)
    peer.hear(Ping(1, (record(3),)), 3, 0.0)
    peer.hear(Pong(0, (record(8, refutation=1, state=State.LEFT), record(2, refutation=1, state=State.LEFT))), 1, 0.1)
    introduce(peer, range(100, 140))
    peer.hear(Pong(0, (record(3, state=State.FAILED),)), 1, 10.0)
    addresses = [member.address for member in peer.membership.restart_contacts()]
    assert addresses == [record(number).address for number in (1, 3, 7, 9)]


def test_member_that_left_is_not_dialled_and_a_seed_whose_member_left_once_a_minute() -> None:
    peer = Peer(record(0))
    peer.membership.join([record(1).address, record(2).address], 0.0)
    for number in (1, 2):
        peer.hear(Ping(1, (record(number),)), number, 0.0)
    for number in (1, 2):
        peer.hear(Ping(2, (record(number, refutation=1, state=State.LEFT),)), number, 1.0)
    peer.membership.link_down(peer_id(1), "closed", 1.0)
    assert peer.membership.address_of(peer_id(1)) == "" and peer.membership.left(record(1).address)
    dialled = [envelope.address for envelope in peer.run_to(1.0 + 5 * 60.0) if envelope.address]
    assert 3 <= dialled.count(record(1).address) <= 6 and 3 <= dialled.count(record(2).address) <= 6
    peer.hear(Ping(1, (record(1, incarnation=2),)), 1, 400.0)
    assert peer.membership.address_of(peer_id(1)) == record(1).address
    assert not peer.membership.left(record(1).address) and LAN.join_longest < 60.0


def test_link_that_the_transport_lost__only_that_member_counts_as_not_linked() -> None:
    peer = Peer(record(0))
    for number in (1, 2):
        peer.hear(Ping(number, (record(number),)), number, 0.0)
    contacts = peer.membership._view.contacts
    peer.membership.link_down(peer_id(1), "gone", 1.0)
    assert not contacts.linked(peer_id(1)) and contacts.linked(peer_id(2))
    peer.hear(Ping(3), 1, 2.0)
    assert contacts.linked(peer_id(1))


def test_remembered_are_others_that_have_an_address() -> None:
    view = View(LAN, record(0), Admission(peer_id(0)))
    view.remember([record(0), replace(record(1), address=""), record(2)])
    assert set(view.remembered) == {peer_id(2)}


def test_peer_that_has_left_changes_its_record_no_more() -> None:
    peer = Peer(record(0))
    peer.membership.leave(1.0)
    left = peer.membership.me
    peer.membership.advertise(["10.9.9.9:4710"], 2.0)
    assert peer.membership.me == left
