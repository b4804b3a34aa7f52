"""Members that leave, and members that come back after a cut, a crash or a pause (I8)."""

from dataclasses import replace as derive

import pytest

from gossipdp.protocol.events import MemberChanged
from gossipdp.protocol.membership.config import LAN, LOCAL
from gossipdp.protocol.wire.messages import Ping, PushPull, State
from tests.protocol.membership.machines import Network, Peer, joined, peer_id, record

# -- leaving -----------------------------------------------------------------------------------------------------


def test_leaving_peer_is_left_everywhere_and_never_suspected() -> None:
    for size in (2, 5, 16):
        network = joined(size, LAN, seed=size)
        network.leave(1)
        network.run(0.1)
        gone = network.crash(1)
        network.run(3.0, lambda: network.all_think(1, State.LEFT))  # noqa: B023
        assert network.all_think(1, State.LEFT)
        network.run(30.0)
        assert network.all_think(1, State.LEFT) and gone.membership.me.state == State.LEFT
        assert not network.verdicts(State.SUSPECT) and not network.verdicts(State.FAILED)


def test_left_member_is_neither_dialled_nor_kept_for_ever() -> None:
    network = joined(3, derive(LOCAL, forget_after=60.0))
    network.leave(2)
    network.run(1.0)
    network.crash(2)
    watched = network.peers[0]
    network.run(40.0)
    assert watched.state_of(2) == State.LEFT
    network._numbers.pop(peer_id(2))
    network.run(60.0)
    assert all(peer_id(2) not in peer.membership.members for peer in network.peers.values())
    network.run(60.0)
    assert all(peer_id(2) not in peer.membership.members for peer in network.peers.values())


def test_leaving_peer_stops_asking_for_timers_once_its_goodbye_is_spread() -> None:
    peer = Peer(record(0))
    peer.hear(Ping(1, (record(1),)), 1, 0.0)
    peer.membership.leave(0.5)
    goodbyes = peer.sent()
    assert [envelope.to for envelope in goodbyes] == [peer_id(1)]
    assert goodbyes[0].message.members[0].state == State.LEFT  # type: ignore[attr-defined]
    peer.run_to(30.0)
    assert peer.membership.timer() is None


def test_peer_that_left_while_it_dialled_tells_the_member_that_answers() -> None:
    peer, seed = Peer(record(0)), Peer(record(1))
    peer.membership.join([record(1).address], 0.0)
    [hello] = peer.sent()
    peer.membership.leave(0.1)
    assert peer.sent() == []
    answers = [envelope for envelope in seed.hear(hello.message, 0, 0.2) if envelope.to == peer_id(0)]
    assert answers and seed.state_of(0) == State.ALIVE
    for envelope in [e for answer in answers for e in peer.hear(answer.message, 1, 0.3)]:
        seed.hear(envelope.message, 0, 0.4)
    assert seed.state_of(0) == State.LEFT


def test_leaving_peer_told_that_it_is_suspect_does_not_refute() -> None:
    peer = Peer(record(0))
    peer.membership.leave(0.0)
    peer.hear(Ping(1, (record(1), record(0, refutation=5, state=State.SUSPECT))), 1, 0.1)
    assert (peer.membership.me.state, peer.membership.me.refutation) == (State.LEFT, 1)


# -- coming back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "minority"), [(2, 1), (4, 2), (8, 4), (10, 1), (16, 8)])
def test_healed_partition_has_all_alive_again_within_two_probe_periods(size: int, minority: int) -> None:
    """I8."""
    for seed in range(2):
        network = joined(size, LAN, seed=seed)
        network.cut = lambda a, b: (a < minority) != (b < minority)

        def parted(minority: int = minority, network: Network = network) -> bool:
            return all(
                peer.state_of(other) == State.FAILED
                for number, peer in network.peers.items()
                for other in network.peers
                if (number < minority) != (other < minority)
            )

        network.run(120.0, parted)
        assert parted()
        network.run(5.0)
        network.cut = lambda a, b: False
        took = network.run(10.0, network.agreed)
        assert network.agreed() and took <= 2.0 * LAN.probe_interval, f"seed {seed}: {took:.1f} s"
        network.run(20.0)
        assert network.agreed()


