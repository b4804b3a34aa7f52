"""Sessions, snapshots, outer steps and slots (algorithms section 1), job by job. Each test acts as compute thread."""

from pathlib import Path

import pytest

from gossipdp.protocol import jobs
from gossipdp.protocol.events import RoundDone, SessionOpened, SessionRefused, SlotSealed, SnapshotTaken
from gossipdp.protocol.model import Outer
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.rounds.rounds import Arrival, Done, Rounds, Snapshot
from gossipdp.protocol.rounds.states import ROUNDS, SLOTS, Action, Event, Phase, Slot, rounds_diagram
from gossipdp.protocol.transfer.claims import Live

CHUNKS = 3
OUTER = Outer(0.7, 0.8)
LIVE = Live(70, 0, 0)


class Thread:
    """Completes jobs one at a time on request, with canned results."""

    def __init__(self):
        self.outputs, self.ran, self.events = Outputs(), [], []
        self.rounds = Rounds(self.outputs)
        self.rounds.allocate(CHUNKS, 300)
        self.finite, self.slot, self.dirty = True, 0, (0,)
        self.replaced = jobs.Replaced(0.0, 1.0)
        self.done = []

    def run(self, count=1000):
        """Up to `count` jobs; returns those run."""
        ran = []
        while self.outputs.jobs and len(ran) < count:
            job = self.outputs.jobs.popleft()
            result = None
            if isinstance(job, jobs.Found | jobs.Check):
                result = jobs.Checked(self.finite)
            elif isinstance(job, jobs.OuterStep):
                result = jobs.Stepped(3.0, 12.0)
            elif isinstance(job, jobs.Attach):
                result = self.replaced
            elif isinstance(job, jobs.Seal):
                self.slot += 1
                result = jobs.Sealed(self.slot, self.dirty) if self.dirty else jobs.Sealed(0, ())
            ran.append(job)
            if done := self.rounds.job_done(job, result):
                self.done.append(done)
        self.events += self.outputs.events
        self.outputs.events.clear()
        self.ran += ran
        return [type(job).__name__ for job in ran]

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def training():
    thread = Thread()
    thread.rounds.attach(Arrival())
    thread.run()
    thread.events.clear()
    return thread


def submit(thread, snapshot=1, applied=0, session=None):
    return thread.rounds.submit(session or thread.rounds.session, Snapshot(snapshot, applied, OUTER, 50))


def test_attach_binds_copies_each_chunk_and_opens_a_session():
    thread = Thread()
    thread.rounds.attach(Arrival())
    assert thread.run() == ["Bind", "Attach", "Attach", "Attach"]
    assert [job.chunk for job in thread.ran[1:]] == [0, 1, 2]
    assert thread.events == [SessionOpened(1)] and thread.rounds.open


def test_session_tells_how_far_the_parameters_were_that_the_model_replaced():
    thread = Thread()
    thread.rounds.allocate(CHUNKS, 300, averaged=1)
    thread.replaced = jobs.Replaced(1.0, 4.0)
    for session in (1, 2):
        thread.rounds.attach(Arrival())
        thread.run()
        assert thread.of(SessionOpened)[-1] == SessionOpened(session, apart=0.5)


def test_attach_of_a_process_that_keeps_its_model_steps_the_anchor_to_it_before_the_session():
    thread = Thread()
    thread.rounds.attach(Arrival(keeps=LIVE))
    assert thread.run() == ["Bind"] + ["Check"] * 3 + ["OuterStep"] * 3 + ["Seal"]
    assert thread.done == [Done.KEPT, Done.ROUND] and thread.rounds.process.keeps == LIVE
    steps = [job for job in thread.ran if isinstance(job, jobs.OuterStep)]
    assert {(job.lr, job.momentum, job.applied, job.part) for job in steps} == {(1.0, 0.0, 0, 1.0)}
    opened, done, sealed = thread.events
    assert opened == SessionOpened(1, kept=True) and (done.round, done.clock) == (1, 70)
    assert sealed == SlotSealed(1, (0,)), "what an exchange has mixed meanwhile"


