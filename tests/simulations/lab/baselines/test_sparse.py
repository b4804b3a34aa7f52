"""SparseLoCo: what it sends, and what its error feedback holds back."""

from dataclasses import replace

import pytest
import torch

from peers.plan.timeline import Link
from simulations.lab.baselines.sparse import CHUNK, SparseLoCo, largest
from simulations.lab.core import Lab
from tests.simulations.lab.baselines.toy_problems import MLP, SGD

LINK = Link(bandwidth=1000.0, latency=0.25)


def test_largest_sends_k_of_each_chunk_in_two_levels():
    rows = torch.randn(3, CHUNK + 100, generator=torch.Generator().manual_seed(0))
    sent = largest(rows, 16)
    for part in (slice(0, CHUNK), slice(CHUNK, None)):
        for row, got in zip(rows[:, part], sent[:, part], strict=True):
            chosen = got.nonzero().flatten()
            assert set(chosen.tolist()) == set(row.abs().topk(16).indices.tolist())
            assert len(got[chosen].abs().unique()) == 2 and torch.equal(got[chosen].sign(), row[chosen].sign())
    assert torch.linalg.norm(rows - sent) < torch.linalg.norm(rows)


def test_a_row_with_fewer_values_than_k_is_sent_whole():
    sent = largest(torch.tensor([[2.0, -2.0, 0.0]]), 128)
    assert torch.equal(sent, torch.tensor([[2.0, -2.0, 0.0]]))


def test_what_is_not_sent_stays_at_the_sender():
    """mean(theta) - alpha mean(e) moves by -alpha mean(Delta) with beta 1, whatever was left out."""
    lab = Lab(MLP, replace(SGD, peers=4))
    method = SparseLoCo(k=4, alpha=0.5, beta=1.0)
    method.begin(lab)
    for _ in range(5):
        before = method.anchor - 0.5 * method.errors.mean(0)
        twin = Lab(MLP, replace(SGD, peers=4))
        twin.x.copy_(lab.x)
        twin.steps[:] = lab.steps
        twin.train(lab.setting.every)
        drift = (method.anchor - twin.x).mean(0)
        method.round(lab)
        after = method.anchor - 0.5 * method.errors.mean(0)
        assert torch.allclose(after, before - 0.5 * drift, atol=1e-6)
    assert method.errors.abs().max() > 0.0


def test_error_stays_bounded_by_the_contraction():
    """||e|| <= sqrt(1 - d) G / (1 - beta sqrt(1 - d)), where d is the share of the squared norm that is sent."""
    generator, beta, k = torch.Generator().manual_seed(1), 0.95, 512
    e, least, most = torch.zeros(1, CHUNK), 1.0, 0.0
    for _ in range(60):
        step = torch.randn(1, CHUNK, generator=generator)
        most = max(most, float(step.norm()))
        whole = beta * e + step
        e = whole - largest(whole, k)
        least = min(least, 1.0 - float(e.norm() / whole.norm()) ** 2)
        left = (1.0 - least) ** 0.5
        assert float(e.norm()) <= left * most / (1.0 - beta * left) * (1.0 + 1e-6)


@pytest.mark.parametrize("peers", [1, 4])
def test_costs_are_an_all_gather(peers):
    lab = Lab(MLP, replace(SGD, peers=peers, link=LINK))
    method = SparseLoCo(k=128)
    method.begin(lab)
    method.round(lab)
    payload = 4 + 14 * 128 / 8
    assert lab.received.tolist() == [(peers - 1) * payload] * peers
    assert lab.seconds == pytest.approx(3.0 + ((peers - 1) * payload / 1000.0 + 0.25 if peers > 1 else 0.0))
