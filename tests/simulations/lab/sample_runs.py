"""Runs of the laboratory with invented outcomes, and small settings to play."""

import numpy as np

from simulations.lab.core import Setting
from simulations.lab.pages.main import SUITES
from simulations.lab.runs.answers import Answer
from simulations.lab.runs.runs import Run
from simulations.lab.stability.cells import Cell
from simulations.lab.suites.base import Arm, Outcome
from simulations.lab.theory.consensus import Row

SMALL = Setting(peers=8, every=8, rounds=12, lr=8e-3, evaluate_every=12)


def pending(replica):
    """Corrections that the live parameters of `replica` lack."""
    ledger, applied = replica.ledger, replica.buffers.applied
    return np.concatenate([ledger.outstanding(chunk, applied) for chunk in range(ledger.chunks)])


def answered(arm, loss, seed):
    """An answer as a run would give it."""
    if isinstance(arm.task, Cell):
        hosts = [loss + 0.001 * seed] * arm.task.setting.peers
        told = {"start": 2.0 * loss, "hosts": hosts, "alone": hosts, "own": 1.0, "mixed": 1.0, "gain": 0.0, "ran": 0}
        return Answer(told, "code", 1.0)
    if not isinstance(arm.task, Run):
        rows = [Row("any", 0.5, 0.5, 0.0, True)._asdict(), Row("CD^2 of a", 1.0, 0.95, 0.05, True)._asdict()]
        return Answer({"rows": rows}, "code", 1.0)
    setting = arm.task.setting
    rounds = range(0, setting.rounds + 1, max(1, setting.rounds // 3))
    points = [
        [each, 10.0 * each, 2.0 * each, 20.0 * each, loss + 3.0 / (1 + each) + 0.01 * seed, 0.9, loss + 3.0, 2.0**-each]
        for each in {*rounds, setting.rounds}
    ]
    facts = {"finished": loss + 0.01 * seed, "factors": loss, "products": loss, "apart": 0.01, "lost": 0.0}
    idle = dict.fromkeys(("idle", "idle, healthy", "idle, host 5"), 0.1)
    return Answer({"parameters": 100, "points": sorted(points), "facts": facts | idle}, "code", 1.0)


def grid_of(name):
    return SUITES[name].arms("normal")


def outcome(*answers, label="a"):
    return Outcome(
        Arm("g", label, Run(setting=SMALL)), [answer or Answer({}, "code", 1.0, "fell") for answer in answers]
    )


def ended(loss, replica_loss=None, bytes_=20.0):
    """An answer with two points."""
    single = loss if replica_loss is None else replica_loss
    points = [[0, 0.0, 0.0, 0.0, 3.0, 0.9, 3.0, 0.0], [12, 9.0, bytes_, 9.0, loss, 0.9, single, 1.0]]
    return Answer({"parameters": 1, "points": points, "facts": {"blocks": 4}}, "code", 1.0)