def test_process_that_would_keep_nan_gets_the_anchor():
    thread = Thread()
    thread.finite = False
    thread.rounds.attach(Arrival(keeps=LIVE))
    assert thread.run() == ["Bind", "Check"] + ["Attach"] * 3
    assert thread.events == [SessionOpened(1)] and thread.rounds.rounds == 0


def test_process_that_dies_while_its_model_is_checked_gets_no_anchor():
    thread = Thread()
    thread.finite = False
    thread.rounds.attach(Arrival(keeps=LIVE))
    thread.run(1)
    thread.rounds.detach()
    assert thread.run() == ["Check", "Unbind"] and not thread.events


def test_found_takes_each_chunk_and_opens_a_session():
    thread = Thread()
    thread.rounds.attach(Arrival(founds=True))
    assert thread.run() == ["Bind", "Found", "Found", "Found"]
    assert Done.FOUNDING in thread.done and thread.events == [SessionOpened(1)]


def test_found_with_nan_is_refused_and_may_be_tried_again():
    thread = Thread()
    thread.finite = False
    thread.rounds.attach(Arrival(founds=True))
    assert thread.run() == ["Bind", "Found"]
    assert [event.code for event in thread.of(SessionRefused)] == ["GD-402"] and not thread.done
    thread.rounds.detach()
    assert thread.run() == ["Unbind"]
    thread.finite = True
    thread.rounds.attach(Arrival(founds=True))
    thread.run()
    assert Done.FOUNDING in thread.done and thread.of(SessionOpened)


def test_submit_checks_every_chunk_before_it_steps_any_then_seals():
    thread = training()
    assert submit(thread)
    assert thread.run() == ["Check"] * 3 + ["OuterStep"] * 3 + ["Seal"]
    steps = [job for job in thread.ran if isinstance(job, jobs.OuterStep)]
    assert {(job.lr, job.momentum, job.applied) for job in steps} == {(0.7, 0.8, 0)}
    taken, done, sealed = thread.events
    assert taken == SnapshotTaken(1) and sealed == SlotSealed(1, (0,))
    assert isinstance(done, RoundDone) and (done.round, done.clock) == (1, 50)
    assert done.pseudo_gradient == pytest.approx((9.0 / 300) ** 0.5) and done.movement == pytest.approx(0.12**0.5)


def test_submit_with_nan_is_refused_and_nothing_is_stepped():
    thread = training()
    thread.finite = False
    thread.done.clear()
    assert submit(thread)
    assert thread.run() == ["Check"] and thread.events == [SnapshotTaken(1, "nan")]
    assert thread.rounds.rounds == 0 and not thread.done
    thread.finite = True
    assert submit(thread, 2)
    thread.run(3)
    assert thread.done == [Done.ACCEPTED], "what was done since counts once its snapshot is good"
    assert thread.rounds.snapshot.number == 2
    thread.run()
    assert thread.done == [Done.ACCEPTED, Done.ROUND]


@pytest.mark.parametrize("session", [99, -1])
def test_submit_of_another_session_is_refused(session):
    thread = training()
    assert not submit(thread, session=session)
    assert thread.run() == []


def test_submit_of_an_older_session_is_refused_after_a_new_attach():
    thread = training()
    thread.rounds.attach(Arrival())
    assert not submit(thread, session=1)
    thread.run()
    assert not submit(thread, session=1) and submit(thread, session=2)


def test_submit_during_a_round_is_refused():
    thread = training()
    submit(thread)
    thread.run(2)
    assert not submit(thread, 2)


def test_mixed_corrections_are_sealed_one_slot_at_a_time():
    thread = training()
    thread.rounds.mixed()
    thread.rounds.mixed()
    assert thread.run() == ["Seal"]
    thread.rounds.mixed()
    assert thread.run() == []
    thread.rounds.slot_applied(1, 1)
    assert thread.run() == ["Release", "Seal"]
    assert [event.slot for event in thread.of(SlotSealed)] == [1, 2]


