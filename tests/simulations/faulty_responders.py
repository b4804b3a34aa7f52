"""Faults of the two sides of an exchange that the invariants must notice."""

from dataclasses import replace

import pytest

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.protocol import jobs
from gossipdp.protocol.pairwise.responder import Responder


def forget_mixed_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The responder voids a chunk although it has mixed it."""
    original = Responder.job_done

    def job_done(self, job, turn, now):
        original(self, job, turn, now)
        if turn.mixed:
            del self._mixed[job.key.chunk]
            self._void.add(job.key.chunk)

    monkeypatch.setattr(Responder, "job_done", job_done)


def reopen_mixed_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The responder opens a chunk anew although it has mixed it."""
    original = Responder._open_chunk

    def open_chunk(self, number, ranges):
        if number not in self._open:
            self._mixed.pop(number, None)
        original(self, number, ranges)

    monkeypatch.setattr(Responder, "_open_chunk", open_chunk)


def mix_less_than_the_responder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The initiator mixes with a hundredth less of its share."""
    original = Pairwise.run

    def run(self, job):
        if isinstance(job, jobs.Mix):
            job = replace(job, share=job.share * 0.99)
        return original(self, job)

    monkeypatch.setattr(Pairwise, "run", run)
