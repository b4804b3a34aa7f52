"""`epidemic`: what increments cost, and what stays bounded."""

from __future__ import annotations

from collections import Counter

import pytest

from gossipdp.protocol.events import (
    IncrementApplied,
)
from gossipdp.protocol.wire.epidemic_messages import RumourPart
from simulations.simulator.bounds import containers
from tests.simulations.simulator.epidemic_network import Epidemics


def test_payload_crosses_about_one_link_per_peer():
    net = Epidemics(13, 6)
    net.form()
    net.run(12.0)
    counts = sum(
        (host.peer.strategy._broadcast.counts for host in net.up),
        start=type(net.up[0].peer.strategy._broadcast.counts)(),
    )
    came = counts["payload"] + counts["repeated"] + counts["unasked"]
    assert came / counts["payload"] < 1.5


def test_increments_cost_each_receiver_the_stated_bytes():
    """Algorithms section 9, 15: 0.0283 bytes a parameter and contributor with topk64, four times that with topk256.
    Counted are whole frames on arrival. Other traffic does not grow with the model."""
    net = Epidemics(5, 3, chunks=4, buffers=0)
    net.form()
    net.run(6.0)
    assert all(host.peer.replica.clock > 2 * net.up[0].peer.config.strategy.whole_until for host in net.up)
    arrived, deliver = Counter(), net.network._deliver

    def counted(sender, target, frames, message):
        if isinstance(message, RumourPart):
            arrived[target.index] += sum(map(len, frames))
        deliver(sender, target, frames, message)

    net.network._deliver = counted
    since = net.network.now
    net.run(12.0)
    taken = [
        event for host in net.up for event in net.of(IncrementApplied, host.index, since) if event.origin != host.id
    ]
    assert len(taken) > 60
    assert arrived.total() / (len(taken) * net.schema.size) == pytest.approx(4 * 0.0283, rel=0.05)


def test_no_container_grows_with_history():
    net = Epidemics(19, 3, chunks=1)
    net.form()
    net.run(60.0)
    for host in net.up:
        held = dict(containers(host.peer.strategy))
        assert max(held.values()) <= 80, held
    assert len(net.of(IncrementApplied)) > 300
