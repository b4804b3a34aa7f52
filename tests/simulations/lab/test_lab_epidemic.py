"""The laboratory's `epidemic` under churn, and with low rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gossipdp.codecs.increments.lowrank import LowRank
from simulations.lab.core import Lab, Link, Setting, play
from simulations.lab.methods.conditions import ChurningEpidemic
from simulations.lab.methods.epidemic import HEADERS, EpidemicGossip
from simulations.lab.problems import DigitsMlp

SETTING = Setting(peers=8, every=4, rounds=6, lr=3e-3, evaluate_every=6)
DIGITS = DigitsMlp(hidden=32)


def begun(method, setting):
    lab = Lab(DIGITS, setting)
    method.begin(lab)
    return lab


def test_joiner_has_a_peers_state_bit_for_bit_and_its_pending_messages():
    # One message of 400 bytes at a time, so most are still on their way at the end of the round.
    method = ChurningEpidemic("topk64")
    lab = begun(method, replace(SETTING, link=Link(bandwidth=600.0)))
    for _ in range(3):
        EpidemicGossip.round(method, lab)
    before = lab.received.copy()
    method._replace(lab, 3, 5)
    one, other = method.replicas[3], method.replicas[5]
    assert (one.ledger.fixed == other.ledger.fixed).all() and torch.equal(lab.x[3], torch.from_numpy(other.ledger.a))
    assert not one.ledger.v.any() and other.ledger.v.any()
    # The moments as Adam's codec stores them.
    assert lab.inner.m[5].any() and torch.allclose(
        lab.inner.m[3], lab.inner.m[5], atol=0.02 * lab.inner.m[5].abs().max()
    )
    coming = [sorted(at for at, _, receiver, _ in method._coming if receiver == peer) for peer in (3, 5)]
    assert coming[0] == coming[1] and len(coming[0]) > 3
    assert lab.received[3] - before[3] > DIGITS.parameters and (np.delete(lab.received - before, 3) == 0.0).all()


def test_replicas_stay_bit_equal_under_churn():
    method = ChurningEpidemic("topk64", every=2, share=0.25)
    lab = begun(method, replace(SETTING, failing=0.2))
    for _ in range(6):
        method.round(lab)
    assert all((one.ledger.fixed == method.replicas[0].ledger.fixed).all() for one in method.replicas)


def test_churn_costs_some_loss_and_is_the_same_from_the_same_seed():
    setting = replace(SETTING, rounds=12, evaluate_every=12, link=Link(bandwidth=2e4))
    calm, curve, again = (
        play(DIGITS, method, setting)
        for method in (EpidemicGossip(), *(ChurningEpidemic(every=3, share=0.25) for _ in range(2)))
    )
    assert curve == again
    assert curve.last.loss < curve.points[0].loss - 0.2
    assert abs(curve.last.loss - calm.last.loss) < 0.3


def test_low_rank_uses_the_models_matrices():
    method = EpidemicGossip("lowrank4")
    lab = begun(method, replace(SETTING, every=2, rounds=1))
    method.round(lab)
    size = LowRank(4, DIGITS.shapes).most_bytes(DIGITS.parameters)
    assert size != LowRank(4).most_bytes(DIGITS.parameters)
    assert lab.received == pytest.approx(np.full(8, 7.0 * (size + HEADERS)))
