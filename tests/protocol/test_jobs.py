"""Every job names the type of its result, and the algorithms give it."""

import types
from typing import get_args

import numpy as np
import pytest

from gossipdp.protocol import jobs
from simulations.simulator.settings import pairwise

KINDS = [
    kind
    for name in jobs.__all__
    if isinstance(kind := getattr(jobs, name), type) and issubclass(kind, jobs.Job) and kind is not jobs.Job
]
KEY = jobs.ChunkKey(bytes(32), 1, 0)
PIECE = jobs.HashPiece(0, b"piece")


def named(kind):
    """The types that the class of a job names for its result."""
    (result,) = get_args(kind.__orig_bases__[0])
    return get_args(result) if isinstance(result, types.UnionType) else (result,)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_job_names_a_result_of_the_jobs_module_or_none(kind):
    for result in named(kind):
        assert result in (None, type(None)) or result.__module__ == jobs.__name__


@pytest.mark.parametrize(
    "job",
    [
        jobs.Seal(),
        jobs.Release(1),
        jobs.Renew(),
        jobs.Widen(0.5),
        jobs.Found(0),
        jobs.Attach(0),
        jobs.Check(0),
        jobs.OuterStep(0, 1.0, 0.0, 0),
        jobs.Rest(0),
        jobs.Freeze(0),
        PIECE,
        jobs.CheckPiece(0, b"piece", bytes(16)),
        jobs.Sample((0,)),
        jobs.Compare(((0, 0, 1),), 1, bytes(4)),
        jobs.Compare(((0, 0, 1),), 1, b""),
        jobs.Adopt(0, b"", bytes(16)),
        jobs.Begin(key=KEY, coding=jobs.Coding(codec="modulo4", lower=True)),
        jobs.Drop((KEY,)),
    ],
    ids=lambda job: type(job).__name__,
)
def test_algorithm_gives_the_named_result(job):
    algorithm = pairwise()
    algorithm.run(jobs.Allocate(256, 256, 256))
    algorithm.ledger.bind((np.zeros(256, np.float32), np.zeros(256, np.float32)))
    result = algorithm.run(job)
    assert type(result) in [kind or type(None) for kind in named(type(job))]
