"""The furthest training process leaves, dies or stops. The network's clock goes on from where it stands (algorithms
section 1)."""

from __future__ import annotations

import pytest

from gossipdp.protocol.epidemic.events import EpochClosed
from gossipdp.protocol.events import IncrementPublished
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.network import Conditions
from tests.simulations.simulator.epidemic_network import SPAN, STEP, Epidemics

EPOCH = SPAN * STEP
"""seconds at the speed of the remaining peers"""
GONE = ["left", "crashed", "stands still"]
FOUND = {"left": 0.0, "crashed": 5.0, "stands still": 0.0}
"""seconds until the others know"""


def go(network, leader, how):
    if how == "left":
        network.command(leader, "leave", lambda peer: peer.leave(network.now))
    elif how == "crashed":
        network.stop(leader)
    else:
        leader.step_slowness = 1e9


@pytest.mark.parametrize("how", GONE)
def test_without_the_fastest_shares_sum_to_one_and_epochs_close(how):
    net = Epidemics(3, 4)
    net.form()
    leader = net.network.hosts[0]
    leader.step_slowness = 0.5
    net.run(15.0)
    ahead = min(leader.peer.replica.clock - host.peer.contribution.steps for host in net.up[1:])
    assert ahead > 10 * SPAN, "who stay are far behind"
    if how == "crashed":
        net.crash(0)
    else:
        go(net.network, leader, how)
    net.run(2.0)
    if how == "left":
        net.crash(0)
    net.run(FOUND[how])
    since = net.network.now
    net.run(8 * EPOCH)
    settled = net.network.now
    net.run(16 * EPOCH)
    told = [event.weight for n in (1, 2, 3) for event in net.of(IncrementPublished, n, settled)]
    # A peer that stands still may go on at any time, and keeps its share.
    share = 3 / 4 if how == "stands still" else 1
    assert sum(told) / 16 == pytest.approx(share, abs=0.1) and max(told) < 0.4
    for host in net.network.hosts[1:]:
        assert host.peer.replica.clock - host.peer.contribution.steps > 8 * SPAN
        assert len(net.of(EpochClosed, host.index, since)) >= 23


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
