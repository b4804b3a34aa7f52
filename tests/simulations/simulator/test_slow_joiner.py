"""A joiner on a slow link: the fetched state is many rounds old on arrival, and the joiner still catches up."""

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest

from gossipdp.protocol.events import ExchangeEnded, ResyncBegan, StateJudged, StateReady
from simulations.simulator.cluster import Cluster, Plan
from simulations.simulator.faults import FOREVER, Fault
from simulations.simulator.network import Conditions

COMES, RELIEVED = 10.0, 75.0
PLAN = Plan(
    peers=5,
    size=8192 * 16,
    conditions=Conditions(),
    every=4,
    window=4,
    forming=4.0,
    chaos=80.0,
    calm=0.0,
    script=(Fault(at=COMES, kind="join", hosts=(4,), lasts=FOREVER),),
)


class Late(Cluster):
    """The last host comes late. Its link takes `seconds` for the state of 2 bytes a parameter, until `relieved`."""

    def __init__(self, seed, seconds, *, plan=PLAN, relieved=RELIEVED):
        super().__init__(seed, plan)
        self.joiner = self.network.hosts[-1]
        self.joiner.downlink = 2 * plan.size / seconds
        self.network.at(relieved, "relief", None, lambda: setattr(self.joiner, "downlink", None))
        self.ready, self.judged, self.resyncs, self.mixed, self.off = [], [], [], [], {}

    def _heard(self, host, event):
        super()._heard(host, event)
        if host is self.joiner and isinstance(event, StateReady):
            others = [other.peer.view.model_rounds for other in self.network.hosts[:-1]]
            self.ready.append((self.network.now, max(others) - host.peer.view.model_rounds))
            for after in (0.0, 40.0):
                self.network.at(self.network.now + after, "look", None, lambda after=after: self._look(after))
        if host is self.joiner and isinstance(event, StateJudged):
            self.judged.append(event)
        if host is self.joiner and isinstance(event, ResyncBegan):
            self.resyncs.append(self.network.now)
        if host is self.joiner and isinstance(event, ExchangeEnded) and self.joiner.downlink is not None:
            self.mixed.append(event.chunks)

    def _look(self, after):
        """Root mean square distance of each anchor to the mean of the others."""
        anchors = np.array([host.algorithm.ledger.a for host in self.network.hosts], np.float64)
        rest = (anchors.sum(axis=0) - anchors) / (len(anchors) - 1)
        self.off[after] = [float(np.sqrt(np.mean((a - b) ** 2))) for a, b in zip(anchors, rest, strict=True)]


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_joiner_whose_transfer_lasts_many_rounds_ends_up_in_step(seed):
    cluster = Late(seed, seconds=10.0)
    cluster.run()
    [(at, behind)] = cluster.ready
    assert 10.0 < at - COMES < 16.0 and behind > 8, "once, many rounds late, and without fetching twice"
    assert [judged.plausible for judged in cluster.judged] == [True] and cluster.judged[0].witness
    before, after = cluster.off[0.0], cluster.off[40.0]
    assert before[-1] > 1.5 * max(before[:-1]), "behind when the model has come"
    assert after[-1] < 1.8 * max(after[:-1]), "and among the others soon after"


@pytest.mark.parametrize(("seed", "chunk"), [(2, 1.6), pytest.param(1, 3.2, marks=pytest.mark.long)])
def test_joiner_on_a_link_where_a_chunk_of_16_bits_outlasts_a_round_mixes_and_stays_in_step(seed, chunk):
    plan = replace(PLAN, peers=4, size=8192 * 6, chaos=85.0, script=(replace(PLAN.script[0], hosts=(3,)),))
    cluster = Late(seed, seconds=6 * chunk, plan=plan, relieved=plan.forming + plan.chaos - 5.0)
    cluster.run()
    assert not cluster.resyncs and len(cluster.ready) == 1
    in_vain = max((len(list(run)) for some, run in groupby(map(bool, cluster.mixed)) if not some), default=0)
    assert sum(cluster.mixed) > 10 and in_vain <= 3
    after = cluster.off[40.0]
    assert after[-1] < 1.8 * max(after[:-1]), "and among the others soon after"
