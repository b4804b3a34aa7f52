"""A daemon comes back to a training process that outlived it. The process's model stands for election."""

import pytest

from gossipdp.protocol import jobs
from gossipdp.protocol.events import SessionOpened, SessionRefused, StateReady, TookOver, WeightsLoaded
from gossipdp.protocol.transfer.claims import Live
from gossipdp.protocol.wire.messages import Has, Progress, Standing, StateRequest
from tests.protocol.transfer.bootstrap_rig import HEARD, HELD, RESUME, SCHEMA, A, C, Returning

LIVE = Live(clock=150, steps=40, samples=320)
NEAR = 10
"""Steps of two rounds. A member's model must be further than this to go before a live process's."""


class Surviving(Returning):
    """Peer B, whose training process attaches at once."""

    def __init__(self, live=LIVE, **options):
        super().__init__(**options)
        if live is not None:
            self.attach(live)

    def attach(self, live):
        self.peer.attach(SCHEMA.to_bytes(), self.now, live=live)
        self.collect()

    def detach(self):
        self.peer.detach(self.now)
        self.collect()

    def work(self, *, finite=True):
        """Carry out all jobs but Restore."""
        while pending := [job for job in self.asked if not isinstance(job, jobs.Restore)]:
            self.asked.remove(pending[0])
            result = jobs.Checked(finite) if isinstance(pending[0], jobs.Found | jobs.Check) else None
            if isinstance(pending[0], jobs.Attach):
                result = jobs.Replaced(0.0, 1.0)
            if isinstance(pending[0], jobs.OuterStep):
                result = jobs.Stepped(1.0, 1.0)
            self.peer.job_done(
                pending[0], jobs.Sealed(0, ()) if isinstance(pending[0], jobs.Seal) else result, self.now
            )
            self.collect()

    def restore(self, clock=HELD.clock):
        self.asked.remove(jobs.Restore())
        self.peer.job_done(jobs.Restore(), jobs.Restored(SCHEMA.to_bytes(), clock, 10), self.now)
        self.collect()

    @property
    def takes_over(self):
        return jobs.Allocate(SCHEMA.size, SCHEMA.trainable, 8192, SCHEMA.tensors) in self.asked

    def came(self):
        """Origin and clock of the model, and whether the process keeps its parameters."""
        ready = [(event.origin, event.clock) for event in self.events if isinstance(event, StateReady)]
        return ready, [event.kept for event in self.events if isinstance(event, SessionOpened)]


def test_peer_alone_takes_over_the_live_process_before_the_checkpoint():
    b = Surviving(remembered=())
    b.run(RESUME - 0.2)
    assert not b.takes_over
    b.run(RESUME + 0.4)
    assert b.takes_over and b.restores == 0
    b.work()
    assert b.came() == ([("taken over", 150)], [True])
    assert [event for event in b.events if isinstance(event, TookOver)] == [TookOver(150, 40, 100)]
    mine = b.peer.view.own_progress
    assert (b.peer.view.clock, mine.clock, mine.steps, mine.samples, b.peer.view.model_rounds) == (
        150,
        150,
        40,
        320,
        10,
    )


def test_peer_that_took_over_a_live_process_restores_and_fetches_nothing():
    b = Surviving(remembered=())
    b.run(RESUME + 0.4)
    b.work()
    b.meet(C)
    b.says(C, Has.MODEL, LIVE.clock + NEAR + 1, 3)
    b.run(b.now + 1.0)
    assert b.restores == 0 and not b.of(StateRequest)


@pytest.mark.parametrize(("behind", "kept"), [(0, True), (NEAR, True), (NEAR + 1, False)])
def test_checkpoint_later_than_the_live_process_by_more_than_two_rounds_is_restored(behind, kept):
    b = Surviving(Live(HELD.clock - behind, 5, 5), remembered=())
    b.run(RESUME + 0.4)
    assert b.takes_over == kept and b.restores == (not kept)


@pytest.mark.parametrize(("has", "rounds"), [(Has.MODEL, 3), (Has.CHECKPOINT, 3)])
@pytest.mark.parametrize(("ahead", "kept"), [(-50, True), (NEAR, True), (NEAR + 1, False)])
def test_member_with_a_model_or_checkpoint_goes_before_the_live_process_only_if_it_is_further(has, rounds, ahead, kept):
    b = Surviving(remembered=(C,))
    b.meet(C)
    b.says(C, has, LIVE.clock + ahead, rounds)
    b.run(HEARD + 1.0)
    assert b.takes_over == kept and b.restores == 0
    assert bool(b.of(StateRequest, to=C)) == (not kept and has is Has.MODEL)


