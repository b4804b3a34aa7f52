"""How peers find each other: seeds, remembered members and islands."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from gossipdp.protocol.events import Joined
from gossipdp.protocol.membership.config import LAN
from gossipdp.protocol.wire.messages import Pong, PushPull, State
from tests.protocol.membership.machines import Network, Peer, peer_id, record


@pytest.mark.parametrize("size", [2, 3, 5, 8, 16])
def test_strangers_with_one_seed_in_common_find_each_other_within_two_seconds(size: int) -> None:
    network = Network(LAN, seed=size)
    for number in range(size):
        network.start(number, [0])
    took = network.run(10.0, network.agreed)
    assert network.agreed() and took < 2.0
    network.run(20.0)
    for peer in network.peers.values():
        assert [type(event) for _, event in peer.events].count(Joined) == 1
    assert not network.verdicts(State.SUSPECT)


def test_a_seed_is_dialled_for_ever_quickly_at_first_and_every_ten_seconds_later() -> None:
    peer = Peer(record(1))
    peer.membership.join(["10.0.0.9:4710"], 0.0)
    dials = [0.0] * len(peer.sent())
    while (due := peer.membership.timer()) is not None and due < 600.0:
        peer.membership.handle_timer(due)
        for envelope in peer.sent():
            assert (envelope.to, envelope.address) == (b"", "10.0.0.9:4710")
            assert isinstance(envelope.message, PushPull) and envelope.message.reply
            dials.append(due)
    pauses = [later - earlier for earlier, later in pairwise(dials)]
    assert pauses[0] <= 0.5 and max(pauses) <= LAN.join_longest and min(pauses[6:]) >= 7.5 and len(dials) > 55


def test_a_seed_that_nobody_is_known_at_is_dialled_soon_again_and_then_every_minute() -> None:
    """Where first dials are lost, some join by one seed and others by another: they need not wait a minute."""
    peer = Peer(record(1))
    peer.membership.join(["10.0.0.9:4710"], 0.0)
    peer.hear(Pong(0, (record(2),)), 2, 0.2)
    dials = [0.0]
    while (due := peer.membership.timer()) is not None and due < 400.0:
        peer.hear(Pong(0, (record(2),)), 2, due)
        peer.membership.handle_timer(due)
        dials += [due for envelope in peer.sent() if envelope.address == "10.0.0.9:4710"]
    pauses = [later - earlier for earlier, later in pairwise(dials)]
    assert sum(pauses[:4]) < 10.0 and max(pauses) <= 60.0 and min(pauses[7:]) >= 45.0


def test_one_live_seed_among_dead_ones_is_enough_even_if_it_starts_late() -> None:
    network = Network(LAN)
    network.start(1, [7, 8, 0])
    network.run(45.0)
    network.start(0)
    assert network.run(15.0, network.agreed) <= 11.0 and network.agreed()


def test_members_remembered_from_disk_serve_as_seeds_and_are_believed_only_when_they_answer() -> None:
    network = Network(LAN)
    network.start(0)
    peer = network.peers[1] = Peer(record(1), LAN)
    network._numbers[peer_id(1)] = 1
    network._armed[1] = None
    peer.membership.remember([record(1), record(9), record(0)], {})
    assert list(peer.membership.members) == [peer_id(1)]
    peer.membership.join([], 0.0)
    network._drain(1)
    assert network.run(5.0, network.agreed) < 1.0 and network.agreed()
    assert peer_id(9) not in peer.membership.members and peer.membership.address_of(peer_id(9)) == "10.0.0.9:4710"


def test_seeds_nobody_is_known_at_join_two_islands_that_started_apart() -> None:
    network = Network(LAN)
    network.cut = lambda a, b: {a, b} == {0, 1}
    network.start(0, [1])
    network.start(1, [0])
    network.start(2, [0])
    network.start(3, [1])
    network.run(30.0)
    assert set(network.peers[0].membership.members) == {peer_id(0), peer_id(2)}
    network.cut = lambda a, b: False
    network.run(120.0, network.agreed)
    assert network.agreed()


def test_peer_behind_a_nat_that_hears_of_nobody_but_others_behind_one_dials_its_seeds_again() -> None:
    peer = Peer(replace(record(1), address=""), LAN)
    peer.membership.join([record(2).address], 0.0)
    behind = replace(record(3), address="")
    peer.hear(PushPull(False, (record(2), behind)), 2, 0.1)
    peer.run_to(0.2)
    peer.hear(PushPull(False, (record(2, state=State.LEFT), behind)), 2, 0.2)
    dialled = [message.address for message in peer.run_to(0.2 + 2 * LAN.join_interval)]
    assert record(2).address in dialled and peer.state_of(3) == State.ALIVE


def test_own_address_among_the_seeds_is_not_dialled() -> None:
    peer = Peer(record(1))
    peer.membership.join([record(1).address], 0.0)
    assert peer.sent() == []


def test_further_address_of_a_known_member_among_the_seeds_is_not_dialled() -> None:
    peer = Peer(record(1))
    known = replace(record(2), others=("10.9.9.9:4710",))
    peer.membership.join(["10.9.9.9:4710"], 0.0)
    assert [message.address for message in peer.outputs.messages] == ["10.9.9.9:4710"]
    peer.outputs.messages.clear()
    peer.hear(PushPull(False, (known,)), 2, 0.1)
    assert "10.9.9.9:4710" not in [message.address for message in peer.run_to(3.0)]
