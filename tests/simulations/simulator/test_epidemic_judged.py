"""`epidemic` with a robust rule: whole peers that judge all increments of an epoch once it has settled."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from gossipdp.protocol.epidemic.epidemic import EpidemicConfig
from gossipdp.protocol.events import EpochDiverged, EpochFingerprinted, EpochJudged, ResyncEnded, StateJudged
from gossipdp.protocol.presets import SIMULATED
from simulations.simulator.network import Conditions
from tests.simulations.simulator.epidemic_network import SETTINGS, SPAN, Epidemics

LOSSY = Conditions(latency=0.03, jitter=0.05, loss=0.05, job=0.002)


def judged(seed, peers, rule="nnm-trimmed", **changes):
    broadcast = replace(SIMULATED.broadcast, run=SETTINGS, span=SPAN)
    strategy = EpidemicConfig(broadcast=broadcast, lr=1.0, rule=rule)
    return Epidemics(seed, peers, strategy=strategy, warmup_steps=0, **changes)


def shared(net):
    """The shared part of each running peer's state: its anchor without its lead."""
    for host in net.up:
        for chunk in range(host.algorithm.ledger.chunks):
            host.algorithm.ledger.digest(chunk)
    return [host.algorithm.ledger.fixed * 2.0**-32 for host in net.up]


def fingerprints_agree(net):
    told = defaultdict(set)
    for event in net.of(EpochFingerprinted):
        told[event.epoch].add(event.fingerprint)
    assert len(told) >= 5 and all(len(values) == 1 for values in told.values())


@pytest.mark.long
def test_replicas_with_judged_epochs_are_the_same_bits_and_learn():
    net = judged(1, 5)
    net.form()
    net.run(50.0)
    for host in net.up:
        told = net.of(EpochJudged, host.index)
        assert len(told) >= 40 and all(event.counted == event.contributors for event in told)
        assert sum(event.contributors == 5 for event in told) >= 30
    fingerprints_agree(net)
    net.finish()
    net.agree()
    for anchor in shared(net):
        assert np.median(np.abs(anchor - net.trainers[0].optimum)) < 0.25


@pytest.mark.parametrize("lossy", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_joiner_judges_increments_that_its_state_lacks(seed, lossy):
    """The joiner asks for the payloads that had reached its source. Nothing settles before they arrive."""
    net = judged(seed, 6, conditions=LOSSY if lossy else None)
    net.form(4)
    net.run(10.0)
    for index in (4, 5):
        net.start(index)
        net.run(7.0)
    net.until_ready()
    net.crash(1)
    net.run(6.0)
    net.start(1)
    net.until_ready()
    net.run(20.0)
    if not lossy:  # else some settle other sets, and fetch the state anew
        fingerprints_agree(net)
        assert not net.of(ResyncEnded) and not net.of(EpochDiverged)
    net.finish()
    net.agree()
    for index in (1, 4, 5):
        assert len(net.of(EpochJudged, index, since=net.network.now - 40.0)) >= 10


@pytest.mark.long
def test_state_is_plausible_however_far_its_witnesses_lead():
    """With eight rounds in an epoch, each peer is some forty of its own rounds ahead of the shared state."""
    net = judged(1, 6, every=1)
    net.form(5)
    net.run(9.0)
    net.start(5)
    net.until_ready()
    told = net.of(StateJudged, 5)
    assert told and all(event.plausible and event.distance < 1e-6 for event in told)


@pytest.mark.parametrize(
    "rule",
    ["nnm-median", pytest.param("", marks=pytest.mark.long), pytest.param("nnm-trimmed", marks=pytest.mark.long)],
)
def test_hostile_optimum_does_not_lead_the_others(rule):
    """One of six peers pulls all by 20 on every parameter. By the mean they would follow it in part."""
    net = judged(2, 6, rule)
    net.form()
    net.trainers[5].optimum = net.trainers[5].optimum + 20.0
    net.run(40.0)
    away = [float((anchor - net.trainers[0].optimum).mean()) for anchor in shared(net)[:5]]
    assert all(value > 0.4 if not rule else abs(value) < 0.1 for value in away), away
    if rule:
        fingerprints_agree(net)
        assert {event.contributors for event in net.of(EpochJudged, 0, since=30.0)} == {6}


def test_lone_peer_is_the_bare_optimizer_without_a_lead():
    """The other peers leave. After some epochs the peer is alone, and its published increments no longer count."""
    net = judged(3, 2)
    net.form()
    net.run(8.0)
    first = net.up[0]
    assert first.algorithm.ledger.lead.any() and first.peer.strategy._robust._leads
    net.crash(1)
    net.run(20.0)
    assert not first.algorithm.ledger.lead.any() and not first.peer.strategy._robust._leads
    net.start(1)
    net.until_ready()
    net.run(10.0)
    fingerprints_agree(net)
    net.finish()
    net.agree()
