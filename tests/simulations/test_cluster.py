"""Five hundred networks under faults, checked after every event (campaign T1: I1, I2, I4, I7, I8, I11, I12), and the
simulator itself: a broken peer must not pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gossipdp.algorithms.base import Ledger
from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.codecs import kernels
from gossipdp.protocol import jobs
from gossipdp.protocol.initiator import Initiator
from gossipdp.protocol.responder import Responder
from simulations.campaign import PART, play
from simulations.cluster import Cluster, Plan, run_seed
from simulations.invariants import Books
from simulations.nemesis import KINDS, Fault
from simulations.network import Conditions, Network

ROOT = Path(__file__).resolve().parents[2]


FIRST = 545
"""of these 500 are played often"""


def often(seed):
    """A network of 9 to 16 takes as long as ten small ones, one of 64 as long as forty: of these, every size once."""
    return seed == 364 or seed % 40 == 0 or not (seed % 10 == 0 or seed % 100 == 64)


SEEDS = [seed if often(seed) else pytest.param(seed, marks=pytest.mark.long) for seed in range(FIRST)]


@pytest.mark.parametrize("seed", SEEDS)
def test_seed_holds_every_invariant(seed):
    outcome = run_seed(seed)
    assert outcome.rounds > 10 and outcome.exchanges > 5 and outcome.mixed >= outcome.exchanges


@pytest.mark.parametrize(
    "seed",
    [
        650,  # a state that had been long on its way was given on as of now, and refused
        1310,  # a check missed a block whose differences did not fit
    ],
)
def test_seed_that_failed_once_holds_every_invariant(seed):
    run_seed(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(500, 20_000, PART))
def test_hundred_more_seeds_hold_every_invariant(first):
    assert play(range(first, first + PART)).failed == {}


def test_plans_reach_the_sizes_and_the_faults_promised():
    plans = [Plan.draw(seed) for seed in range(FIRST) if often(seed)]
    assert len(plans) == 500
    assert {plan.peers for plan in plans} == {*range(2, 17), 64} - {7}
    assert {plan.conditions.loss for plan in plans} == {0.0, 0.02, 0.1, 0.3, 0.5}
    assert {plan.conditions.late for plan in plans} == {0.1, 1.0, 30.0}
    assert sum(plan.conditions.duplicate > 0 for plan in plans) > 200
    assert sum(plan.conditions.reorder > 0 for plan in plans) > 200
    assert sum(plan.agree for plan in plans) > 60
    faults = [fault for plan in plans for fault in plan.script]
    assert len(faults) > 1500 and {fault.kind for fault in faults} == set(KINDS)
    assert any(fault.kind == "pause" and fault.lasts == 60.0 for fault in faults)
    assert any(fault.kind == "crash" and not fault.disk for fault in faults)


def test_replicas_that_drift_apart_are_seen(monkeypatch):
    """The fourth act tells a network that averages from one that only says so."""
    monkeypatch.setattr(Pairwise, "_mix_acknowledged", lambda self, job: self._refuse(job.key, "payload"))
    monkeypatch.setattr(Pairwise, "_decode_and_mix", lambda self, job: self._refuse(job.key, "payload"))
    monkeypatch.setattr(Books, "heard", lambda self, host, event: None)
    with pytest.raises(AssertionError, match=r"I4: squared distance"):
        run_seed(5, plan=small(conditions=Conditions(), agree=True))


def small(**changes):
    fields = {
        "peers": 3,
        "size": 8192 + 300,
        "conditions": Conditions(latency=0.02, loss=0.2, duplicate=0.1, reorder=0.2, late=1.0, job=0.01),
        "every": 4,
        "window": 2,
        "script": (
            Fault(at=7.0, kind="crash", hosts=(1,), lasts=0.5, busy=True, trainer=True),
            Fault(at=9.0, kind="halves", hosts=(0,), lasts=2.0),
            Fault(at=12.0, kind="die", hosts=(2,), lasts=0.02),
            Fault(at=15.0, kind="crash", hosts=(2,), lasts=3.0, disk=False),
        ),
    }
    return Plan(**{**fields, **changes})


def test_same_seed_same_log_and_another_seed_another():
    first, second, third = run_seed(1001, plan=small()), run_seed(1001, plan=small()), run_seed(1002, plan=small())
    assert (first.log_hash, first.events) == (second.log_hash, second.events)
    assert first.log_hash != third.log_hash


def test_same_seed_same_log_in_processes_with_other_hash_salts():
    hashes = set()
    for salt in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "simulations.cluster", "--seed", "17"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            check=False,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        hashes.add(done.stdout.split("log_hash='")[1][:32])
    assert len(hashes) == 1


def test_failing_seed_tells_the_command_that_replays_it(monkeypatch):
    monkeypatch.setattr(Ledger, "release", lambda self, slot: None)
    with pytest.raises(AssertionError, match=r"replay: python -m simulations\.cluster --seed 5 --trace"):
        run_seed(5, plan=small(conditions=Conditions(), script=(), peers=2))


def fails(seeds=range(6), **changes):
    """Does any of a few runs notice?"""
    for seed in seeds:
        try:
            run_seed(2000 + seed, plan=small(**changes))
        except AssertionError as error:
            return str(error)
    return ""


def test_mixing_without_pending_is_noticed(monkeypatch):
    original = Ledger.pending
    monkeypatch.setattr(Ledger, "pending", lambda self, chunk: np.zeros_like(original(self, chunk)))
    assert "x + pending - a" in fails(range(2))


def test_initiator_mixing_less_than_the_responder_is_noticed(monkeypatch):
    original = Pairwise.run

    def run(self, job):
        if isinstance(job, jobs.Mix):
            job = jobs.Mix(job.key, job.buffers, job.share * 0.99, job.weight, job.pull, job.unmet)
        return original(self, job)

    monkeypatch.setattr(Pairwise, "run", run)
    assert "the sum of two anchors moved" in fails(range(2))


def test_responder_that_forgets_what_it_mixed_is_noticed(monkeypatch):
    original = Responder.job_done

    def job_done(self, job, turn, now):
        original(self, job, turn, now)
        if turn.mixed:
            # Says the chunk never came to anything, though it is mixed here.
            del self._mixed[job.key.chunk]
            self._void.add(job.key.chunk)

    monkeypatch.setattr(Responder, "job_done", job_done)
    assert "I2" in fails()


def test_initiator_that_forgets_its_doubts_is_noticed(monkeypatch):
    def lose(self, now):
        self._exhausted, self._result = True, "lost"
        self._drop([number for number, chunk in self._open.items() if not chunk.mixing])
        self._end_if_done(now)

    monkeypatch.setattr(Initiator, "lose", lose)
    eight = tuple(Fault(at=7.0 + 1.5 * n, kind="isolated", hosts=(n % 3,), lasts=7.0, busy=True) for n in range(8))
    # Nothing is left in doubt where it was due: chunks stay half applied between live peers.
    assert "I2" in fails(range(30), script=eight, conditions=Conditions(latency=0.15, loss=0.3, job=0.04))


def test_outer_step_that_counts_progress_twice_is_noticed(monkeypatch):
    original = Ledger.outer_step

    def outer_step(self, chunk, lr, momentum, applied):
        result = original(self, chunk, lr, momentum, applied)
        self.a[self.span(chunk)] += result[1]
        return result

    monkeypatch.setattr(Ledger, "outer_step", outer_step)
    assert "outer step" in fails(range(2))


# -- the network itself ---------------------------------------------------------------------------------------------


def test_events_at_one_time_happen_in_the_order_they_were_asked_for():
    network, seen = Network(0, Conditions(), listen=lambda host, event: None), []
    for number in range(20):
        network.at(1.0 if number % 2 else 2.0, "x", None, lambda number=number: seen.append(number))
    network.run(3.0)
    assert seen == [*range(1, 20, 2), *range(0, 20, 2)] and network.now == 3.0


def test_jobs_run_one_at_a_time_in_order_with_other_events_in_between():
    cluster = Cluster(3, small(peers=2, script=(), conditions=Conditions()))
    seen = []
    cluster.network.trace = lambda record: seen.append((record.kind, record.host, type(record.what).__name__))
    cluster.run()
    kinds = [f"run {what}" if kind == "does" else kind for kind, host, what in seen if host == 0]
    asked, finished, between = [], [], 0
    for kind in kinds:
        if kind.startswith("run "):
            asked.append(kind[4:])
        elif kind.startswith("done "):
            finished.append(kind[5:])
        elif len(asked) > len(finished):
            between += 1
    assert finished == asked[: len(finished)] and len(finished) > 50 and between > 20


def test_checks_that_miss_more_than_one_block_are_seen(monkeypatch):
    verdict = kernels.verdict

    def blind(*given):
        verdict(*given)
        given[6][:] = 0
        return 0

    monkeypatch.setattr(kernels, "verdict", blind)
    assert "moved elsewhere than to its partner" in fails()
