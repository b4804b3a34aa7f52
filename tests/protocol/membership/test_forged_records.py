"""Forged and repeated records do no lasting harm."""

import pytest
from msgspec.structs import replace

from gossipdp.protocol.membership.config import LAN
from gossipdp.protocol.membership.view import LEAP
from gossipdp.protocol.wire.messages import Member, Ping, Pong, Progress, PushPull
from tests.protocol.membership.machines import TOP, A, F, L, Network, Peer, S, peer_id, record


def test_member_that_another_calls_dead_in_a_life_it_never_had_lives_again_once_it_is_asked() -> None:
    for pair in ((TOP, 0), (2, 0), (1, TOP), (1, LEAP + 1)):
        for state in (A, S, F, L):
            peer, forged = Peer(record(0)), record(2, incarnation=pair[0], refutation=pair[1], state=state)
            peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
            peer.hear(Ping(2, (record(1), forged)), 1, 1.0)
            assert peer.state_of(2) == state
            asked = [e.message for e in peer.hear(Ping(3, (record(2),)), 2, 2.0) if isinstance(e.message, Ping)]
            if state == A:
                asked = [e.message for e in peer.run_to(20.0) if isinstance(e.message, Ping) and e.to == peer_id(2)]
            peer.hear(Pong(asked[-1].sequence, (record(2),)), 2, 20.0)
            assert peer.membership.members[peer_id(2)] == record(2), "it says so itself, by now"
            peer.hear(Ping(4, (record(1), forged)), 1, 20.5)
            assert peer.membership.members[peer_id(2)] == record(2)


def test_many_forged_records_of_oneself_in_one_message_are_answered_once() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
    forged = tuple(record(0, refutation=number, state=S) for number in range(1, 20))
    sent = [e.message for e in peer.hear(Ping(2, (record(1), *forged)), 1, 1.0) if e.to == peer_id(1)]
    assert [type(message) for message in sent] == [PushPull, Pong], "one to what was said, and the ping's answer"
    assert peer.membership.me.refutation == 2
    peer.run_to(1.0 + LAN.probe_timeout)
    assert peer.membership.me.refutation == 2 + LEAP + 1


def test_answers_to_one_member_wait_for_a_probe_timeout_and_are_never_dropped() -> None:
    peer = Peer(record(0))
    others = range(2, 62)
    for number in others:
        peer.hear(Ping(1, (record(number, refutation=5),)), number, 0.0)
    sent = []
    for turn, number in enumerate(others):
        old = record(number, refutation=turn % 5)
        sent += [e for e in peer.hear(Pong(0, (record(1), old)), 1, 1.0 + 0.004 * turn) if e.to == peer_id(1)]
    answers = [envelope.message for envelope in sent]
    assert answers == [PushPull(False, (record(0), record(2, refutation=5)))]
    answers += [e.message for e in peer.run_to(6.0) if e.to == peer_id(1) and isinstance(e.message, PushPull)]
    assert len(answers) <= 6 and all(not answer.digest for answer in answers)
    told = {member.id for answer in answers for member in answer.members}
    assert told >= {peer_id(number) for number in others}


def test_doubts_in_quick_succession_are_denied_once_a_probe_timeout() -> None:
    peer = Peer(record(0))
    denials = set()
    for turn in range(100):
        me = peer.membership.me
        peer.hear(Ping(turn, (record(1), replace(me, state=S))), 1, 1.0 + 0.01 * turn)
        peer.run_to(1.0 + 0.01 * turn)
        denials.add(peer.membership.me.refutation)
    assert denials == {1, 2}
    peer.run_to(1.0 + 2.0 * LAN.probe_timeout)
    assert peer.membership.me.refutation == 3


def test_overdrawn_control_budget_thins_messages_and_delays_news_by_a_probe_interval_at_most() -> None:
    peer = Peer(record(0))
    for number in range(1, 10):
        peer.hear(Ping(1, (record(number, refutation=1),)), number, 0.0)
    peer.board.merge([Progress(peer_id(number), 1, 1, 1, 1) for number in range(1, 10)])
    peer.membership._dissemination.control.spend(1e9, 1.0)
    [pong] = [e.message for e in peer.hear(Ping(7, (record(1, refutation=1),)), 1, 1.0) if isinstance(e.message, Pong)]
    assert pong.sequence == 7 and pong.members == (record(0),) and len(pong.progress) <= 1
    doubted = [record(number, refutation=1, state=S) for number in (2, 3)]
    peer.hear(Pong(0, (record(1, refutation=1), *doubted)), 1, 1.0)
    times = []
    while (due := peer.membership.timer()) is not None and due < 4.0:
        peer.membership._dissemination.control.spend(1e9, due)
        peer.membership.handle_timer(due)
        times += [due for e in peer.sent() if isinstance(e.message, Pong) and len(e.message.members) > 2]
    assert len(set(times)) >= 2 and times[0] <= 1.0 + LAN.probe_interval


