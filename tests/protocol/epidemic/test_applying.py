"""An increment is inspected whole, cut to its bound and applied chunk by chunk."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from gossipdp.protocol import jobs
from gossipdp.protocol.epidemic import packing as increments
from gossipdp.protocol.epidemic.applying import Applying, length_of
from gossipdp.protocol.epidemic.exclusive import Exclusive
from gossipdp.protocol.epidemic.terms import Terms
from gossipdp.protocol.events import UpdateRefused
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.schema import MOST_EXACT
from tests.protocol.epidemic.increments import RUMOUR, SCHEMA

LENGTH = 3.0
"""length of each chunk's movement"""


class Applied:
    """Applies an increment with a payload for each of three chunks. `unsound` payloads are malformed."""

    def __init__(self, payloads, *, unsound=None, back=False, length=None, longest=math.inf, own=False):
        self.outputs, self.turns, self.moved = Outputs(), Exclusive(), 0
        self.jobs, self.ended = [], []
        self.rumour = replace(RUMOUR, length=length or length_of([LENGTH for payload in payloads if payload]))
        terms = Terms("of 700", 2.0)
        applying = Applying(self.turns, self.outputs, {700: terms}.__getitem__, lambda _: longest, self._applied)
        applying.ready(Model.of(SCHEMA.to_bytes(), bytes(16), MOST_EXACT, 0, 0))
        if own:
            applying.cut(self.rumour, increments.pack(payloads))
        else:
            applying.take(self.rumour, increments.pack(payloads), lambda: self.ended.append(len(self.jobs)), back=back)
        while self.outputs.jobs:
            job = self.outputs.jobs.popleft()
            self.jobs.append(job)
            applying.job_done(job, jobs.Inspected(job.chunk != unsound, LENGTH, isinstance(job, jobs.Apply)))

    def _applied(self, rumour, fingerprint):
        assert rumour == self.rumour and fingerprint == sum(isinstance(job, jobs.Apply) for job in self.jobs[-3:])
        self.moved += 1

    @property
    def asked(self):
        return [(type(job).__name__, job.chunk) for job in self.jobs]


def test_increment_is_inspected_whole_before_a_chunk_is_applied():
    made = Applied([b"one", b"two", b"six"])
    assert made.asked == [(kind, chunk) for kind in ("CheckIncrement", "Apply") for chunk in range(3)]
    assert {(job.compressor, job.lr, job.weight) for job in made.jobs} == {("of 700", 2.0, 0.25)}
    assert made.moved == 1 and made.turns.idle
    [event] = made.outputs.events
    assert (event.origin, event.weight) == (RUMOUR.origin, 0.25)
    assert event.movement == pytest.approx((27 / SCHEMA.size) ** 0.5)


@pytest.mark.parametrize("unsound", [0, 1, 2])
def test_increment_malformed_in_one_chunk_is_not_applied(unsound):
    made = Applied([b"one", b"two", b"six"], unsound=unsound)
    assert {kind for kind, _ in made.asked} == {"CheckIncrement"} and not made.moved and made.turns.idle
    assert list(made.outputs.events) == [UpdateRefused(RUMOUR.origin, "payload")]


def test_length_is_the_same_number_on_every_python():
    assert length_of([0.1 * number for number in range(1, 22)]).hex() == "0x1.7043a614cd54bp+2"


@pytest.mark.parametrize("length", [5.0, 6.0])
def test_increment_of_another_length_than_stated_is_refused(length):
    made = Applied([b"one", b"two", b"six"], length=length)
    assert {kind for kind, _ in made.asked} == {"CheckIncrement"} and not made.moved and made.turns.idle
    assert list(made.outputs.events) == [UpdateRefused(RUMOUR.origin, "payload")]


@pytest.mark.parametrize("back", [False, True])
def test_increment_longer_than_allowed_is_cut_and_taken_back_the_same(back):
    made = Applied([b"one", b"two", b"six"], longest=27**0.5 / 6.0, back=back)
    assert [job.bound for job in made.jobs[3:]] == pytest.approx([0.5] * 3)
    [event] = made.outputs.events
    assert event.scale == pytest.approx(1 / 6) and event.movement == pytest.approx((27 / SCHEMA.size) ** 0.5 / 6.0)
    assert [job.bound for job in Applied([b"one", b"two", b"six"], longest=6.0).jobs[3:]] == [math.inf] * 3


def test_own_increment_is_cut_as_other_peers_cut_it():
    made = Applied([b"one", b"", b"six"], longest=18**0.5 / 3.0, own=True)
    assert made.asked == [(kind, n) for kind in ("CheckIncrement", "Apply") * 2 for n in (0, 2)]
    assert [(job.back, job.bound) for job in made.jobs if isinstance(job, jobs.Apply)] == [
        (True, math.inf), (True, math.inf), (False, pytest.approx(1.0)), (False, pytest.approx(1.0)),
    ]  # fmt: skip
    assert not any(job.kept for job in Applied([b"one", b"", b"six"], longest=1.0).jobs[2:]), (
        "only its origin keeps the rest"
    )
    assert made.turns.idle and not made.outputs.events
    assert Applied([b"one", b"", b"six"], longest=18**0.5, own=True).jobs == [], "it is not too long"


@pytest.mark.parametrize(("scale", "kept"), [(0.75, 0.25), (0.5, 0.5), (0.25, 0.25), (1e-3, 1e-3), (0.0, 0.0)])
def test_rest_of_an_own_cut_returns_to_the_residual_up_to_what_has_moved(scale, kept):
    made = Applied([b"one", b"", b"six"], longest=scale * 18**0.5, own=True)
    said = [job.kept for job in made.jobs if isinstance(job, jobs.Apply)]
    assert said == [0.0, 0.0, pytest.approx(kept), pytest.approx(kept)]


def test_chunks_that_do_not_move_are_skipped():
    assert Applied([b"", b"two", b""]).asked == [("CheckIncrement", 1), ("Apply", 1)]
    still = Applied([b"", b"", b""])
    assert not still.jobs and still.turns.idle


@pytest.mark.parametrize(
    ("payloads", "unsound", "after"),
    [
        ([b"one", b"two", b"six"], None, 6),
        ([b"one", b"two", b"six"], 1, 2),
        ([b"", b"", b""], None, 0),
        ([b"one"], 0, 0),
    ],
)
def test_done_is_called_once_for_each_increment(payloads, unsound, after):
    assert Applied(payloads, unsound=unsound).ended == [after]


def test_increment_is_taken_back_by_an_apply_with_back():
    assert [job.back for job in Applied([b"one", b"", b"six"], back=True).jobs[2:]] == [True, True]
    assert [job.back for job in Applied([b"one", b"", b"six"]).jobs[2:]] == [False, False]
