"""Rounds that publish an increment."""

from __future__ import annotations

import pytest

from gossipdp.protocol import jobs
from gossipdp.protocol.events import RoundDone, SessionOpened, SnapshotTaken
from gossipdp.protocol.model import Outer
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.rounds.rounds import Rounds


class Steps:
    """A strategy that publishes what the test says."""

    def __init__(self):
        self.run = None
        self.told, self.ended = [], 0

    def begin(self, run):
        self.run = run

    def job(self, chunk, applied):
        return jobs.Publish(chunk, "topk64", 1.0, 0.95, 0.5, applied, 7)

    def published(self, chunk, result):
        self.told.append((chunk, result.payload))

    def end(self):
        self.ended += 1


class Training:
    def __init__(self):
        self.outputs, self.steps = Outputs(), Steps()
        self.rounds = Rounds(self.outputs, self.steps)
        self.rounds.allocate(2, 100)
        self.rounds.attach(found=False)
        self.work()

    def work(self):
        """Carry out all jobs, and return them."""
        done = []
        while self.outputs.jobs:
            job = self.outputs.jobs.popleft()
            done.append(job)
            result = None
            match job:
                case jobs.Check():
                    result = jobs.Checked(True)
                case jobs.Publish(chunk):
                    result = jobs.Published(b"%d" % chunk, 3.0, 8.0)
                case jobs.Seal():
                    result = jobs.Sealed(1, (0,))
            self.rounds.job_done(job, result)
        return done

    def events(self, kind):
        return [event for event in self.outputs.events if isinstance(event, kind)]


def test_round_waits_for_its_turn_and_takes_published_like_stepped():
    training = Training()
    assert training.events(SessionOpened)
    assert training.rounds.submit(1, 1, 0, Outer(0.7, 0.8), 50)
    training.work()
    assert not training.events(SnapshotTaken), "other operations run"
    training.steps.run(Outer(1.0, 0.0))
    assert [job.chunk for job in training.work() if isinstance(job, jobs.Publish)] == [0, 1]
    assert training.steps.told == [(0, b"0"), (1, b"1")] and training.steps.ended == 1
    [done] = training.events(RoundDone)
    assert (done.lr, done.momentum) == (1.0, 0.0)
    assert done.pseudo_gradient == pytest.approx(0.4) and done.movement == pytest.approx((18 / 100) ** 0.5)


def test_skipped_round_frees_the_snapshot_and_does_not_count():
    training = Training()
    training.rounds.submit(1, 1, 0, Outer(0.7, 0.8), 50)
    training.work()
    training.steps.run(None)
    assert training.events(SnapshotTaken) == [SnapshotTaken(1)]
    assert not training.events(RoundDone)
    assert training.rounds.submit(1, 2, 0, Outer(0.7, 0.8), 100), "the next one is"