def disabused(forged: Member) -> Peer:
    """A peer that has believed this of member 2, until that one answered."""
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
    peer.hear(Ping(2, (record(1), forged)), 1, 1.0)
    [asked] = [e.message for e in peer.hear(Ping(3, (record(2),)), 2, 2.0) if isinstance(e.message, Ping)]
    peer.hear(Pong(asked.sequence, (record(2),)), 2, 2.1)
    return peer


def test_suspicions_and_their_answers_are_heard_of_though_later_ones_were_forged_before() -> None:
    peer = disabused(record(2, refutation=TOP, state=F))
    peer.hear(Ping(4, (record(2, state=S, accusers=(1,)),)), 1, 3.0)
    assert peer.state_of(2) == S
    peer.hear(Ping(5, (record(2, refutation=1),)), 1, 4.0)
    assert peer.membership.members[peer_id(2)] == record(2, refutation=1)


def test_later_life_is_believed_though_later_ones_were_forged_before() -> None:
    peer = disabused(record(2, incarnation=TOP, state=L))
    peer.hear(Ping(4, (record(2, incarnation=2),)), 2, 3.0)
    assert peer.membership.members[peer_id(2)] == record(2, incarnation=2)
    peer.hear(Ping(5, (record(1), record(2, incarnation=2, state=F))), 1, 4.0)
    assert peer.state_of(2) == F, "what others say of this life counts"


def test_late_answer_of_an_earlier_life_disproves_nothing() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
    [asked] = [e.message for e in peer.run_to(3.0) if isinstance(e.message, Ping) and e.to == peer_id(2)][:1]
    peer.hear(Ping(2, (record(1), record(2, incarnation=2))), 1, 3.1)
    peer.hear(Pong(asked.sequence, (record(2),)), 2, 3.2)
    assert peer.membership.members[peer_id(2)] == record(2, incarnation=2)


def test_answer_to_a_ping_of_an_earlier_life_disproves_nothing() -> None:
    """T1 seed 3978: recorded messages, repeated to the next life of their receiver."""
    earlier, later = Peer(record(0)), Peer(record(0, incarnation=2))
    for peer in earlier, later:
        peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
    answers = [Pong(e.message.sequence, (record(2),)) for e in earlier.run_to(20.0) if isinstance(e.message, Ping)]
    later.hear(Ping(2, (record(2, refutation=1),)), 1, 0.1)
    asked = [e for e in later.run_to(20.0) if isinstance(e.message, Ping) and e.to == peer_id(2)]
    for answer in answers:
        later.hear(answer, 2, 20.0)
    assert asked and later.membership.members[peer_id(2)].refutation == 1


def test_answer_that_comes_after_any_probe_has_ended_is_no_round_trip() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1),)), 1, 0.0)
    [asked, *_] = [e.message for e in peer.run_to(3.0) if isinstance(e.message, Ping)]
    peer.hear(Pong(asked.sequence, (record(1),)), 1, 900.0)
    assert peer.membership.rtt(peer_id(1)) is None


@pytest.mark.parametrize("pair", [(TOP, 0), (1, TOP)])
def test_forged_death_is_told_everywhere_and_the_victim_lives_on_everywhere(pair: tuple[int, int]) -> None:
    network = Network(LAN, seed=5)
    for number in range(6):
        network.start(number, [0] if number else [])
    network.run(20.0)
    forged = record(2, incarnation=pair[0], refutation=pair[1], state=L if pair[0] > 1 else F)
    for number in (0, 1, 3, 4, 5):
        network.peers[number].hear(Ping(9, (record(1), forged)), 1, network.now)
        network._drain(number)
    network.run(40.0)
    for number, peer in network.peers.items():
        victim = peer.membership.members[peer_id(2)]
        assert (victim.state, victim.incarnation) == (A, 1) and victim.refutation < TOP, number
