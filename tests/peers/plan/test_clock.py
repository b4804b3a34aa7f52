"""The clock of plans: hand-computed rounds, and those that the laboratory's own replicas take."""

from dataclasses import replace

import numpy as np
import pytest

from peers.plan.clock import ROUNDS, UNUSUAL, WAYS, clocked, setting_of
from simulations.lab.core import Setting
from simulations.lab.problems import PROBLEMS
from simulations.lab.runs.equal_time import ClockLab, round_seconds
from simulations.lab.runs.runs import METHODS, Run
from tests.peers.plan.networks import network

SHARE = 2.0 * (1.0 - 1.0 / 8.0)
"""what a host receives in an all-reduce, of a vector"""
RATE, WAY, P = 125e6, 0.001, 1e8
"""bytes a second, seconds one way, parameters of the default network"""


@pytest.mark.parametrize(
    ("title", "every", "seconds", "received"),
    [
        ("DDP, bf16", 1, 1 / 3 + SHARE * 2 * P / RATE + 6 * WAY, SHARE * 2 * P),
        ("local SGD", 50, 50 + SHARE * 4 * P / RATE + 6 * WAY, SHARE * 4 * P),
        ("DiLoCo, fp32", 50, 50 + SHARE * 4 * P / RATE + 6 * WAY, SHARE * 4 * P),
        ("DiLoCo, 4 bits", 50, 50 + SHARE * 0.5078125 * P / RATE + 2 * WAY, SHARE * 0.5078125 * P),
        ("DiLoCo, 4 bits, overlap", 50, 50, SHARE * 0.5078125 * P),
        ("gossip", 50, 50, 2 * 0.387 * P),
    ],
)
def test_rounds_against_hand_computed_figures(title: str, every: int, seconds: float, received: float) -> None:
    found = clocked(network(), WAYS[title], every, 3)
    assert found.seconds == pytest.approx(seconds, rel=1e-6)
    assert found.received == pytest.approx(received, rel=2e-3)
    assert found.steps == (float(every),) * 8


def test_an_exchange_takes_the_time_of_its_codes_and_six_crossings() -> None:
    found = clocked(network(bandwidth="100Mbit", latency="50ms"), WAYS["gossip"], 50, 3)
    assert found.exchange == pytest.approx(0.38672 * P / 12.5e6 + 6 * 0.05, rel=5e-3)


def test_an_exchange_that_does_not_fit_takes_more_rounds_and_costs_no_time() -> None:
    found = clocked(network(bandwidth="4Mbit", latency="50ms"), WAYS["gossip"], 50, 3)
    assert found.seconds == 50.0 and found.exchange == pytest.approx(77.6, rel=0.02)
    assert 0.8 < found.received / (50.0 * 0.5e6) <= 1.0, "the link is nearly full"


def test_unequal_hosts__gossip_makes_the_steps_of_each_and_ddp_those_of_the_slowest() -> None:
    there = network(speeds="1,2,4", hosts="3")
    assert clocked(there, WAYS["gossip"], 30, 3).steps == (30.0, 60.0, 120.0)
    assert clocked(there, WAYS["local SGD"], 30, 3).steps == (30.0, 30.0, 30.0)


@pytest.mark.parametrize("title", WAYS)
def test_figures_equal_those_of_the_laboratorys_clock(title: str) -> None:
    """As `simulations.lab.runs.equal_time` plays the suite clock, with vectors."""
    there, way = network(parameters="200k", bandwidth="200kbit", latency="40ms"), WAYS[title]
    every = 1 if way.method == "ddp" else 20
    counted, parameters = setting_of(there, every)
    assert parameters == 200_000
    setting = Setting(**vars(counted))
    options = way.options | ({"bits": 3} if way.method == "pairwise" else {})
    lab, method = ClockLab(PROBLEMS["quadratic"](size=parameters), setting), METHODS[way.method](**options)
    method.begin(lab)
    for _ in range(UNUSUAL):
        method.round(lab)
    seconds, received = lab.seconds, lab.received.copy()
    for _ in range(ROUNDS):
        method.round(lab)
    found = clocked(there, way, every, 3)
    assert found.seconds == pytest.approx((lab.seconds - seconds) / ROUNDS, rel=1e-9)
    assert found.received == pytest.approx(float(np.mean(lab.received - received)) / ROUNDS, rel=1e-9)
    usual = round_seconds(
        Run(setting=replace(setting, failing=0.0), method=way.method, options=options), every, 200_000
    )
    assert found.seconds == pytest.approx(usual[1], rel=1e-9)


def test_a_model_too_large_to_play_is_scaled_down_with_its_link() -> None:
    large, there = network(parameters="60B", bandwidth="60Gbit"), network(parameters="120M", bandwidth="120Mbit")
    assert setting_of(large, 50)[1] == 256 * 1_048_576 and setting_of(there, 50)[1] == 120_000_000
    found, small = (clocked(each, WAYS["gossip"], 50, 3) for each in (large, there))
    assert found.exchange == pytest.approx(small.exchange, rel=5e-3)
    assert found.received / 60e9 == pytest.approx(small.received / 120e6, rel=5e-3)
