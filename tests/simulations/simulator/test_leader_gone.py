"""The furthest training process leaves, dies or stops. The network's clock goes on from where it stands (algorithms
section 1)."""

from __future__ import annotations

import pytest

from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.network import Conditions

GONE = ["left", "crashed", "stands still"]


def go(network, leader, how):
    if how == "left":
        network.command(leader, "leave", lambda peer: peer.leave(network.now))
    elif how == "crashed":
        network.stop(leader)
    else:
        leader.step_slowness = 1e9


@pytest.mark.parametrize("how", GONE)
def test_without_the_fastest_the_clock_goes_on_within_a_few_rounds(how):
    every, step = 4, 0.2
    cluster = Cluster(2, Plan(peers=4, size=300, conditions=Conditions(), every=every, window=2, step_time=step))
    for host in cluster.network.hosts:
        cluster.network.at(0.1 * host.index, "start", None, lambda host=host: cluster.restart(host))
    cluster.network.run(10.0)
    leader, *others = cluster.network.hosts
    leader.step_slowness = 0.5
    cluster.network.run(40.0)
    stood = leader.running.replica.clock
    if how == "crashed":
        cluster.stop(leader)
    else:
        go(cluster.network, leader, how)
    cluster.network.run(40.0 + 6 * every * step)
    clock = others[0].running.replica.clock
    assert clock > stood and others[0].running.contribution.steps < stood / 1.5
    cluster.network.run(60.0 + 6 * every * step)
    gained = others[0].running.replica.clock - clock
    assert gained == pytest.approx(20.0 / step, abs=2 * every), "by the steps of the fastest who is left"
    assert (
        max(host.running.replica.clock for host in others) - min(host.running.replica.clock for host in others) <= every
    )
