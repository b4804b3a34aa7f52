"""Probes of one machine, and local health with the times of a probe that follow from it (SWIM 3.1, Lifeguard IV.A)."""

import pytest

from gossipdp.protocol.membership.config import LAN
from gossipdp.protocol.membership.local_health import LocalHealth, probe_times
from gossipdp.protocol.wire.messages import Nack, Ping, PingRequest, Pong, State
from tests.protocol.membership.machines import A, F, Peer, S, peer_id, record


def probing(peer: Peer, target: int) -> tuple[Ping, float]:
    """Run `peer` until it probes `target`. Members probed before that answer."""
    while True:
        due = peer.membership.timer()
        assert due is not None and due < 100.0
        peer.membership.handle_timer(due)
        for envelope in peer.sent():
            if not isinstance(envelope.message, Ping):
                continue
            if envelope.to == peer_id(target):
                return envelope.message, due
            other = next(number for number in range(100) if peer_id(number) == envelope.to)
            peer.hear(Pong(envelope.message.sequence, (record(other),)), other, due)


def test_answered_probe_measures_the_round_trip_and_improves_health() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1),)), 1, 0.0)
    peer.membership.health.worse(3)
    ping, at = probing(peer, 1)
    peer.hear(Pong(ping.sequence, (record(1),)), 1, at + 0.08)
    assert peer.membership.rtt(peer_id(1)) == pytest.approx(0.08)
    assert peer.membership.health.multiplier == 3


def test_silent_probe_goes_through_k_relays_then_suspects_tells_the_suspect_and_costs_health() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, tuple(record(number) for number in range(1, 7))), 1, 0.0)
    peer.run_to(0.0)
    peer.membership.contact(peer_id(5), 0.0)
    ping, at = probing(peer, 5)
    direct = peer.run_to(at + LAN.probe_timeout - 0.001)
    assert not [envelope for envelope in direct if isinstance(envelope.message, PingRequest)]
    sent = peer.run_to(at + LAN.probe_timeout)
    requests = [envelope for envelope in sent if isinstance(envelope.message, PingRequest)]
    assert len({envelope.to for envelope in requests}) == 3
    assert {envelope.message for envelope in requests} == {PingRequest(ping.sequence, peer_id(5), record(5).address)}
    assert [envelope.to for envelope in sent if isinstance(envelope.message, Ping)] == [peer_id(5)]
    before = peer.membership.health.multiplier
    verdict = peer.run_to(at + LAN.probe_interval)
    assert peer.state_of(5) == State.SUSPECT and peer.membership.health.multiplier == before + 2
    told = [envelope.message for envelope in verdict if envelope.to == peer_id(5)]
    assert any(
        isinstance(message, Ping) and message.members[1] == record(5, state=S, accusers=(0,)) for message in told
    )


def test_nacks_of_all_relays_say_that_the_silence_is_not_mine() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2), record(3))), 1, 0.0)
    peer.membership.contact(peer_id(3), 0.0)
    ping, at = probing(peer, 3)
    relays = [e.to for e in peer.run_to(at + LAN.probe_timeout) if isinstance(e.message, PingRequest)]
    assert set(relays) == {peer_id(1), peer_id(2)}
    for number in (1, 2):
        peer.hear(Nack(ping.sequence), number, at + 0.7)
    peer.run_to(at + LAN.probe_interval)
    assert peer.state_of(3) == State.SUSPECT and peer.membership.health.multiplier == 2


def test_pong_through_a_relay_clears_the_probe_but_measures_nothing() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2), record(3))), 1, 0.0)
    ping, at = probing(peer, 3)
    peer.run_to(at + LAN.probe_timeout)
    peer.hear(Pong(ping.sequence, (record(2),)), 2, at + 0.8)
    peer.run_to(at + LAN.probe_interval)
    assert peer.state_of(3) == State.ALIVE and peer.membership.rtt(peer_id(3)) is None