def test_slot_is_sealed_only_after_new_corrections():
    thread = training()
    thread.dirty = ()
    thread.rounds.mixed()
    thread.run()
    assert not thread.of(SlotSealed)
    thread.dirty = (1,)
    thread.rounds.mixed()
    thread.run()
    assert [event.chunks for event in thread.of(SlotSealed)] == [(1,)]


def test_snapshot_without_the_slot_that_is_out_is_dropped():
    thread = training()
    thread.rounds.mixed()
    thread.run()
    assert not submit(thread, applied=0) and thread.run() == []
    thread.rounds.slot_applied(1, 1)
    assert submit(thread, applied=1)
    assert thread.run() == ["Release"] + ["Check"] * 3 + ["OuterStep"] * 3 + ["Seal"]


def test_slot_that_only_the_snapshot_names_is_released_after_its_round():
    thread = training()
    thread.rounds.mixed()
    thread.run()
    submit(thread, applied=1)
    assert thread.run() == ["Check"] * 3 + ["OuterStep"] * 3 + ["Release", "Seal"]


@pytest.mark.parametrize(("session", "slot"), [(2, 1), (1, 2), (1, 0)])
def test_slot_applied_that_is_not_out_is_ignored(session, slot):
    thread = training()
    thread.rounds.mixed()
    thread.run()
    thread.rounds.slot_applied(session, slot)
    assert thread.run() == []


@pytest.mark.parametrize("after", range(6))
def test_attach_during_a_round_waits_until_it_has_ended(after):
    thread = training()
    submit(thread)
    thread.run(after)
    thread.rounds.detach()
    thread.rounds.attach(Arrival())
    names = thread.run()
    assert names.count("OuterStep") + sum(isinstance(job, jobs.OuterStep) for job in thread.ran[: -len(names)]) == 3
    assert names[-4:] == ["Bind", "Attach", "Attach", "Attach"] and "Unbind" not in names
    assert thread.rounds.session == 2 and thread.rounds.rounds == 1


@pytest.mark.parametrize("after", range(8))
def test_detach_during_a_round_finishes_it_and_then_unbinds(after):
    thread = training()
    submit(thread)
    thread.run(after)
    thread.rounds.detach()
    names = thread.run()
    assert names[-1] == "Unbind" and thread.rounds.rounds == 1 and not thread.rounds.open
    thread.rounds.mixed()
    assert thread.run() == []


@pytest.mark.parametrize("after", range(4))
def test_attach_during_an_attach_begins_anew_and_opens_one_session(after):
    thread = Thread()
    thread.rounds.attach(Arrival())
    thread.run(after)
    thread.rounds.detach()
    thread.rounds.attach(Arrival())
    names = thread.run()
    assert names[-4:] == ["Bind", "Attach", "Attach", "Attach"]
    assert thread.of(SessionOpened) == [SessionOpened(1)]


@pytest.mark.parametrize("after", range(4))
def test_detach_during_an_attach_opens_no_session(after):
    thread = Thread()
    thread.rounds.attach(Arrival())
    thread.run(after)
    thread.rounds.detach()
    assert thread.run()[-1] == "Unbind"
    assert not thread.of(SessionOpened)


def test_detach_before_a_bind_requests_no_job():
    """The vectors may not exist yet, because a training process may die while it waits for the model."""
    thread = Thread()
    thread.rounds.detach()
    assert thread.run() == []


def test_attach_while_a_slot_is_being_sealed_waits_and_hands_out_nothing_of_the_old_session():
    thread = training()
    thread.rounds.mixed()
    thread.rounds.detach()
    thread.rounds.attach(Arrival())
    assert thread.run()[0] == "Seal"
    assert thread.of(SessionOpened) == [SessionOpened(2)] and not thread.of(SlotSealed)
    thread.rounds.mixed()
    thread.run()
    assert len(thread.of(SlotSealed)) == 1


