"""Hosts with batches of their own size, and hosts that weigh by them."""

import math

import numpy as np
import pytest
import torch

from simulations.lab.core import Lab, Setting
from simulations.lab.methods.unequal import UnequalBatches
from simulations.lab.problems import DigitsMlp
from simulations.lab.runs.runs import METHODS
from tests.simulations.lab.baselines.toy_problems import LINE, ran

PLAIN = {"lr": 1.0, "momentum": 0.0, "codec": "fp32", "clip": math.inf}
SETTING = Setting(peers=2, every=3, rounds=2, inner="sgd", lr=0.05, decay=False)


def test_a_small_batch_has_the_gradient_of_its_own_samples():
    unequal, large = UnequalBatches("digits-mlp", sizes=[2, 8]), DigitsMlp(batch=8)
    found = Lab(unequal, Setting(peers=3, every=1, rounds=1)).gradients()
    batch = large.batches(np.arange(3), np.zeros(3, np.int64), 0)
    for peer, size in enumerate((2, 8, 2)):
        x = large.start(0).requires_grad_()
        large.loss(x, *(rows[peer, :size] for rows in batch)).backward()
        torch.testing.assert_close(found[peer], x.grad, atol=1e-6, rtol=1e-5)
    assert unequal.evaluate(large.start(0)) == large.evaluate(large.start(0))


def test_a_batch_that_does_not_fill_the_largest_is_refused():
    with pytest.raises(ValueError, match="multiple"):
        UnequalBatches("digits-mlp", sizes=[3, 8])


def test_equal_weights_are_pairwise_to_the_last_bit():
    weighted, plain = METHODS["pairwise-weighted"](weights=[4, 4]), METHODS["pairwise"]()
    assert torch.equal(ran(weighted, SETTING).x, ran(plain, SETTING).x)


def test_a_weight_multiplies_a_hosts_share_of_the_step_of_the_mean():
    method = METHODS["pairwise-weighted"](weights=[1, 3], **PLAIN)
    lab = ran(method, SETTING)
    before, twin = method.model(lab), Lab(LINE, SETTING)
    twin.x.copy_(lab.x)
    twin.steps[:] = lab.steps
    twin.train(SETTING.every)
    one, other = twin.x - lab.x
    method.round(lab)
    torch.testing.assert_close(method.model(lab), before + 0.25 * one + 0.75 * other, atol=1e-6, rtol=0.0)
