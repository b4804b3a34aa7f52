"""Decisions of the operator reach every peer, whatever the network loses."""

import dataclasses

import pytest

from gossipdp.protocol.admission.packing import pack
from gossipdp.protocol.admission.statements import SECRET
from gossipdp.protocol.events import (
    Decided,
    ExchangeEnded,
    MessageDropped,
    OperatorDiffers,
    ReceiptsTaken,
    UpdateRefused,
)
from gossipdp.protocol.outputs import Envelope
from gossipdp.protocol.wire.encoding import encode
from gossipdp.protocol.wire.messages import Decision, Decisions, State, Verdict
from gossipdp.protocol.wire.table import SINCE
from simulations.simulator.host import Host
from tests.protocol.admission.deciding import OPERATOR, STRANGER, ban, closed, decision, invited, received, renewed
from tests.protocol.peer_rig import Town


def town(peers: int, *, start: int | None = None, operator: bytes = OPERATOR) -> Town:
    made = Town(peers, operator)
    for index in range(peers if start is None else start):
        made.start(index, found=index == 0)
    made.run(5.0)
    return made


def decide(made: Town, index: int, *decisions: object) -> None:
    for each in decisions:
        made.net.command(made.hosts[index], "decide", lambda peer, each=each: peer.decide(each, made.net.now))


def states(made: Town, subject: int) -> list[State]:
    """What every other peer believes of the subject."""
    peer = made.hosts[subject].id
    others = [host.peer for host in made.hosts if host.peer is not None and host.index != subject]
    return [other.view.members[peer].state for other in others]


def admitting(made: Town, subject: int) -> list[int]:
    return [
        host.index
        for host in made.hosts
        if host.peer is not None and host.index != subject and host.peer._admission.admits(made.hosts[subject].id)
    ]


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_ban_is_in_force_at_all_of_16_peers_within_10_seconds(loss: float) -> None:
    made = town(16)
    made.net.set_conditions(dataclasses.replace(made.net.conditions, loss=loss))
    decide(made, 0, ban(made.hosts[9].id, reason="stolen"))
    made.run(10.0)
    assert admitting(made, 9) == []
    assert set(states(made, 9)) == {State.FAILED}
    assert all(len(made.of(index, Decided)) == 1 for index in range(16)), "the banned peer hears of it, too"
    made.run(20.0)
    assert set(states(made, 9)) == {State.FAILED}, "no refutation of it brings it back"


def test_banned_peer_exchanges_with_nobody_and_comes_back_once_it_is_unbanned() -> None:
    made = town(4)
    for index in range(4):
        made.train(index)
    made.run(20.0)
    thief = made.hosts[3].id
    decide(made, 1, ban(thief))
    made.run(10.0)
    before = [len(made.of(index, ExchangeEnded)) for index in range(4)]
    made.run(30.0)
    after = [made.of(index, ExchangeEnded)[before[index] :] for index in range(4)]
    assert all(after[:3]) and not any(event.chunks for event in after[3])
    assert not any(event.partner == thief for events in after for event in events)
    decide(made, 2, decision(Verdict.NONE, thief, 2))
    made.run(60.0)
    assert set(states(made, 3)) == {State.ALIVE}
    assert any(event.partner == thief and event.chunks for event in made.of(0, ExchangeEnded)[-40:])


def test_peer_that_joins_later_learns_all_decisions_from_its_first_member() -> None:
    made = town(4, start=3)
    subjects = [bytes([number]) * 32 for number in range(1, 16)]
    decide(made, 0, *(ban(subject) for subject in subjects))
    made.run(5.0)
    made.start(3)
    made.run(3.0)
    assert made.peer(3)._admission.digest == made.peer(0)._admission.digest
    assert not any(made.peer(3)._admission.admits(subject) for subject in subjects)


def test_two_sides_of_a_cut_compare_their_decisions_afterwards() -> None:
    made = town(6)
    made.net.links.cut(made.hosts[:3], made.hosts[3:])
    decide(made, 0, ban(b"x" * 32))
    decide(made, 5, ban(b"y" * 32))
    made.run(40.0)
    digests = [made.peer(index)._admission.digest for index in range(6)]
    assert digests == [digests[0]] * 3 + [digests[5]] * 3 and digests[0] != digests[5]
    made.net.links.heal()
    made.run(60.0)
    assert len({made.peer(index)._admission.digest for index in range(6)}) == 1
    assert len(made.peer(2).view.decisions) == 2


def test_restarted_peer_keeps_its_decisions() -> None:
    made = town(3)
    decide(made, 0, ban(b"x" * 32))
    made.run(5.0)
    made.net.stop(made.hosts[2])
    made.net.start(made.hosts[2], seeds=[])
    assert not made.peer(2)._admission.admits(b"x" * 32)


def test_closed_network_drops_those_that_are_not_allowed() -> None:
    made = town(4)
    ids = [host.id for host in made.hosts]
    decide(made, 0, closed(*ids[:3]))
    made.run(10.0)
    assert admitting(made, 3) == [] and admitting(made, 2) == [0, 1, 3]
    assert set(states(made, 3)) == {State.FAILED}


def test_peer_that_joins_a_closed_network_is_never_alone() -> None:
    made = town(12, start=11)
    decide(made, 0, closed(*(host.id for host in made.hosts), b"d" * 32), *(ban(bytes([n]) * 32) for n in range(1, 9)))
    made.run(5.0)
    made.start(11)
    for _ in range(20):
        made.run(0.5)
        assert made.peer(11)._admission.admits(made.hosts[0].id)
    assert made.peer(11)._admission.digest == made.peer(0)._admission.digest
    assert len(made.peer(11).view.alive) == 11


