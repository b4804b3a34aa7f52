"""Passes over all chunks with several jobs asked for at once, as with several compute threads."""

from typing import Any

import pytest

from gossipdp.protocol import jobs
from gossipdp.protocol.events import RoundDone, SessionOpened, SessionRefused, SnapshotTaken
from gossipdp.protocol.model import Outer
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.rounds.rounds import Arrival, Done, Rounds, Snapshot

CHUNKS = 5
OUTER = Outer(0.7, 0.8)


class Thread:
    """Completes jobs in order, and refuses the values of the chunks `bad`."""

    def __init__(self, ahead: int) -> None:
        self.outputs = Outputs()
        self.rounds = Rounds(self.outputs, ahead=ahead)
        self.rounds.allocate(CHUNKS, 300)
        self.bad: set[int] = set()
        self.most = 0
        self.done: list[Done | None] = []

    def run(self) -> list[tuple[str, int]]:
        """Run all jobs. Returns kind and chunk of those on one chunk."""
        ran = []
        while self.outputs.jobs:
            self.most = max(self.most, sum(hasattr(job, "chunk") for job in self.outputs.jobs))
            job = self.outputs.jobs.popleft()
            chunk = getattr(job, "chunk", -1)
            result: Any = jobs.Sealed(0, ()) if isinstance(job, jobs.Seal) else None
            if isinstance(job, jobs.Found | jobs.Check):
                result = jobs.Checked(chunk not in self.bad)
            elif isinstance(job, jobs.OuterStep):
                result = jobs.Stepped(3.0, 12.0)
            elif isinstance(job, jobs.Attach):
                result = jobs.Replaced(1.0, 4.0)
            if chunk >= 0:
                ran.append((type(job).__name__, chunk))
            self.done.append(self.rounds.job_done(job, result))
        return ran

    def events(self) -> list[Any]:
        events = list(self.outputs.events)
        self.outputs.events.clear()
        return events


def whole(kind: str) -> list[tuple[str, int]]:
    return [(kind, chunk) for chunk in range(CHUNKS)]


@pytest.mark.parametrize("ahead", [1, 2, 4, 9])
def test_round_is_one_pass_of_checks_and_then_one_of_steps(ahead: int) -> None:
    thread = Thread(ahead)
    thread.rounds.attach(Arrival())
    assert thread.run() == whole("Attach")
    assert [type(event) for event in thread.events()] == [SessionOpened]
    assert thread.rounds.submit(1, Snapshot(1, 0, OUTER, 50))
    assert thread.run() == [*whole("Check"), *whole("OuterStep")]
    taken, done = thread.events()
    assert isinstance(taken, SnapshotTaken) and isinstance(done, RoundDone) and Done.ROUND in thread.done
    assert done.movement == pytest.approx((CHUNKS * 12.0 / 300) ** 0.5)
    assert thread.most == min(ahead, CHUNKS)


@pytest.mark.parametrize("ahead", [1, 2, 4, 9])
@pytest.mark.parametrize("bad", [{0}, {1, 2}, {CHUNKS - 1}])
def test_snapshot_that_is_not_finite__refused_once_when_its_last_job_is_done(ahead: int, bad: set[int]) -> None:
    thread = Thread(ahead)
    thread.rounds.attach(Arrival())
    thread.run()
    thread.events()
    thread.bad = bad
    assert thread.rounds.submit(1, Snapshot(1, 0, OUTER, 50))
    ran = thread.run()
    assert ran == whole("Check")[: min(CHUNKS, min(bad) + ahead)]
    assert [(event.snapshot, event.refused) for event in thread.events()] == [(1, "nan")]
    thread.bad = set()
    assert thread.rounds.submit(1, Snapshot(2, 0, OUTER, 100))
    assert thread.run() == [*whole("Check"), *whole("OuterStep")]


def test_model_to_found_with_that_is_not_finite__refused_once() -> None:
    thread = Thread(ahead=3)
    thread.bad = {1, 3}
    thread.rounds.attach(Arrival(founds=True))
    assert thread.run() == whole("Found")[:4]
    assert [type(event) for event in thread.events()] == [SessionRefused]
    assert Done.FOUNDING not in thread.done