def test_mixed_while_attaching_is_handed_out_when_the_session_is_open():
    thread = Thread()
    thread.rounds.attach(Arrival())
    thread.run(2)
    thread.rounds.mixed()
    thread.run()
    assert [type(event) for event in thread.events] == [SessionOpened, SlotSealed]


def test_process_gone_while_it_founds_with_nan__its_buffers_are_let_go():
    thread = Thread()
    thread.finite = False
    thread.rounds.attach(Arrival(founds=True))
    thread.run(1)
    thread.rounds.detach()
    assert thread.run() == ["Found", "Unbind"] and not thread.events and thread.rounds.at_rest


def test_process_replaced_while_the_anchor_moves_to_it__round_has_its_own_clock_and_movement():
    thread = Thread()
    thread.rounds.attach(Arrival(keeps=LIVE))
    thread.run(5)
    thread.rounds.attach(Arrival(keeps=LIVE._replace(clock=90)))
    thread.run()
    first, second = thread.of(RoundDone)
    assert (first.clock, second.clock) == (70, 90) and first.movement == second.movement > 0.0
    assert thread.of(SessionOpened) == [SessionOpened(1, kept=True)]


def test_mixed_while_a_slot_without_chunks_is_sealed__sealed_next():
    thread = training()
    thread.dirty = ()
    thread.rounds.mixed()
    thread.rounds.mixed()
    assert thread.run() == ["Seal", "Seal"] and thread.rounds.handed_out


PAGE = Path(__file__).resolve().parents[3] / "docs/design/algorithms.md"


def test_page_shows_the_tables():
    text = PAGE.read_text().split("<!-- rounds -->")[1].split("<!-- /rounds -->")[0]
    assert text.strip() == f"```mermaid\n{rounds_diagram()}\n```"


def test_every_state_event_and_action_of_the_tables_is_used():
    rows = [*ROUNDS.items(), *SLOTS.items()]
    assert {state for _, (state, _) in rows} == {*Phase, *Slot} == {state for (state, _), _ in rows}
    assert {event for (_, event), _ in rows} == {*Event}
    assert {action for _, (_, action) in rows} - {None} == {*Action}


WAITING = Outer(1.0, 0.8, waits=True)


def step(thread, number, outer):
    thread.rounds.submit(thread.rounds.session, Snapshot(number, thread.slot, outer, 50 * number))
    return thread.run()


def test_correction_that_waits_goes_out_with_the_first_exchange():
    thread = training()
    assert "Seal" not in step(thread, 1, WAITING) and thread.rounds.waits and not thread.rounds.handed_out
    thread.rounds.mixed()
    assert thread.run() == ["Seal"] and not thread.rounds.waits and thread.rounds.handed_out


def test_correction_of_a_round_without_an_exchange_to_wait_for_goes_out():
    thread = training()
    step(thread, 1, WAITING)
    thread.rounds.waits_no_more()
    assert thread.run() == ["Seal"] and not thread.rounds.waits


def test_correction_waits_for_one_round_at_most():
    thread = training()
    step(thread, 1, WAITING)
    assert step(thread, 2, WAITING)[-1] == "Seal" and not thread.rounds.waits


def test_corrections_of_an_exchange_that_ends_during_the_pass_do_not_wait():
    thread = training()
    thread.rounds.submit(thread.rounds.session, Snapshot(1, 0, WAITING, 50))
    thread.run(CHUNKS + 1)
    thread.rounds.mixed()
    assert thread.run()[-1] == "Seal" and not thread.rounds.waits


def test_process_that_replaces_another_waits_for_nothing():
    thread = training()
    step(thread, 1, WAITING)
    thread.rounds.attach(Arrival())
    thread.run()
    assert not thread.rounds.waits and not thread.of(SlotSealed)
    thread.rounds.mixed()
    assert thread.run() == ["Seal"]
