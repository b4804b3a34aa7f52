"""Crashed members are failed within bounds, and slow or unreachable ones are not (SWIM 3.1 and 4.2)."""

import pytest

from gossipdp.protocol.membership.config import LAN, LOCAL, WAN, MembershipConfig
from gossipdp.protocol.wire.messages import State
from tests.protocol.membership.machines import Network, joined, peer_id


@pytest.mark.parametrize(("config", "bound"), [(LOCAL, 5.0), (LAN, 15.0), (WAN, 15.0)], ids=["local", "lan", "wan"])
@pytest.mark.parametrize("size", [2, 4, 16])
def test_crashed_peer_is_failed_everywhere_within_the_presets_bound(
    config: MembershipConfig, bound: float, size: int
) -> None:
    for seed in range(3):
        network = joined(size, config, seed=seed)
        network.run(seed * 0.37)
        network.crash(size - 1)
        took = network.run(bound, lambda: network.all_think(size - 1, State.FAILED))  # noqa: B023
        assert network.all_think(size - 1, State.FAILED), f"seed {seed}: {network.views(size - 1)} after {took:.1f} s"
        assert {name for _, name, _ in network.verdicts(State.FAILED)} == {f"p{size - 1}"}


def test_half_of_the_peers_crash_and_only_they_are_failed() -> None:
    network = joined(8, LOCAL)
    for number in range(4, 8):
        network.crash(number)
    network.run(12.0)
    assert all(network.all_think(number, State.FAILED) for number in range(4, 8))
    assert network.agreed() and {name for _, name, _ in network.verdicts(State.FAILED)} == {"p4", "p5", "p6", "p7"}


@pytest.mark.parametrize("seed", range(4))
def test_thirty_percent_loss_fails_no_member_in_a_minute(seed: int) -> None:
    network = joined(8, LAN, seed=seed)
    network.loss = 0.3
    network.run(60.0)
    assert network.verdicts(State.FAILED) == []
    network.loss = 0.0
    network.run(15.0, network.agreed)
    assert network.agreed()


def test_crash_under_thirty_percent_loss_is_still_found() -> None:
    network = joined(8, LAN, seed=5)
    network.loss = 0.3
    network.crash(3)
    network.run(20.0, lambda: network.all_think(3, State.FAILED))
    assert network.all_think(3, State.FAILED)


def test_member_that_one_peer_cannot_reach_is_vouched_for_by_indirect_probes() -> None:
    """SWIM 3.1: the indirect probe goes around a broken path."""
    network = joined(4, LAN)
    network.cut = lambda a, b: {a, b} == {0, 1}
    network.run(60.0)
    assert network.verdicts(State.SUSPECT) == [] and network.agreed()


def test_path_slower_than_the_timeout_is_learned_and_no_member_fails() -> None:
    network = Network(LAN, delay=(0.7, 0.9))
    for number in range(4):
        network.start(number, [0])
    network.run(120.0)
    assert network.verdicts(State.FAILED) == []
    rtt = network.peers[0].membership.rtt(peer_id(1))
    assert rtt is not None and 1.4 <= rtt <= 1.8
    late = [at for at, _, _ in network.verdicts(State.SUSPECT) if at > 60.0]
    assert late == []


def test_starved_peer_blames_itself_and_fails_no_member() -> None:
    """Lifeguard I: a peer that did not run must not accuse those it did not hear."""
    network = joined(8, LAN, seed=2)
    network.pause(3, 30.0)
    network.run(29.9)
    assert network.all_think(3, State.FAILED)
    network.run(0.2)
    assert network.peers[3].membership.health.multiplier > 1
    network.run(4.0, network.agreed)
    assert network.agreed()
    assert {name for _, name, by in network.verdicts(State.SUSPECT) + network.verdicts(State.FAILED)} == {"p3"}