def test_pong_of_an_unasked_member_clears_nothing() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
    ping, at = probing(peer, 2)
    peer.hear(Pong(ping.sequence, (record(1),)), 1, at + 0.1)
    peer.run_to(at + LAN.probe_interval)
    assert peer.state_of(2) == State.SUSPECT


def test_member_heard_from_during_its_probe_is_not_suspected_though_its_answer_is_missed() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1),)), 1, 0.0)
    _, at = probing(peer, 1)
    peer.membership.contact(peer_id(1), at + 0.9)
    peer.run_to(at + LAN.probe_interval)
    assert peer.state_of(1) == State.ALIVE and peer.membership.health.multiplier == 2


def test_suspect_that_keeps_sending_is_failed_only_after_an_equal_silence() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2, state=S))), 1, 0.0)
    peer.run_to(3.0)
    peer.membership.contact(peer_id(2), 3.0)
    peer.run_to(6.9)
    assert peer.state_of(2) == State.SUSPECT
    peer.run_to(7.0)
    assert peer.state_of(2) == State.FAILED


def test_relay_passes_an_answer_on_and_says_nack_when_there_is_none() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
    sent = peer.hear(PingRequest(77, peer_id(2), record(2).address), 1, 0.1)
    ping = sent[0].message
    assert sent[0].to == peer_id(2) and isinstance(ping, Ping)
    passed = [e for e in peer.hear(Pong(ping.sequence, (record(2),)), 2, 0.15) if e.to == peer_id(1)]
    assert isinstance(passed[0].message, Pong) and passed[0].message.sequence == 77
    peer.hear(PingRequest(78, peer_id(9), "10.0.0.9:4710"), 1, 0.2)
    nacks = [e.message for e in peer.run_to(0.2 + LAN.probe_timeout) if e.to == peer_id(1)]
    assert Nack(78) in nacks and Nack(77) not in nacks


@pytest.mark.parametrize("number", [2, 9], ids=["known", "unknown"])
def test_relay_is_asked_to_ping_at_an_address_of_the_askers_choice__never_dials_it(number: int) -> None:
    """Otherwise a member has others connect to any port of any host."""
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
    sent = peer.hear(PingRequest(77, peer_id(number), "10.0.0.99:22"), 1, 0.1)
    assert [(e.to, e.address) for e in sent] == ([(peer_id(2), record(2).address)] if number == 2 else [])
    nacks = [e.message for e in peer.run_to(0.1 + LAN.probe_timeout) if e.to == peer_id(1)]
    assert Nack(77) in nacks


def test_timers_that_ran_late_void_the_probe_and_prolong_suspicions() -> None:
    """Lifeguard I: slow processing of messages must not look like the death of others."""
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2), record(3, state=S))), 1, 0.0)
    _, at = probing(peer, 2)
    peer.membership.handle_timer(at + 20.0)
    assert [peer.state_of(number) for number in (1, 2, 3)] == [A, A, S]
    assert peer.membership.health.multiplier == 2
    peer.membership.handle_timer(at + 20.01)
    assert peer.state_of(3) == State.SUSPECT


def test_health_scales_probe_interval_and_timeout_up_to_its_maximum() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1),)), 1, 0.0)
    peer.membership.health.worse(99)
    assert peer.membership.health.multiplier == LAN.awareness_max
    _, at = probing(peer, 1)
    peer.run_to(at + 7.99)
    assert peer.state_of(1) == State.ALIVE
    peer.run_to(at + 8.0)
    assert peer.state_of(1) == State.SUSPECT


def test_lost_link_brings_the_probe_of_that_peer_forward() -> None:
    """SWIM 4.3: the order is a shuffled round-robin. A hint only changes which member is next."""
    peer = Peer(record(0))
    peer.hear(Ping(1, tuple(record(number) for number in range(1, 12))), 1, 0.0)
    peer.membership.link_down(peer_id(8), "reset", 0.0)
    peer.membership.link_down(peer_id(99), "reset", 0.0)
    assert peer.state_of(8) == State.ALIVE
    pinged = [e.to for e in peer.run_to(LAN.probe_interval) if isinstance(e.message, Ping)]
    assert pinged[0] == peer_id(8)


