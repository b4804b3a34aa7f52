"""`RobustEpochs`: its jobs, the contributors that count, and the increments taken out of the lead."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from gossipdp.protocol import jobs
from gossipdp.protocol.epidemic import packing as increments
from gossipdp.protocol.epidemic.applying import length_of
from gossipdp.protocol.epidemic.exclusive import Exclusive
from gossipdp.protocol.epidemic.robust import RobustEpochs
from gossipdp.protocol.epidemic.terms import Terms
from gossipdp.protocol.events import EpochJudged, IncrementApplied, UpdateRefused
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.schema import MOST_EXACT, Schema
from gossipdp.protocol.wire.epidemic_messages import Rumour

SCHEMA = Schema.of([("w", (2 * 8192 + 9,), "float32", "parameter")])
ME, EPOCH, LENGTH = b"m" * 32, 7, 3.0
"""LENGTH: of each chunk's movement, unscaled"""
WHOLE = (b"one", b"two", b"six")


def rumour(origin, payloads=WHOLE, *, sequence=0, weight=0.25, length=None):
    said = length_of([LENGTH for payload in payloads if payload]) if length is None else length
    one = Rumour(origin * 32, 1, EPOCH, sequence, weight, 700, 10, 1, 1, bytes(32), bytes(64), length=said)
    return one, increments.pack(payloads)


class Judged:
    """Aggregates an epoch. `unsound` payloads are malformed."""

    def __init__(self, *rumours, leads=(), unsound=(), longest=math.inf):
        self.outputs, self.turns, self.jobs, self.moved = Outputs(), Exclusive(), [], []
        terms = {700: Terms("of 700", 1.0)}.__getitem__
        self.judging = RobustEpochs("median", self.turns, self.outputs, terms, lambda _: longest, self._judged, ME)
        self.judging.ready(Model.of(SCHEMA.to_bytes(), bytes(16), MOST_EXACT, 0, 0))
        for epoch, payloads in leads:
            self.judging.leads(epoch, "of 700", payloads)
        self.unsound = unsound
        self.judge(EPOCH, rumours)

    def judge(self, epoch, rumours=()):
        self.jobs.clear()
        self.judging.take(epoch, rumours)
        while self.outputs.jobs:
            job = self.outputs.jobs.popleft()
            self.jobs.append(job)
            if isinstance(job, jobs.MeasureEpoch):
                sound = tuple(bytes(term.payload) not in self.unsound for term in job.terms)
                result = jobs.Measured(sound, tuple(LENGTH * one for one in sound))
            else:
                result = jobs.EpochApplied(tuple(weight > 0.0 for weight in job.weights), LENGTH, 1 << job.chunk)
            self.judging.job_done(job, result)
        assert self.turns.idle

    def _judged(self, epoch, fingerprint):
        self.moved.append((epoch, fingerprint))

    def of(self, kind):
        return [event for event in self.outputs.events if isinstance(event, kind)]

    def terms(self, kind, chunk):
        [job] = [job for job in self.jobs if type(job) is kind and job.chunk == chunk]
        return [(term.row, bytes(term.payload)) for term in job.terms]

    @property
    def weights(self):
        return {job.weights for job in self.jobs if isinstance(job, jobs.ApplyEpoch)}


def test_all_chunks_are_measured_before_any_is_moved():
    made = Judged(rumour(b"a"), rumour(b"b", (b"ONE", b"", b"SIX")))
    kinds = ("MeasureEpoch", "ApplyEpoch")
    assert [(type(job).__name__, job.chunk) for job in made.jobs] == [(kind, n) for kind in kinds for n in range(3)]
    assert [made.terms(jobs.MeasureEpoch, n) for n in range(3)] == [
        [(0, b"one"), (1, b"ONE")], [(0, b"two")], [(0, b"six"), (1, b"SIX")]
    ]  # fmt: skip
    assert {(term.compressor, term.lr, term.weight, term.scale) for term in made.jobs[0].terms} == {
        ("of 700", 1.0, 0.25, 1.0)
    }
    assert {job.rule for job in made.jobs[3:]} == {"median"} and made.weights == {(0.25, 0.25)}
    assert made.moved == [(EPOCH, 0b111)]
    [event] = made.of(EpochJudged)
    assert (event.epoch, event.contributors, event.counted) == (EPOCH, 2, 2)
    assert event.movement == pytest.approx((27 / SCHEMA.size) ** 0.5)


