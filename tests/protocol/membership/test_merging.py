"""One machine: which records it believes, refutes and answers (SWIM 4.2)."""

import pytest
from msgspec.structs import replace

from gossipdp.protocol.events import Joined, MemberChanged, Notice
from gossipdp.protocol.membership.config import LAN
from gossipdp.protocol.wire.messages import Member, Ping, Pong, PushPull, State
from tests.protocol.membership.machines import A, F, L, Network, Peer, S, peer_id, record


@pytest.mark.parametrize(
    ("known", "told", "believed"),
    [
        ((1, 0, A), (1, 0, S), (1, 0, S)),
        ((1, 0, A), (1, 0, F), (1, 0, F)),
        ((1, 0, S), (1, 0, F), (1, 0, F)),
        ((1, 0, F), (1, 0, L), (1, 0, L)),
        ((1, 0, S), (1, 0, A), (1, 0, S)),
        ((1, 0, F), (1, 0, S), (1, 0, F)),
        ((1, 0, F), (1, 0, A), (1, 0, F)),
        ((1, 0, L), (1, 0, F), (1, 0, L)),
        ((1, 0, F), (1, 1, A), (1, 1, A)),
        ((1, 0, S), (1, 1, A), (1, 1, A)),
        ((1, 3, L), (2, 0, A), (2, 0, A)),
        ((1, 9, A), (2, 0, S), (2, 0, S)),
        ((2, 0, A), (1, 9, F), (2, 0, A)),
        ((2, 2, S), (2, 1, A), (2, 2, S)),
        ((1, 0, A), (1, 1, L), (1, 1, L)),
    ],
)
def test_record_of_another_overrides_by_pair_then_by_state(
    known: tuple[int, int, State], told: tuple[int, int, State], believed: tuple[int, int, State]
) -> None:
    def made(row: tuple[int, int, State]) -> Member:
        return record(5, incarnation=row[0], refutation=row[1], state=row[2])

    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), made(known))), 1, 0.0)
    peer.hear(Ping(2, (record(1), made(told))), 1, 0.1)
    assert peer.membership.members[peer_id(5)] == made(believed)


@pytest.mark.parametrize(
    ("told", "refutation"),
    [((1, 2, S), 3), ((1, 2, F), 3), ((1, 2, L), 3), ((1, 7, S), 8), ((1, 2, A), 2), ((1, 1, F), 2), ((0, 9, F), 2)],
)
def test_record_of_myself_is_refuted_if_it_is_not_older_and_not_good(
    told: tuple[int, int, State], refutation: int
) -> None:
    peer = Peer(record(0, refutation=2))
    rumour = record(0, incarnation=told[0], refutation=told[1], state=told[2])
    answers = peer.hear(Ping(1, (record(1), rumour)), 1, 0.0)
    me = peer.membership.me
    assert (me.incarnation, me.refutation, me.state) == (1, refutation, State.ALIVE)
    assert peer.membership.members[me.id] is me
    assert all(envelope.message.members[0] == me for envelope in answers)  # type: ignore[attr-defined]
    assert peer.membership.health.multiplier == (2 if refutation != 2 else 1)


def test_higher_incarnation_of_myself_is_told_once_and_not_adopted() -> None:
    peer = Peer(record(0, incarnation=3))
    clone = replace(record(0, incarnation=4), address="192.0.2.1:4710")
    for sequence in range(3):
        peer.hear(Ping(sequence, (record(1), clone)), 1, float(sequence))
    notices = [event for event in peer.news() if isinstance(event, Notice)]
    assert [notice.code for notice in notices] == ["GD-205"] and "192.0.2.1:4710" in notices[0].text
    assert peer.membership.me.incarnation == 3


@pytest.mark.parametrize(("address", "refutation"), [("10.0.0.9:4710", 1), ("1.0.0.1:4710", 0)])
def test_same_pair_at_another_address_is_a_clone_too(address: str, refutation: int) -> None:
    """Refuted if others would believe it."""
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), replace(record(0), address=address))), 1, 0.0)
    assert [event.code for event in peer.news() if isinstance(event, Notice)] == ["GD-205"]
    assert peer.membership.me == record(0, refutation=refutation)


@pytest.mark.parametrize("incarnation", [2, 3, 4])
def test_where_its_own_identity_is_said_to_be_live_it_asks__once_a_minute(incarnation: int) -> None:
    peer = Peer(record(0, incarnation=3))
    clone = replace(record(0, incarnation=incarnation), address="1.0.0.1:4710")

    def asked(now: float) -> list[str]:
        said = peer.hear(Ping(int(now), (record(1), clone)), 1, now)
        return [envelope.address for envelope in said if isinstance(envelope.message, PushPull) and not envelope.to]

    assert [asked(now) for now in (0.0, 30.0, 61.0)] == [["1.0.0.1:4710"], [], ["1.0.0.1:4710"]]


def test_no_copy_is_sought_at_a_former_own_address_nor_at_an_outbound_only_peer() -> None:
    peer = Peer(record(0))
    peer.membership.advertise(["192.0.2.7:4710"], 0.0)
    for rumour in (record(0), replace(record(0, incarnation=2), address="")):
        said = peer.hear(Ping(1, (record(1), rumour)), 1, 1.0)
        assert not any(isinstance(envelope.message, PushPull) and not envelope.to for envelope in said)