def test_isolated_peer_comes_back_after_being_failed_by_all() -> None:
    network = joined(5, LOCAL, seed=1)
    network.cut = lambda a, b: 4 in (a, b)
    network.run(10.0)
    assert network.all_think(4, State.FAILED) and len(network.peers[4].membership.alive()) == 0
    network.cut = lambda a, b: False
    assert network.run(5.0, network.agreed) <= 2.0 * LOCAL.probe_interval


def test_sides_that_have_forgotten_each_other_meet_though_the_seed_of_all_is_gone() -> None:
    network = joined(6, derive(LOCAL, forget_after=30.0))
    network.cut = lambda a, b: (a < 3) != (b < 3)
    network.run(60.0)
    assert all(len(peer.membership.members) == 3 for peer in network.peers.values())
    network.crash(0)
    network.cut = lambda a, b: False
    network.run(180.0, network.agreed)
    assert network.agreed()


def test_flapping_link_leaves_no_scar() -> None:
    network = joined(6, LAN, seed=3)
    for turn in range(12):
        network.cut = (lambda a, b: (a < 3) != (b < 3)) if turn % 2 else (lambda a, b: False)
        network.run(4.0)
    network.cut = lambda a, b: False
    network.run(10.0, network.agreed)
    assert network.agreed()


def test_restart_with_a_higher_incarnation_goes_from_failed_to_alive_at_once() -> None:
    network = joined(4, LOCAL)
    network.crash(2)
    network.run(6.0)
    assert network.all_think(2, State.FAILED)
    network.start(2, [0], incarnation=2)
    assert network.run(3.0, network.agreed) < 1.5
    for number in (0, 1, 3):
        assert network.peers[number].membership.members[peer_id(2)].incarnation == 2
        changes = [event for _, event in network.peers[number].events if isinstance(event, MemberChanged)]
        last = [change for change in changes if change.member.id == peer_id(2)][-1]
        assert (last.before, last.member.state) == (State.FAILED, State.ALIVE)


def test_restart_quicker_than_detection_is_an_event_of_its_own() -> None:
    network = joined(3, LAN)
    network.crash(1)
    network.start(1, [0], incarnation=2)
    network.run(1.0)
    changes = [event for _, event in network.peers[0].events if isinstance(event, MemberChanged)]
    assert (changes[-1].before, changes[-1].member.incarnation) == (State.ALIVE, 2)
    network.run(20.0)
    assert network.agreed() and not network.verdicts(State.FAILED)


def test_old_gossip_resurrects_no_member() -> None:
    """I8: whatever was said of a member before it failed changes nothing when said again."""
    network = joined(4, LOCAL)
    network.crash(3)
    network.run(6.0)
    before = record(3)
    for number in (0, 1, 2):
        peer = network.peers[number]
        for message in (Ping(9, (record(1), before)), PushPull(False, (record(1), before))):
            peer.membership.receive(message, peer_id(1 if number != 1 else 0), network.now)
        assert peer.state_of(3) == State.FAILED
    network.run(30.0)
    assert network.all_think(3, State.FAILED)


def test_peer_frozen_during_a_failure_does_not_bring_the_dead_back() -> None:
    network = joined(5, LOCAL)
    network.crash(4)
    network.pause(0, 10.0)
    network.run(9.0)
    assert all(network.peers[number].state_of(4) == State.FAILED for number in (1, 2, 3))
    marks = {number: len(network.peers[number].events) for number in (1, 2, 3)}
    network.run(25.0)
    assert network.all_think(4, State.FAILED)
    for number, mark in marks.items():
        later = [event for _, event in network.peers[number].events[mark:] if isinstance(event, MemberChanged)]
        assert not [event for event in later if event.member.id == peer_id(4)]
