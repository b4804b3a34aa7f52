"""What the judge of a transfer asks for, without vectors."""

from __future__ import annotations

from random import Random

from gossipdp.protocol import jobs
from gossipdp.protocol.events import UpdateRefused
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.transfer.plausibility import Judge
from gossipdp.protocol.wire.messages import StateManifest, StateSample

A, B = b"a" * 32, b"b" * 32
SHORT = jobs.RUN - 1
"""Parameters of the last chunk, fewer than a run has."""
SIZE = 8192 + SHORT


def comparing() -> tuple[Judge, Outputs]:
    """A judge that compares the last chunk, which A gave, with what B says."""
    outputs = Outputs()
    judge = Judge(outputs, Random(1), patience=10.0)
    manifest = StateManifest(1, 1, SIZE, 8192, 100, 10, b"d" * 16, b"s" * 16)
    judge.summon(1, A, manifest, [slice(0, 8192), slice(8192, SIZE)], [1], [A, B])
    judge.came(1, 1)
    judge.heard(StateSample(1, 100, 10, 0.1, 0.1), [b"sample"], B)
    assert not judge.settled(0.0)
    return judge, outputs


def test_run_in_a_last_chunk_that_is_shorter_ends_with_the_model() -> None:
    _, outputs = comparing()
    assert list(outputs.jobs) == [jobs.Compare(((0, 8192, SHORT),), SHORT, b"sample")]


def test_malformed_sample_is_told_with_its_witness() -> None:
    judge, outputs = comparing()
    judge.compared(None)
    assert list(outputs.events) == [UpdateRefused(B, "payload")] and judge.settled(0.0)