def test_copies_that_cannot_ask_each_other_refute_each_other_now_and_then_only() -> None:
    peer = Peer(record(0))
    for turn in range(100):
        refutation = peer.membership.me.refutation
        rumour = replace(record(0, refutation=refutation + 1), address="192.0.2.1:4710")
        peer.hear(Ping(turn, (record(1), rumour)), 1, 0.1 * turn)
    assert 4 <= peer.membership.me.refutation <= 6


def test_copies_are_sought_at_eight_addresses_a_minute_at_most() -> None:
    peer, asked = Peer(record(0, incarnation=3)), []
    for turn in range(100):
        clone = replace(record(0, incarnation=2), address=f"1.0.0.{turn}:4710")
        said = peer.hear(Ping(turn, (record(1), clone)), 1, 0.1 * turn)
        asked += [each.address for each in said if isinstance(each.message, PushPull) and not each.to]
    assert asked == [f"1.0.0.{turn}:4710" for turn in range(8)]


@pytest.mark.parametrize(
    ("incarnation", "address", "told"), [(2, "10.0.0.9:4710", True), (2, "10.0.0.5:4710", False), (2, "", True)]
)
def test_member_restarted_at_another_address_is_told_the_former_one(incarnation: int, address: str, told: bool) -> None:
    """A copy of a live peer looks so: it asks there, and meets the first."""
    hub = Peer(record(0))
    hub.hear(Ping(1, (record(5),)), 5, 0.0)
    again = replace(record(5, incarnation=incarnation), address=address)
    said = [each.message for each in hub.hear(Ping(2, (again,)), 5, 1.0) if isinstance(each.message, PushPull)]
    assert [record(5) in message.members for message in said] == [True] * told
    assert hub.membership.members[peer_id(5)] == again


def test_two_daemons_of_one_identity_and_start_that_met_others__hear_of_each_other() -> None:
    """As hosts of one machine image that boot together: each is linked where the other is not."""
    network = Network(LAN)
    hub = network.start(1)
    network.start(2, [1])
    network.run(10.0)
    first, second = record(5), replace(record(5), address="10.0.0.6:4710")
    hub.hear(Ping(1, (first,)), 5, network.now)
    network.peers[2].hear(Ping(1, (second,)), 5, network.now)
    network.run(2.0)
    assert [network.peers[number].membership.members[first.id].address for number in (1, 2)] == [second.address] * 2
    said = [envelope.message for envelope in hub.hear(Ping(2, (first,)), 5, network.now)]
    told = [member for message in said for member in message.members]  # type: ignore[attr-defined]
    assert (first.id, second.address) in [(member.id, member.address) for member in told]


def test_whole_view_that_says_failed_makes_suspect_and_asks_the_member_itself() -> None:
    """As memberlist: a view may come from across a healed partition; only gossip of a verdict is a verdict."""
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2))), 1, 0.0)
    sent = peer.hear(PushPull(False, (record(1), record(2, state=F))), 1, 0.1)
    assert peer.state_of(2) == State.SUSPECT
    asked = [envelope.message for envelope in sent if envelope.to == peer_id(2)]
    assert len(asked) == 1 and isinstance(asked[0], Ping) and record(2, state=S, accusers=(1,)) in asked[0].members


def test_ping_of_a_member_thought_failed_is_answered_with_the_verdict() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2, state=F))), 1, 0.0)
    sent = peer.hear(Ping(7, (record(2),)), 2, 1.0)
    pong = next(envelope.message for envelope in sent if isinstance(envelope.message, Pong))
    assert pong.sequence == 7 and record(2, state=F) in pong.members and peer.state_of(2) == State.FAILED
    peer.hear(Pong(0, (record(2, refutation=1),)), 2, 1.1)
    assert peer.state_of(2) == State.ALIVE


def test_any_message_of_a_suspect_makes_it_be_told_at_most_once_per_probe_timeout() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1), record(2, state=S))), 1, 0.0)
    for tick in range(20):
        peer.membership.contact(peer_id(2), 1.0 + tick * 0.05)
    told = [envelope for envelope in peer.sent() if envelope.to == peer_id(2)]
    assert len(told) == 2 and all(record(2, state=S) in envelope.message.members for envelope in told)  # type: ignore[attr-defined]
    assert peer.state_of(2) == State.SUSPECT


def test_ping_of_a_stranger_is_answered_and_teaches_its_record() -> None:
    peer = Peer(record(0))
    sent = peer.hear(Ping(3), 1, 0.0)
    assert [(envelope.to, type(envelope.message)) for envelope in sent] == [(peer_id(1), Pong)]
    assert sent[0].message.members == (record(0),)  # type: ignore[attr-defined]
    assert list(peer.membership.members) == [peer_id(0)]
    peer.hear(Ping(4, (record(1),)), 1, 0.1)
    assert peer.state_of(1) == State.ALIVE
    assert [type(event) for event in peer.news()] == [MemberChanged, Joined]


def test_message_under_my_own_id_changes_nothing() -> None:
    peer = Peer(record(0))
    assert peer.hear(Ping(1, (record(5),)), 0, 0.0) == [] and list(peer.membership.members) == [peer_id(0)]
