"""Links and rounds that fill a given time."""

import math
import re
from dataclasses import replace

import pytest

from peers.plan.timeline import Link
from simulations.lab.pages.main import SUITES
from simulations.lab.problems import PROBLEMS
from simulations.lab.runs import equal_time, runs
from simulations.lab.runs.equal_time import setting_in_time
from simulations.lab.runs.runs import METHODS, Run, link
from simulations.lab.suites import b9, clock
from tests.simulations.lab.sample_runs import SMALL


def test_link_to_a_larger_model_takes_as_long_as_with_that_model():
    assert link(100.0, 80.0, 50_000, 1e9).seconds(4.0 * 50_000, 2) == pytest.approx(4e9 / 12.5e6 + 0.16)


@pytest.mark.parametrize(("method", "seconds"), [("pairwise", 8.0), ("diloco", 16.0), ("ddp", 8 * (1 / 3 + 8.0))])
def test_rounds_fit_by_the_methods_own_clock(method, seconds):
    there = link(7.0, 0.0, 1000, 1e6)
    run = Run(setting=replace(SMALL, link=there, rounds=1), method=method)
    assert setting_in_time(10 * seconds, run, 1000) == replace(run.setting, rounds=10)
    assert setting_in_time(0.1, run, 1000) == run.setting


def clocked(run, parameters):
    """Simulated seconds of the run without training."""
    lab = equal_time.ClockLab(PROBLEMS["quadratic"](size=parameters), run.setting)
    method = METHODS[run.method](**run.options)
    method.begin(lab)
    for _ in range(run.setting.rounds):
        method.round(lab)
    return lab.seconds


@pytest.mark.parametrize("options", [{"early": 0.0, "landing": "waiting"}, {"warmup_steps": 10}], ids=str)
def test_rounds_after_a_longer_first_one_fill_the_time(options):
    run = Run(setting=replace(SMALL, every=10, link=Link(bandwidth=300.0, latency=0.1)), options=options)
    setting = setting_in_time(400.0, run, 1000)
    first, others = equal_time.round_seconds(run, setting.every, 1000)
    assert first > 1.1 * others
    assert 0.98 * 400.0 <= clocked(replace(run, setting=setting), 1000) <= 400.0


@pytest.mark.long
@pytest.mark.parametrize("name", ["clock", "b9"])
def test_every_method_fills_the_given_time(name):
    limits = {"clock": {}, "b9": {b9.TRANSFORMING: b9.SECONDS, b9.LONG: b9.LONGER * b9.SECONDS}}[name]
    for arm in SUITES[name].arms("normal"):
        run = arm.task
        first, others = equal_time.round_seconds(run, run.setting.every, runs.TASKS[run.problem]().parameters)
        filled = (first + (run.setting.rounds - 1) * others) / limits.get(arm.group, clock.SECONDS)
        least = 0.96 if "bf16" in arm.label else 0.98
        assert least <= filled <= 1.0 + 1e-9, (arm.group, arm.label, filled)
        asked = re.search(r"H (\d+)", arm.label)
        if asked:
            assert abs(math.log(run.setting.every / int(asked[1]))) < math.log(4.0), (arm.group, arm.label)
