"""A failing run shrinks and still fails in the same way."""

import json
from dataclasses import replace

import pytest

from simulations.scenarios import shrink
from simulations.scenarios.shrink import Failure, Shrunk, attempt, plan_from_json, plan_to_json, story, without
from simulations.simulator.cluster import Plan
from simulations.simulator.faults import Fault
from simulations.simulator.network import Conditions
from tests.simulations.faulty_responders import forget_mixed_chunks, mix_less_than_the_responder


def plan(**changes):
    fields = {
        "peers": 5,
        "size": 8192 + 300,
        "conditions": Conditions(latency=0.05, loss=0.3, duplicate=0.1, reorder=0.2),
        "every": 4,
        "window": 2,
        "script": tuple(
            Fault(at=7.0 + host, kind="crash", hosts=(host,), lasts=0.5, trainer=True) for host in range(5)
        ),
    }
    return Plan(**{**fields, **changes})


def guilty(seed, found):
    """Fails if p2 crashes and messages are lost. Fails in another way if p1 crashes and no message is lost."""
    crashed = {fault.hosts[0] for fault in found.script}
    if 2 in crashed and found.conditions.loss > 0:
        return Failure("I2 p2: lost 3", "I2 p: lost #", 9.0)
    return Failure("I7 p1: quiet", "I7 p: quiet", 9.0) if 1 in crashed else None


def test_shrinking_removes_what_the_failure_does_not_need():
    small = shrink.shrink(1, plan(), guilty(1, plan()), attempt=guilty)
    (fault,) = small.plan.script
    assert (fault.hosts, fault.trainer, fault.lasts) == ((2,), False, 2.0) and small.plan.peers == 3
    assert small.plan.conditions == replace(Conditions(), loss=0.3) and small.plan.size == 300
    assert small.failure.way == "I2 p: lost #" and small.plan.chaos < plan().chaos and small.plan.calm == plan().calm


def test_plan_that_fails_in_another_way_is_not_kept():
    only_first = shrink.shrink(1, plan(), guilty(1, plan()), attempt=guilty).plan.script
    assert all(fault.hosts != (1,) for fault in only_first)


def test_shrinking_keeps_its_budget_and_returns_the_best_plan():
    times = iter(float(second) for second in range(1000))
    small = shrink.shrink(1, plan(), guilty(1, plan()), attempt=guilty, budget=5.0, clock=lambda: next(times))
    assert small.runs <= 5 and guilty(small.seed, small.plan).way == "I2 p: lost #"


def test_large_network_is_halved_before_single_faults_and_hosts_are_removed():
    sizes = []

    def watched(seed, found):
        sizes.append(found.peers)
        return guilty(seed, found)

    large = plan(peers=64, script=(Fault(at=7.0, kind="crash", hosts=(2,), lasts=0.5), *plan().script))
    small = shrink.shrink(1, large, guilty(1, large), attempt=watched)
    assert sizes[:5] == [33, 17, 9, 5, 3] and small.plan.peers == 3
    assert small.plan.script[0].hosts == (2,)


def test_founder_stays_and_later_hosts_get_lower_numbers():
    lower = without(plan(peers=8, script=(Fault(at=7.0, kind="ring", hosts=(6, 1, 0, 5), lasts=1.0),)), 1, 2, 3, 4)
    assert lower.peers == 4 and [fault.hosts for fault in lower.script] == [(2, 0, 1)]


def test_hosts_keep_their_speeds():
    assert without(plan(peers=4, slowness=(1.0, 0.5, 2.0, 0.5)), 1, 2).slowness == (1.0, 0.5)


def test_faults_name_the_lower_numbers():
    script = (
        Fault(at=7.0, kind="halves", hosts=(1, 3, 4), lasts=1.0),
        Fault(at=8.0, kind="crash", hosts=(3,), lasts=1.0),
    )
    less = without(plan(script=script), 3)
    assert less.peers == 4 and [fault.hosts for fault in less.script] == [(1, 3)]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("I7 p3: no round for 6.2 s", "I7 p11: no round for 8.0 s", True),
        ("I2: chunk 0 of exchange 1.4 was never settled between p1, life 1 and p0, life 1",
         "I2: chunk 2 of exchange 2.13 was never settled between p9, life 2 and p6, life 1", True),
        ("I1 p3: x + pending - a is off by 1e-05 on chunk 0", "I1 p3: outer step on chunk 0 is off by 1e-05", False),
    ],
)  # fmt: skip
def test_ways_of_failing_differ_by_words_not_numbers(one, other, same):
    ways = [Failure.of(AssertionError(text), 1.0).way for text in (one, other)]
    assert (ways[0] == ways[1]) is same


def test_failure_of_an_exception_names_its_function():
    def broken():
        return {}["nothing"]

    with pytest.raises(KeyError) as caught:
        broken()
    assert Failure.of(caught.value, 1.0).text == "KeyError in broken: 'nothing'"


def test_plan_with_infinite_times_survives_json():
    whole = plan(script=(*plan().script, Fault(at=9.0, kind="leave", hosts=(1,), lasts=float("inf"), on="Ack")))
    assert plan_from_json(plan_to_json(7, whole)) == (7, whole)


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"seed": 1, "plan": {"peers": "many"}})])
def test_text_that_is_no_run_raises(text):
    with pytest.raises(ValueError):
        plan_from_json(text)


@pytest.mark.long
def test_real_bug_among_four_peers_shrinks_to_two_and_the_story_shows_it(monkeypatch):
    forget_mixed_chunks(monkeypatch)
    rough = plan(peers=4, size=300, script=plan().script[1:3], conditions=Conditions(latency=0.02, loss=0.4))
    failures = ((seed, attempt(seed, rough)) for seed in range(1, 30))
    seed, failure = next((seed, failed) for seed, failed in failures if failed and "never settled" in failed.text)
    small = shrink.shrink(seed, rough, failure, budget=30.0)
    assert small.plan.peers == 2 and small.plan.script == () and small.failure.way == failure.way
    told = story(small)
    lines = told.splitlines()
    mixed = next(number for number, line in enumerate(lines) if "has mixed chunk 0" in line)
    assert any("Void chunk 0: I have not mixed it" in line for line in lines[mixed:])
    assert len(lines) < 60 and "what concerns p0, p1" in told


def test_story_of_a_failed_job_tells_its_exchange(monkeypatch):
    mix_less_than_the_responder(monkeypatch)
    calm = plan(peers=3, size=300, script=(), conditions=Conditions())
    failure = attempt(1, calm)
    assert failure is not None and "the sum of two anchors moved" in failure.text
    lines = story(Shrunk(1, calm, failure, 0, 0.0)).splitlines()
    assert ", exchange 1." in lines[3]
    assert any("Offer exchange" in line for line in lines) and lines[-1].endswith(
        "is about to carry out Mix of chunk 0"
    )
    assert len({line.split()[1] for line in lines[4:]}) == 2 and len(lines) < 40


def test_run_that_holds_is_no_failure():
    assert attempt(1, plan(peers=2, size=300, script=(), conditions=Conditions())) is None


def test_long_trace_loses_its_beginning(monkeypatch):
    forget_mixed_chunks(monkeypatch)
    rough = plan(peers=2, size=300, script=(), conditions=Conditions(latency=0.02, loss=0.5))
    failure = Failure("I7 p0: it says so", "", 1.0)
    told = story(Shrunk(1, rough, failure, 0, 0.0), most=10).splitlines()
    before = next(number for number, line in enumerate(told) if "lines before" in line)
    assert len(told) == before + 11
