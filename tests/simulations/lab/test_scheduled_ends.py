"""Exchanges of `pairwise` along a schedule before the first round and after the last one."""

from __future__ import annotations

import math

import pytest
import torch

from tests.simulations.lab.test_laboratory_pairwise import SLOW, started


def test_scheduled_warm_rounds_leave_all_equal():
    options = {"warmup_steps": 5, "warmup_exchanges": 2, "warmup_scheduled": True, "codec": "fp32", "clip": math.inf}
    lab, _ = started(options=options)
    drifting, _ = started(options={**options, "warmup_exchanges": 1})
    assert lab.distance() < 1e-3 * drifting.distance()


@pytest.mark.parametrize("changes", [{}, {"link": SLOW}, {"peers": 6}], ids=["at once", "late", "Base-2 graph"])
def test_closing_exchanges_leave_all_at_the_mean_of_the_anchors(changes):
    curves = []
    for closing in (0, 2):
        lab, method = started(options={"closing": closing, "clip": math.inf}, **changes)
        for _ in range(lab.setting.rounds):
            method.round(lab)
        curves.append((lab.distance(), method.model(lab), lab.seconds))
    (apart, mean, seconds), (closed, same, later) = curves
    assert closed < 1e-3 * apart and later >= seconds
    torch.testing.assert_close(same, mean, atol=1e-5, rtol=0)
