"""Membership is bounded and deterministic (I9, I12), costs little, and its presets agree with themselves."""

import dataclasses
import math
from random import Random

import pytest
from msgspec.structs import replace

from gossipdp.protocol.membership import view as module
from gossipdp.protocol.membership.config import LAN, LOCAL, PRESETS, WAN
from gossipdp.protocol.membership.dissemination import PATIENT_TELLS, UNASKED, transmit_limit
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import (
    MAX_ACCUSERS,
    MAX_RECORDS,
    Member,
    Ping,
    PingRequest,
    Pong,
    Progress,
    PushPull,
    State,
)
from tests.protocol.membership.machines import F, L, Network, Peer, S, joined, peer_id, record


def test_member_table_is_bounded_and_the_dead_make_room_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 6)
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2, state=F), *(record(number) for number in range(3, 6)))), 1, 0.0)
    peer.hear(Ping(2, (record(1), record(6, state=F))), 1, 0.1)
    assert len(peer.membership.members) == 6 and peer.membership.refused == 1
    peer.hear(Ping(3, (record(1), record(7))), 1, 0.2)
    assert peer_id(2) not in peer.membership.members and peer.state_of(7) == State.ALIVE
    peer.hear(Ping(4, (record(1), record(8))), 1, 0.3)
    assert len(peer.membership.members) == 6 and peer.membership.refused == 2


def test_flood_of_member_messages_leaves_bounded_tables() -> None:
    peer = Peer(record(0))
    random = Random(4)
    for number in range(1000):
        now = number * 0.001
        peer.hear(Ping(number, (record(1), record(number + 2))), 1, now)
        peer.hear(PingRequest(number, random.randbytes(32), "10.9.9.9:1"), 1, now)
        peer.hear(Pong(number, (record(1),)), number + 2, now)
    membership = peer.membership
    assert len(membership.members) <= module.MAX_MEMBERS
    assert len(membership._prober.sent) <= 256 and len(membership._prober.nack_at) <= 64
    assert len(membership._dissemination.broadcasts) <= len(membership.members)
    assert len(membership._prober.order) <= len(membership.members)


def test_members_that_take_each_others_place_leave_the_probing_order_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 6)
    peer = Peer(record(0))
    for number in range(2, 10_002):
        now = number * 1e-6
        peer.hear(Ping(number, (record(1), record(number))), 1, now)
        peer.hear(Ping(number, (record(1), record(number, state=L))), 1, now)
        assert len(peer.membership._prober.order) <= 2 * len(peer.membership.members) + 1


def test_whole_view_travels_in_pages_that_fit_and_ask_for_one_answer() -> None:
    peer = Peer(record(0))
    for number in range(1, 100):
        peer.hear(Pong(0, (record(number),)), number, 0.0)
    pages = [e.message for e in peer.hear(PushPull(True, (record(1),)), 1, 5.0) if isinstance(e.message, PushPull)]
    assert len(pages) == 5 and not any(page.reply for page in pages)
    assert all(len(page.members) <= MAX_RECORDS and page.members[0].id == peer_id(0) for page in pages)
    assert {member.id for page in pages for member in page.members} | {peer_id(1)} == set(peer.membership.members)
    again = [e.message for e in peer.hear(PushPull(True, (record(1),)), 1, 5.1) if isinstance(e.message, PushPull)]
    assert len(again) == 1


def test_longest_names_and_addresses_still_fit_a_header() -> None:
    def wide(number: int) -> Member:
        return Member(
            peer_id(number), "\u00e9" * 48, "\U0001f310" * 60, 2**32 - 1, 2**32 - 1, State.ALIVE, 255, "s" * 16
        )

    peer = Peer(wide(0))
    peer.board.merge([Progress(peer_id(number), 2**63 - 1, 2**63 - 1, 2**63 - 1, 2**32 - 1) for number in range(9)])
    for number in range(1, 20):
        for envelope in peer.hear(PushPull(True, (wide(number),)), number, float(number)):
            message, _ = wire.decode(envelope.frames)
            assert message == envelope.message


