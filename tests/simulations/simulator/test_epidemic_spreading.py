"""`epidemic` in whole peers, rule by rule: the share of each, the samples counted, and when a peer gives no state."""

from __future__ import annotations

import pytest

from gossipdp.protocol.epidemic.events import EpochClosed
from gossipdp.protocol.events import IncrementPublished
from tests.simulations.simulator.epidemic_network import SPAN, STEP, Epidemics


def test_dead_peers_have_no_share():
    net = Epidemics(8, 3)
    net.form()
    net.run(3.0)
    net.crash(2)
    net.run(9.0)
    since = net.network.now
    net.run(8.0)
    told = net.of(IncrementPublished, since=since)
    assert sum(event.weight for event in told) / (8.0 / (SPAN * STEP)) == pytest.approx(1.0, abs=0.15)


def test_peer_that_never_trains_has_no_share():
    net = Epidemics(11, 3)
    net.form(2)
    net.start(2, train=False)
    net.run(9.0)
    assert net.up[2].peer.replica.ready
    since = net.network.now
    net.run(8.0)
    told = net.of(IncrementPublished, since=since)
    assert sum(event.weight for event in told) / (8.0 / (SPAN * STEP)) == pytest.approx(1.0, abs=0.15)


def test_samples_of_closed_epochs_equal_the_trained_samples():
    net = Epidemics(9, 2)
    net.form()
    net.run(4.0)
    since, before = net.network.now, net.up[0].peer.progress.samples()
    net.run(10 * SPAN * STEP)
    trained = net.up[0].peer.progress.samples() - before
    closed = sum(event.samples for event in net.of(EpochClosed, 0, since=since))
    assert closed == pytest.approx(trained, rel=0.1)


def test_state_that_is_about_to_be_replaced_is_not_given():
    net = Epidemics(10, 2)
    net.form()
    net.run(2.0)
    strategy, begun = net.up[0].peer.strategy, []
    while not strategy.hold(True, net.network.now):
        net.run(0.01)
    strategy.shared.freeze(lambda: bool(begun.append("state")))
    assert not begun
    strategy.hold(False, net.network.now)
    strategy.shared.freeze(lambda: bool(begun.append("state")))
    assert begun == ["state"]
