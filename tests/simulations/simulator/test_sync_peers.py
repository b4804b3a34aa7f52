"""Peers that wait for their partners (`mode = "sync"`), also without partners to wait for."""

from dataclasses import replace

import pytest

from gossipdp.protocol.events import RoundDone, RoundSettled
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.network import Conditions


class Synchronous(Cluster):
    def __init__(self, peers: int) -> None:
        super().__init__(5, Plan(peers=peers, size=8192 + 300, conditions=Conditions(), every=8, window=2))
        self.heard: list[tuple[float, type]] = []
        self.listeners.append(
            lambda host, event: self.heard.append((self.network.now, type(event))) if host.index == 0 else None
        )
        for host in self.network.hosts:
            self.network.at(min(host.index, 1.0), "start", None, lambda host=host: self.restart(host))
        self.network.run(20.0)

    def _config(self):
        return replace(super()._config(), sync=True)

    def lose(self, host) -> None:
        self.crash(host, trainer=True, disk=True, torn=False)
        self.network.run(self.network.now + 10.0)

    def rounds(self, seconds: float) -> tuple[int, int]:
        """Rounds of the first peer from now on: made, and settled."""
        since = self.network.now
        self.network.run(since + seconds)
        kinds = [kind for at, kind in self.heard if at >= since]
        return kinds.count(RoundDone), kinds.count(RoundSettled)


def test_lone_peer_waits_for_no_partner() -> None:
    net = Synchronous(2)
    net.lose(net.network.hosts[1])
    made, settled = net.rounds(20.0)
    assert made >= 10 and settled >= made - 1


def test_chunk_in_doubt_of_a_departed_partner_delays_no_round() -> None:
    net = Synchronous(4)
    first = net.network.hosts[0]
    for _ in range(4000):
        net.network.run(net.network.now + 0.005)
        averaging = first.peer._replica.averaging
        partner, doubt = (
            averaging.partner,
            averaging._active and averaging._active.initiator and averaging._active.in_doubt,
        )
        if partner is not None and doubt:
            break
    else:
        pytest.fail("no chunk was ever in doubt")
    net.lose(next(host for host in net.network.hosts if host.id == partner))
    assert averaging.in_doubt
    made, settled = net.rounds(20.0)
    assert made >= 10 and settled >= made - 2
