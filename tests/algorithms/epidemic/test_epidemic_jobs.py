"""The jobs of `epidemic` beside those of increments: samples, comparison, founding, registry."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from gossipdp.algorithms.epidemic import epidemic
from gossipdp.codecs import COMPRESSORS
from gossipdp.protocol import jobs
from tests.algorithms.epidemic.epidemic_peer import CHUNKS, SIZE, Peer


def test_sample_reports_the_movement_of_a_round_and_no_distance():
    peer = Peer(1, SIZE, SIZE)
    unknown = peer.algorithm.run(jobs.Sample((0, 2048)))
    assert math.isnan(unknown.step) and unknown.distance == 0.0
    for _ in range(2):
        peer.train()
        before = peer.ledger.a.copy()
        peer.publish("whole", weight=1.0)
        peer.drain()
        peer.release()
    moved = np.linalg.norm((peer.ledger.a - before)[:4096]) / 64
    assert peer.algorithm.run(jobs.Sample((0, 2048))).step == pytest.approx(moved, rel=0.01)
    sampled = peer.algorithm.run(jobs.Sample((0,)))
    compared = peer.algorithm.run(jobs.Compare(((0, 0, 256),), 256, sampled.payload))
    assert compared.distance == 0.0


def test_sample_and_compare_use_the_shared_state():
    """A peer's lead must not count when it judges a state."""
    giver, leading, behind = Peer(1, SIZE, SIZE), Peer(2, SIZE, SIZE), Peer(3, SIZE, SIZE)
    for peer in (leading, behind):
        peer.train(0.1)
        peer.publish(lead=True)
    runs = ((0, 0, 256), (256, 2048, 256))
    sampled = leading.algorithm.run(jobs.Sample((0, 2048)))
    for peer in (giver, leading, behind):
        peer.algorithm.ledger.digest(0)
        assert peer.algorithm.run(jobs.Compare(runs, 512, sampled.payload)).distance < 1e-9
    short = sampled.payload[:-4]
    assert leading.algorithm.run(jobs.Compare(runs, 512, short)) is None
    nan = np.full(512, np.nan, np.float32).data.cast("B")
    assert leading.algorithm.run(jobs.Compare(runs, 512, nan)) is None


def test_founding_check_attach_and_moments():
    peer = Peer(1)
    peer.region[0] = 0.5
    assert peer.algorithm.run(jobs.Found(0)) == jobs.Checked(True)
    peer.region[0, -1] = np.nan
    assert peer.algorithm.run(jobs.Check(CHUNKS - 1)) == jobs.Checked(False)
    assert peer.algorithm.run(jobs.Check(0)) == jobs.Checked(True)
    assert peer.algorithm.run(jobs.CheckMoments(0, 256, b"", b"")) is None
    peer.algorithm.run(jobs.Allocate(100, 100, 256))
    assert peer.algorithm.ledger.size == 100


def test_job_of_another_algorithm_is_an_error():
    with pytest.raises(TypeError):
        Peer(1).algorithm.run(jobs.Drop(()))


def test_every_compressor_of_the_registry_works():
    for name in COMPRESSORS:
        one, other = Peer(1), Peer(2)
        one.train()
        other.apply(one.publish(name)[0])
        assert one.state() == other.state(), name


def test_applied_increment_is_taken_back_to_the_last_bit():
    algorithm = epidemic.Epidemic()
    algorithm.allocate(5000, 4900, 8192)
    random = np.random.default_rng(3)
    algorithm.ledger.a[:] = random.standard_normal(5000)
    before = algorithm.ledger.digest(0)
    other = epidemic.Epidemic()
    other.allocate(5000, 4900, 8192)
    x = random.standard_normal(5000).astype(np.float32)
    other.ledger.bind((x, np.zeros(5000, np.float32)))
    published = other.run(jobs.Publish(0, "topk128", 1.0, 0.95, 0.3, 0, 1))
    apply = jobs.Apply(0, "topk128", published.payload, 1.0, 0.3)
    there = algorithm.run(apply)
    assert there.sound and algorithm.ledger.digest(0) != before
    back = algorithm.run(dataclasses.replace(apply, back=True))
    assert (back.sound, back.movement) == (there.sound, there.movement)
    assert algorithm.ledger.digest(0) == before
