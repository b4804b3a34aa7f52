"""The units of `epidemic`: exclusive operations, parts of a payload, shares, applying, and rounds."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gossipdp.protocol import jobs
from gossipdp.protocol.epidemic import packing as increments
from gossipdp.protocol.epidemic.applying import Applying, length_of
from gossipdp.protocol.epidemic.config import EpidemicConfig
from gossipdp.protocol.epidemic.epidemic import EpidemicStrategy
from gossipdp.protocol.epidemic.events import EpochClosed
from gossipdp.protocol.epidemic.exclusive import Exclusive
from gossipdp.protocol.epidemic.shares import Shares
from gossipdp.protocol.epidemic.signing import make
from gossipdp.protocol.epidemic.terms import Terms
from gossipdp.protocol.events import RoundDone, SessionOpened, SnapshotTaken, UpdateRefused
from gossipdp.protocol.membership.config import MembershipConfig
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.model import Model, Outer
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.rounds.rounds import Rounds
from gossipdp.protocol.schema import MOST_EXACT, Schema
from gossipdp.protocol.wire.epidemic_messages import MAX_PARTS, NO_RUN, Rumour
from gossipdp.protocol.wire.messages import Member, State
from tests.protocol.surroundings import surroundings

# -- exclusive operations ---------------------------------------------------------------------------------------------


def test_one_operation_runs_at_a_time_and_those_ahead_come_first():
    turns, begun = Exclusive(), []

    def wanting(name, *, works=True):
        def begin():
            begun.append(name)
            return works

        return begin

    turns.ask(wanting("round"))
    turns.ask(wanting("freeze"))
    turns.ask(wanting("nothing to do", works=False), ahead=True)
    turns.ask(wanting("increment"), ahead=True)
    assert begun == ["round"] and turns.busy and not turns.idle
    turns.over()
    assert begun == ["round", "nothing to do", "increment"]
    turns.over()
    assert begun[-1] == "freeze"
    turns.over()
    assert turns.idle


def test_operation_asked_for_while_another_begins_waits():
    turns, begun = Exclusive(), []

    def begin():
        turns.ask(lambda: begun.append("second") or True)
        begun.append("first")
        return True

    turns.ask(begin)
    assert begun == ["first"]
    turns.over()
    assert begun == ["first", "second"]


# -- parts of a payload -----------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=200))
def test_payloads_of_all_chunks_come_back_from_few_parts(payloads):
    parts = increments.pack(payloads)
    assert 1 <= len(parts) <= MAX_PARTS and all(parts)
    assert [bytes(payload) for payload in increments.unpack(parts, len(payloads))] == payloads
    assert increments.unpack(parts, len(payloads) + MAX_PARTS) is None


@given(st.lists(st.binary(max_size=30), max_size=4), st.integers(1, 130))
def test_arbitrary_parts_are_refused_or_hold_a_payload_for_each_chunk(parts, chunks):
    payloads = increments.unpack(parts, chunks)
    assert payloads is None or (len(payloads) == chunks and increments.pack(payloads) == parts)


def test_largest_payloads():
    assert increments.fit(60, (1 << 20) - 4) and not increments.fit(60, 1 << 20)
    assert increments.fit(120, (1 << 19) - 4) and not increments.fit(121, (1 << 19) - 4)


# -- shares -----------------------------------------------------------------------------------------------------------


def closed(shares, first, *epochs):
    for epoch, (samples, origins) in enumerate(epochs, first):
        shares.closed(EpochClosed(epoch, bytes(16), origins, samples, origins, -(-samples // max(1, origins))))


def test_before_the_first_closed_epoch_all_count_as_equally_fast():
    assert Shares(50).of(800, 50, 4) == 0.25


def test_shares_follow_samples_a_step_for_any_length_of_rounds():
    shares = Shares(50)
    closed(shares, 3, (4000, 3), (4000, 3))
    assert shares.of(1000, 50, 3) == shares.of(2000, 100, 3) == shares.of(500, 25, 3) == 0.25


def test_epoch_without_a_round_counts_but_not_those_before_the_first_increment():
    shares = Shares(50)
    closed(shares, 3, (0, 0), (0, 0), (4000, 2), (0, 0))
    assert shares.of(2000, 100, 2) == 0.5


def test_newcomer_counts_as_one_of_average_speed():
    shares = Shares(50)
    closed(shares, 3, (1000, 1))
    assert shares.of(1000, 50, 1) == 1.0
    assert shares.of(1000, 50, 2) == 0.5


def test_epoch_with_part_of_a_newcomers_samples_does_not_enlarge_shares():
    """A network of four forms: one peer, then three more with short rounds, then all with whole rounds.

    Without the rule each of the four had share 1 after the third epoch, which moved the model four times too far.
    """
    shares, told = Shares(30), []
    for epoch, (samples, origins) in enumerate([(100, 1), (120, 1), (80, 4), (480, 4), (480, 4), (480, 4)]):
        shares.closed(EpochClosed(epoch, bytes(16), origins, samples, origins, -(-samples // max(1, origins))))
        told.append(shares.of(120, 30, 4))
    assert all(0.2 <= share <= 0.3 for share in told), told


def test_newcomers_one_after_the_other_count_as_of_average_speed():
    shares = Shares(30)
    for epoch, (samples, origins) in enumerate([(120, 1), (140, 2), (260, 3), (380, 4)]):
        shares.closed(EpochClosed(epoch, bytes(16), origins, samples, origins, -(-samples // max(1, origins))))
        assert shares.of(120, 30, 5) == pytest.approx(0.2)
    shares.closed(EpochClosed(4, bytes(16), 4, 480, 4, 120))
    assert shares.of(120, 30, 4) == 0.25


@pytest.mark.parametrize("lie", [1000, 1 << 40])
def test_claims_of_a_member_alone_in_an_epoch_leave_the_other_shares(lie):
    shares = Shares(50)
    closed(shares, 3, (3000, 3), (3000, 3), (lie, 1), (3000, 3))
    assert shares.of(1000, 50, 3) > 0.08


def test_member_that_skipped_an_epoch_is_no_newcomer():
    shares = Shares(50)
    closed(shares, 3, (2000, 2), (1000, 1), (2000, 2))
    assert shares.of(1000, 50, 2) == pytest.approx(0.6)


@given(st.integers(0, 10**9), st.integers(-5, 10**6), st.integers(1, 100), st.integers(0, 10**9))
def test_share_is_above_zero_and_at_most_one(samples, steps, members, total):
    shares = Shares(50)
    closed(shares, 3, (total, min(total, 5)))
    assert 0.0 < shares.of(samples, steps, members) <= 1.0


# -- received increments ----------------------------------------------------------------------------------------------


SCHEMA = Schema.of([("w", (2 * 8192 + 9,), "float32", "parameter")])
RUMOUR = Rumour(b"o" * 32, 1, 7, 0, 0.25, 700, 10, 1, 1, bytes(32), bytes(64))
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


# -- members ----------------------------------------------------------------------------------------------------------


class Members:
    """Stands in for the membership of an `EpidemicStrategy`."""

    config = MembershipConfig()

    def __init__(self):
        self.me, self.members = Member(b"m" * 32, "me", "", 1, 0, State.ALIVE), {}

    def alive(self):
        return list(self.members.values())

    def reaches(self, peer):
        return True


def test_nothing_is_kept_of_members_that_leave():
    members, random = Members(), Random(1)
    strategy = EpidemicStrategy(
        EpidemicConfig(), surroundings(members, progress=ProgressBoard(members.me.id), random=random)
    )
    for number in range(10_000):
        peer = number.to_bytes(32, "big")
        came = Member(peer, "p", "", 1, 0, State.ALIVE)
        members.members = {peer: came}
        strategy.member_changed(came, 0.0)
        strategy._increment_applied(replace(RUMOUR, origin=peer, clock=number), 0)
        strategy._outputs.messages.clear()
    assert len(strategy._newest) == 1


@pytest.mark.parametrize(("size", "told"), [(100, []), (100_000, ["size"])])
def test_increment_longer_than_the_model_can_have_is_refused(size, told):
    members = Members()
    members.members = {RUMOUR.origin: Member(RUMOUR.origin, "o", "", 1, 0, State.ALIVE)}
    strategy = EpidemicStrategy(
        EpidemicConfig(), surroundings(members, progress=ProgressBoard(members.me.id), random=Random(1))
    )
    strategy.ready(Model.of(SCHEMA.to_bytes(), bytes(16), MOST_EXACT, 0, 0), None, 50)
    strategy.reputation_changed(0.0)
    header, table = make(replace(RUMOUR, epoch=2, clock=100), [bytes(size)], NO_RUN, lambda data: bytes(64))
    strategy.receive(header, [table], RUMOUR.origin, len(table), 0.0)
    refused = [event for event in strategy._outputs.events if isinstance(event, UpdateRefused)]
    assert [(event.peer, event.reason) for event in refused] == [(RUMOUR.origin, reason) for reason in told]


def weights(*rounds):
    """p of rounds of the given (samples, own steps, steps of the network's clock), at a peer that is not alone."""
    members, clock, told = Members(), 0, []
    strategy = EpidemicStrategy(
        EpidemicConfig(), surroundings(members, progress=ProgressBoard(members.me.id), random=Random(1))
    )
    strategy.ready(Model.of(SCHEMA.to_bytes(), bytes(16), MOST_EXACT, 0, 0), None, 0)
    strategy.freeze(lambda: True)
    strategy.frozen()
    closed(strategy._shares, 3, (4000, 4), (4000, 4))
    for samples, steps, network in rounds:
        clock += network
        strategy.submitted(samples, steps, clock)
        strategy.steps.begin(lambda outer: told.append(strategy.steps.increment.weight))
        strategy.steps.increment = None
        strategy._exclusive.over()
    return told


@pytest.mark.parametrize("rounds", [[(1000, 50, 50)] * 4, [(1000, 50, 0)] * 4, [(1000, 50, 0), (1000, 50, 50)] * 2])
def test_share_does_not_grow_while_the_networks_clock_stands_still(rounds):
    assert weights(*rounds) == [0.25] * 4


# -- rounds that publish ----------------------------------------------------------------------------------------------


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


def test_operations_never_overlap_in_random_orders():
    random, turns = Random(5), Exclusive()
    running, most = [0], [0]

    def begin():
        running[0] += 1
        most[0] = max(most[0], running[0])
        return True

    asked = done = 0
    for _ in range(500):
        if random.random() < 0.5:
            asked += 1
            turns.ask(begin, ahead=random.random() < 0.5)
        elif turns.busy:
            running[0] -= 1
            done += 1
            turns.over()
    while turns.busy:
        running[0] -= 1
        done += 1
        turns.over()
    assert most == [1] and done == asked