def test_same_seed_same_inputs_same_bytes() -> None:
    def digest(seed: int) -> str:
        network = joined(6, LOCAL, seed=seed, loss=0.1)
        network.crash(5)
        network.run(8.0)
        network.start(5, [0], incarnation=2)
        network.run(4.0)
        return network.log.hexdigest()

    assert digest(1) == digest(1) != digest(2)


def test_quiet_network_costs_few_messages() -> None:
    network = joined(8, LAN)
    network.run(10.0)
    network.sent = 0
    network.run(60.0)
    assert network.sent / 8 / 60.0 < 3.0


def test_progress_rides_on_pings_until_all_have_the_networks_clock() -> None:
    network = joined(5, LAN)
    network.peers[3].board.report(clock=120, steps=120, samples=960, rounds=6)
    network.run(10.0, lambda: all(peer.board.clock() == 120 for peer in network.peers.values()))
    assert [peer.board.samples() for peer in network.peers.values()] == [960] * 5


def test_sender_of_an_outdated_record_is_given_the_newer_one() -> None:
    """A peer that missed a refutation must not fail a member that all others know alive."""
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2, refutation=4))), 1, 0.0)
    sent = peer.hear(Ping(2, (record(1), record(2, refutation=3, state=F))), 1, 0.1)
    corrections = [e.message for e in sent if isinstance(e.message, PushPull)]
    assert corrections == [PushPull(False, (record(0), record(2, refutation=4)))]
    assert peer.state_of(2) == State.ALIVE


def test_simultaneous_joiners_under_the_slowest_preset_all_know_each_other_soon() -> None:
    for seed in (5, 12):
        network = Network(WAN, seed=seed)
        for number in range(16):
            network.start(number, [0])
        assert network.run(30.0, network.agreed) < 15.0


@pytest.mark.parametrize("config", [LOCAL, LAN, WAN])
def test_presets_are_consistent(config: object) -> None:
    values = dataclasses.asdict(config)  # type: ignore[call-overload]
    assert all(math.isfinite(value) and value > 0 for value in values.values())
    assert 2 * values["probe_timeout"] <= values["probe_interval"]
    assert values["gossip_interval"] < values["probe_interval"] < values["push_pull_interval"]
    assert values["join_interval"] < values["join_longest"] <= 10.0
    assert values["suspicion_longest"] >= 1.0 and values["confirmations"] < MAX_ACCUSERS and values["lifeguard"]
    assert values["reconnect_interval"] <= 2 * values["probe_interval"]


def test_presets_are_named_and_frozen() -> None:
    assert PRESETS == {"local": LOCAL, "lan": LAN, "wan": WAN}
    with pytest.raises(dataclasses.FrozenInstanceError):
        LAN.probe_interval = 3.0  # type: ignore[misc]


@pytest.mark.parametrize("told", ["start", "addresses", "refutation"])
def test_starts_and_new_addresses_are_gossiped_three_times__what_ends_a_doubt_more_often(told: str) -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, tuple(record(number) for number in range(1, 9))), 1, 0.0)
    before = S if told == "refutation" else State.ALIVE
    if told != "start":
        peer.hear(Ping(2, (record(1), record(9, state=before, accusers=(1,) if before == S else ()))), 1, 0.0)
    peer.run_to(10.0)
    news = record(9, refutation=int(told != "start"))
    if told == "addresses":
        news = replace(news, others=("10.0.1.9:4710",))
    peer.hear(Ping(3, (record(1), news)), 1, 10.0)
    sent = [envelope.message for envelope in peer.run_to(40.0)]
    gossip = [message for message in sent if isinstance(message, Pong) and message.sequence == UNASKED]
    limit = transmit_limit(LAN.retransmit_multiplier, 10)
    assert sum(news in message.members for message in gossip) == (limit if told == "refutation" else PATIENT_TELLS)