def test_claim_rises_with_the_live_process_and_falls_when_it_dies():
    b = Returning(remembered=(C,))
    b.meet(C)
    b.says(C, Has.NOTHING, reply=True)
    b.peer.attach(SCHEMA.to_bytes(), b.now, live=LIVE)
    b.says(C, Has.NOTHING, reply=True)
    b.peer.detach(b.now)
    b.says(C, Has.NOTHING, reply=True)
    assert [(said.clock, said.number) for said in b.of(Standing, to=C) if not said.reply] == [
        (100, 0),
        (150, 1),
        (100, 2),
    ]


def test_claim_that_rose_and_fell_is_believed_in_the_order_of_its_numbers():
    b = Returning(remembered=(C,))
    b.meet(C)
    b.tell(C, Standing(1, Has.CHECKPOINT, 90, 9, False, 0))
    b.tell(C, Standing(1, Has.CHECKPOINT, 150, 9, False, 1))
    b.run(HEARD + 1.0)
    assert b.restores == 0, "it is waited for"
    b.tell(C, Standing(1, Has.CHECKPOINT, 90, 9, False, 2))
    b.tell(C, Standing(1, Has.CHECKPOINT, 150, 9, False, 1))  # comes late
    b.run(b.now + 0.5)
    assert b.restores == 1


def test_checkpoint_is_restored_if_the_live_process_dies_while_others_are_heard():
    b = Surviving(remembered=())
    b.run(RESUME / 2)
    b.detach()
    b.run(RESUME + 0.4)
    assert b.restores == 1 and not b.takes_over


def test_model_is_here_if_the_live_process_dies_while_it_is_taken_over():
    b = Surviving(remembered=())
    b.run(RESUME + 0.4)
    b.detach()
    b.work()
    assert b.came() == ([("taken over", 150)], [])


def test_checkpoint_is_restored_for_a_live_process_with_nan():
    b = Surviving(remembered=())
    b.run(RESUME + 0.4)
    b.work(finite=False)
    b.run(b.now + 0.5)
    assert b.restores == 1 and not [event for event in b.events if isinstance(event, SessionRefused)]
    b.restore()
    b.work()
    assert b.came() == ([("restored", 100)], [False])


@pytest.mark.parametrize(("clock", "kept"), [(150, True), (95, True), (89, False)])
def test_live_process_that_comes_after_the_checkpoint_was_restored_keeps_its_parameters_if_it_is_near(clock, kept):
    """The process makes long steps, or it was stopped."""
    b = Surviving(None, remembered=())
    b.run(RESUME + 0.4)
    b.restore()
    b.work()
    b.detach()
    b.attach(Live(clock, 40, 320))
    b.work()
    assert b.came() == ([("restored", 100)], [kept])
    mine = b.peer.view.own_progress
    assert (mine.clock, mine.steps) == ((max(clock, 100), 40) if kept else (100, 0))
    assert b.peer.view.state_clock == b.peer.view.clock, "what joiners are given is as new as the process's parameters"


def test_live_process_of_a_peer_without_a_checkpoint_is_taken_over_once_others_were_heard():
    b = Surviving(held=None, remembered=(A, C))
    b.meet(A, C)
    b.says(A, Has.NOTHING)
    b.says(C, Has.NOTHING)
    b.run(HEARD + 1.0)
    assert b.takes_over
    b.work()
    assert b.came() == ([("taken over", 150)], [True])


def test_live_process_of_a_peer_that_knows_no_other_is_taken_over_at_once():
    b = Surviving(None, remembered=(), addresses=())
    b.run(1.0)
    assert b.restores == 0
    b.attach(LIVE)
    assert b.takes_over


def loads(*, trains):
    """Peer B with the weights that its script has loaded, beside C, which trains or does not."""
    b = Surviving(None, remembered=())
    b.run(RESUME + 0.4)
    b.restore()
    b.work()
    b.meet(C)
    if trains:
        b.peer._progress.merge([Progress(C, 100, 50, 400, 5)])
    b.detach()
    b.attach(Live(100, 40, 320, loaded=True))
    b.work()
    return b


def test_weights_that_the_script_loaded_become_the_model_if_no_other_peer_trains():
    b = loads(trains=False)
    assert b.came() == ([("restored", 100)], [True]) and not b.of(StateRequest)
    assert [event for event in b.events if isinstance(event, WeightsLoaded)] == [WeightsLoaded(True)]


def test_weights_that_the_script_loaded_give_way_to_the_model_of_a_peer_that_trains():
    """This peer's own anchor may hold what the script has undone, such as the steps of a range test."""
    b = loads(trains=True)
    b.run(b.now + 1.0)
    assert b.came() == ([("restored", 100)], []) and b.of(StateRequest, to=C)


def test_weights_that_the_script_loaded_give_way_to_the_own_model_if_no_peer_gives_another():
    b = loads(trains=True)
    for _ in range(3):
        b.run(b.now + 60.0)
        b.work()
    assert b.came() == ([("restored", 100)], [False])
    assert [event for event in b.events if isinstance(event, WeightsLoaded)] == [WeightsLoaded(False)]