def tell(made: Town, index: int, source: int, message: Decisions, *decisions: Decision) -> None:
    frames = encode(message, [pack(decisions)] if decisions else [])
    made.net.command(made.hosts[index], "told", lambda peer: peer.receive(frames, made.hosts[source].id, made.net.now))


def test_forged_decision_is_refused_and_not_passed_on() -> None:
    made = town(3)
    tell(made, 0, 2, Decisions(OPERATOR), ban(b"x" * 32), ban(made.hosts[1].id, operator=STRANGER))
    made.run(10.0)
    assert [event.reason for event in made.of(0, UpdateRefused)] == ["signature of a decision"]
    assert admitting(made, 1) == [0, 2] and not made.peer(2)._admission.admits(b"x" * 32)


def test_buffer_that_holds_no_decisions_is_dropped() -> None:
    made = town(2)
    frames = encode(Decisions(OPERATOR), [b"\x93\x01\x02\x03"])
    made.net.command(made.hosts[0], "told", lambda peer: peer.receive(frames, made.hosts[1].id, made.net.now))
    assert len(made.of(0, MessageDropped)) == 1 and made.peer(0).view.decisions == ()


def test_decisions_are_sent_once_a_probe_interval_however_often_a_member_asks() -> None:
    sent: list[int] = []

    def count(host: Host, envelope: Envelope) -> list[Envelope]:
        if host.index == 0 and isinstance(envelope.message, Decisions) and len(envelope.frames) > 1:
            sent.append(len(envelope.frames[1]))
        return [envelope]

    made = Town(2, OPERATOR, tampers=count)
    for index in range(2):
        made.start(index, found=index == 0)
    made.run(5.0)
    decide(made, 0, *(ban(bytes([n]) * 32) for n in range(1, 100)))
    made.run(10.0)
    sent.clear()
    for reply in [True, False] * 50:
        tell(made, 0, 1, Decisions(OPERATOR, b"?" * 16, reply))
    assert len(sent) <= 2, "one to the question, one if that member was asked before"


def test_other_operators_are_told_a_few_times_and_not_followed() -> None:
    for mine in (b"", OPERATOR):
        made = town(2, operator=mine)
        for n in range(100):
            tell(made, 0, 1, Decisions(bytes([n]) * 32), ban(b"x" * 32))
        told = made.of(0, OperatorDiffers)
        assert len(told) == 8 and told[0] == OperatorDiffers(made.hosts[1].id, bytes(32))
        assert made.peer(0)._admission.admits(b"x" * 32)


def test_members_of_the_version_before_are_never_sent_decisions() -> None:
    told: list[tuple[bytes, bytes]] = []

    def watch(host: Host, envelope: Envelope) -> list[Envelope]:
        if isinstance(envelope.message, Decisions):
            told.append((host.id, envelope.to))
        return [envelope]

    made = Town(3, OPERATOR, versions={2: SINCE[Decisions] - 1}, tampers=watch)
    for index in range(3):
        made.start(index, found=index == 0)
    made.run(5.0)
    decide(made, 0, ban(b"x" * 32))
    made.run(30.0)
    first, second, old = (host.id for host in made.hosts)
    assert {(first, second), (second, first)} <= set(told)
    assert not [pair for pair in told if pair[1] == old]


def test_invite_and_whom_it_lets_in_reach_all__no_other_member_lets_a_second_host_in() -> None:
    made = town(8)
    key, guest = b"k" * 32, b"g" * 32
    invite = invited(key)
    assert made.peer(2).redeem(invite, received(invite, guest), 0.0, made.net.now) == ""
    made.net.command(made.hosts[2], "wake", lambda peer: None)
    made.run(10.0)
    for index in range(8):
        assert made.peer(index).view.holders(key) == {guest}
        assert "1 of 1 hosts" in made.peer(index)._admission.redeem(invite, received(invite, b"h" * 32), 0.0)
        assert len(made.of(index, ReceiptsTaken)) == 1
    assert len({made.peer(index)._admission.digest for index in range(8)}) == 1


def test_two_sides_of_a_cut_that_let_in_a_host_each_learn_of_both() -> None:
    made = town(4)
    key = b"k" * 32
    invite = invited(key)
    decide(made, 0, invite)
    made.run(5.0)
    made.net.links.cut(made.hosts[:2], made.hosts[2:])
    for index, guest in ((0, b"g" * 32), (3, b"h" * 32)):
        assert made.peer(index).redeem(invite, received(invite, guest), 0.0, made.net.now) == ""
    made.run(30.0)
    made.net.links.heal()
    made.run(60.0)
    assert all(len(made.peer(index).view.holders(key)) == 2 for index in range(4))


def test_everybody_learns_who_has_the_new_secret() -> None:
    made = town(16)
    ids = [host.id for host in made.hosts]
    renewal = renewed(*ids, number=5)
    decide(made, 3, renewal)
    made.run(5.0)
    for index in range(16):
        made.net.command(
            made.hosts[index],
            "received",
            lambda peer: peer.received(received(renewal, peer.id), made.net.now),
        )
    made.run(10.0)
    assert all(made.peer(index).view.holders(SECRET) == set(ids) for index in range(16))