def test_every_member_is_probed_once_before_any_is_probed_twice() -> None:
    peer = Peer(record(0))
    numbers = range(1, 9)
    peer.hear(Ping(1, tuple(record(number) for number in numbers)), 1, 0.0)
    order = []
    for _ in range(3 * len(numbers)):
        while True:
            due = peer.membership.timer()
            assert due is not None
            peer.membership.handle_timer(due)
            pings = [e for e in peer.sent() if isinstance(e.message, Ping)]
            if pings:
                break
        order.append(pings[0].to)
        number = next(number for number in numbers if peer_id(number) == pings[0].to)
        peer.hear(Pong(pings[0].message.sequence, (record(number),)), number, due + 0.01)
    for turn in range(3):
        assert len(set(order[turn * 8 : turn * 8 + 8])) == 8


def test_members_that_come_and_go_do_not_keep_the_others_from_being_probed() -> None:
    """SWIM 4.3: the time to the first probe of each member is bounded by the size of the network."""
    peer = Peer(record(0))
    numbers = range(1, 13)
    peer.hear(Ping(1, tuple(record(number) for number in numbers)[:11]), 1, 0.0)
    peer.hear(Ping(2, (record(12),)), 12, 0.0)
    probed: dict[bytes, float] = dict.fromkeys(map(peer_id, numbers), 0.0)
    waited: list[float] = []
    refutation = 0
    while (due := peer.membership.timer()) is not None and due < 60.0:
        peer.membership.handle_timer(due)
        if due > 2.0 * refutation:
            refutation += 1
            for number in (1, 2, 3, 4):
                peer.hear(Ping(1, (record(number, refutation=refutation - 1, state=F),)), 5, due)
                peer.hear(Ping(2, (record(number, refutation=refutation),)), number, due)
        for envelope in peer.sent():
            if isinstance(envelope.message, Ping):
                number = next(number for number in numbers if peer_id(number) == envelope.to)
                if number > 4:
                    waited.append(due - probed[envelope.to])
                    probed[envelope.to] = due
                said = record(number, refutation=refutation if number <= 4 else 0)
                peer.hear(Pong(envelope.message.sequence, (said,)), number, due)
    assert max(waited) <= 2 * 12 * LAN.probe_interval and max(60.0 - probed[peer_id(n)] for n in range(5, 13)) <= 24.0


@pytest.mark.parametrize(
    ("multiplier", "rtt", "direct", "verdict"),
    [
        (1, None, 0.5, 1.0),
        (1, 0.1, 0.5, 1.0),
        (1, 0.2, 0.6, 1.2),
        (1, 0.9, 2.7, 5.4),
        (1, 60.0, 4.0, 8.0),
        (3, None, 1.5, 3.0),
        (3, 0.2, 1.5, 3.0),
        (8, 60.0, 4.0, 8.0),
    ],
)
def test_probe_times_follow_local_health_and_round_trip(
    multiplier: int, rtt: float | None, direct: float, verdict: float
) -> None:
    assert probe_times(1.0, 0.5, multiplier, rtt, 8) == pytest.approx((direct, verdict))


def test_local_health_stays_between_one_and_its_maximum() -> None:
    """Lifeguard IV.A: LHM saturates at both ends."""
    health = LocalHealth(4)
    seen = [health.multiplier]
    for change in (health.better, health.worse, health.worse, health.worse, health.worse, health.better):
        change()
        seen.append(health.multiplier)
    assert seen == [1, 1, 2, 3, 4, 4, 3]
    health.worse(100)
    assert health.multiplier == 4