def test_several_increments_of_one_origin_are_one_contributor():
    made = Judged(rumour(b"a", weight=0.125), rumour(b"a", sequence=1, weight=0.25), rumour(b"b"))
    assert made.weights == {(0.375, 0.25)}
    assert made.terms(jobs.ApplyEpoch, 0) == [(0, b"one"), (0, b"one"), (1, b"one")]


def test_increment_that_is_too_long_is_scaled():
    made = Judged(rumour(b"a"), longest=27**0.5 / 4)
    assert [term.scale for term in made.jobs[3].terms] == [pytest.approx(0.25)]
    [event] = made.of(IncrementApplied)
    assert event.scale == pytest.approx(0.25) and event.movement == pytest.approx((27 / SCHEMA.size) ** 0.5 / 4)


@pytest.mark.parametrize(
    "bad",
    [
        rumour(b"b", (b"one", b"bad", b"six"), sequence=1),
        rumour(b"b", length=6.0, sequence=1),
        (rumour(b"b", sequence=1)[0], (b"no", b"parts")),
    ],
    ids=["unreadable", "length", "parts"],
)
def test_origin_of_a_refused_increment_is_excluded(bad):
    made = Judged(rumour(b"a"), rumour(b"b"), bad, rumour(b"c"), unsound=(b"bad",))
    assert made.weights == {(0.25, 0.0, 0.25)}
    assert made.terms(jobs.ApplyEpoch, 2) == [(0, b"six"), (2, b"six")]
    assert made.of(UpdateRefused) == [UpdateRefused(b"b" * 32, "payload")]
    assert [event.origin for event in made.of(IncrementApplied)] == [b"a" * 32, b"c" * 32]
    assert [(event.contributors, event.counted) for event in made.of(EpochJudged)] == [(3, 2)]


def test_empty_increment_counts_as_standing_still():
    made = Judged(rumour(b"a"), rumour(b"b", (b"", b"", b""), length=0.0))
    assert made.weights == {(0.25, 0.25)} and made.terms(jobs.ApplyEpoch, 0) == [(0, b"one")]
    assert not made.of(UpdateRefused)


def test_own_increments_leave_the_lead_with_their_epoch_whether_counted_or_not():
    own = [(EPOCH - 1, [b"o", b"", b"d"]), (EPOCH, [b"own", b"", b"it"]), (EPOCH + 1, [b"next"] * 3)]
    made = Judged(rumour(b"a"), leads=own)
    assert [job.leads for job in made.jobs[3:]] == [
        (("of 700", b"o"), ("of 700", b"own")), (), (("of 700", b"d"), ("of 700", b"it"))
    ]  # fmt: skip
    made.judge(EPOCH + 1)
    assert [job.leads for job in made.jobs[3:]] == [(("of 700", b"next"),)] * 3, "its own rumour was not taken"
    made.judge(EPOCH + 2)
    assert made.jobs == [] and len(made.of(EpochJudged)) == 2


def test_new_state_has_no_lead():
    made = Judged(leads=[(EPOCH + 1, [b"own"] * 3)])
    made.judging.forget()
    made.judge(EPOCH + 1)
    assert made.jobs == []


def test_own_increments_emit_no_event():
    made = Judged((replace(rumour(b"a")[0], origin=ME), rumour(b"a")[1]))
    assert made.of(IncrementApplied) == [] and len(made.of(EpochJudged)) == 1


def test_epoch_is_aggregated_before_a_snapshot_that_waits():
    made, order = Judged(), []
    made.turns.busy = True
    made.turns.ask(lambda: order.append("snapshot") or False)
    made.judging.take(EPOCH, [rumour(b"a")])
    made.turns.over()
    assert order == [] and len(made.outputs.jobs) == 1
