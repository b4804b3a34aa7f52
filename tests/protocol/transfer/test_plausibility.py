"""Plausibility of a fetched state (algorithms section 8): witnesses say how far their own state is from it."""

import math
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from gossipdp.protocol import jobs
from gossipdp.protocol.events import StateJudged, UpdateRefused
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.plausibility import APART, FORMER, QUEUE, Judge, Witness
from gossipdp.protocol.transfer.source import Source, TransferConfig
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import StateManifest, StateProbe, StateRefuse, StateSample, StateSketches
from simulations.simulator.settings import pairwise
from tests.protocol.transfer.transfer_rig import new_joiner

SIZE = 4 * 8192 + 300
SCHEMA = Schema.of([("w", (SIZE,), "float32", "parameter")])
CONFIG = TransferConfig(window=2, witness=10.0, silence=20.0, manifest=20.0, chunk=5.0)
SETTINGS = b"the settings...."
NEAR, STEP = 1e-2, 5e-3
"""RMS distance of two honest anchors, and RMS movement of one in a round."""
SKETCH = 4 * (jobs.SUMS + 2)
NAN = b"\x00\x00\xc0\x7f"
A, B, C, D = (bytes([letter]) * 32 for letter in b"abcd")


class Member:
    """A peer with the model and its vectors. known: it has exchanged and stepped before."""

    def __init__(self, peer, *, scale=1.0, clock=100, known=True, off=NEAR):
        self.id, self.outputs, self.algorithm = peer, Outputs(), pairwise()
        self.algorithm.allocate(SIZE, SIZE, 8192)
        truth = np.random.default_rng(7).standard_normal(SIZE)
        noise = np.random.default_rng(peer[0]).standard_normal(SIZE)
        self.algorithm.ledger.a[:] = scale * truth + off / math.sqrt(2) * noise
        if known:
            for chunk in range(self.algorithm.ledger.chunks):
                span = self.algorithm.ledger.span(chunk)
                self.algorithm._distance[chunk] = NEAR * math.sqrt(span.stop - span.start)
                self.algorithm._step[chunk] = STEP * math.sqrt(span.stop - span.start)
                self.algorithm._longest[chunk] = self.algorithm._step[chunk]
        self.source = Source(CONFIG, self.outputs, lambda data: b"s" * 64, incarnation=1)
        self.model = Model(
            schema=SCHEMA, schema_bytes=SCHEMA.to_bytes(), settings=SETTINGS, clock=clock, rounds=clock // 10
        )

    def step(self, length):
        """A round's outer step of every chunk, `length` long (RMS)."""
        ledger = self.algorithm.ledger
        ledger.bind((ledger.a + np.float32(length), np.zeros(SIZE, np.float32)))
        for chunk in range(ledger.chunks):
            self.algorithm.run(jobs.OuterStep(chunk, 1.0, 0.0, 0))
        self.model = replace(self.model, clock=self.model.clock + 10, rounds=self.model.rounds + 1)

    def receive(self, message, now):
        self.source.receive(message, b"j" * 32, self.model, now)
        while self.outputs.jobs:
            job = self.outputs.jobs.popleft()
            result = self.algorithm.run(job)
            if isinstance(job, jobs.Sample):
                self.source.sampled(result, self.model)
            else:
                self.source.frozen(job, result, self.model)


class Network:
    """A joiner and members. `lost(peer, message)` says which messages of a member are lost."""

    def __init__(self, *members, lost=lambda peer, message: False, seed=3):
        self.members = {member.id: member for member in members}
        self.outputs, self.algorithm, self.lost = Outputs(), pairwise(), lost
        self.joiner = new_joiner(self.outputs, seed=seed, config=CONFIG)
        self.probed, self.now = [], 0.0

    def run(self, first, until=60.0):
        """The joiner asks `first`, then any member, until it is done or the time is over."""
        self.joiner.seek([first], 0.0)
        while not self.joiner.done and self.now < until:
            self.joiner.seek(sorted(self.members), self.now)
            if not self._carry():
                timer = self.joiner.timer()
                self.now = until if timer is None else timer
                self.joiner.handle_timer(self.now)
        return self

    def _carry(self):
        moved = bool(self.outputs.messages or self.outputs.jobs)
        while self.outputs.jobs:
            job = self.outputs.jobs.popleft()
            result = self.algorithm.run(job)
            if isinstance(job, jobs.Adopt):
                self.joiner.adopted(job, result, self.now)
            elif isinstance(job, jobs.Compare):
                self.joiner.compared(result, self.now)
        while self.outputs.messages:
            envelope = self.outputs.messages.popleft()
            member = self.members[envelope.to]
            if isinstance(envelope.message, StateProbe):
                self.probed.append(member.id)
            member.receive(envelope.message, self.now)
            while member.outputs.messages:
                reply = member.outputs.messages.popleft()
                if not self.lost(member.id, reply.message):
                    message, buffers = wire.decode(reply.frames)
                    self.joiner.receive(message, list(buffers), member.id, self.now)
        return moved

    @property
    def verdicts(self):
        return [(e.source, e.witness, e.plausible) for e in self.outputs.events if isinstance(e, StateJudged)]

    @property
    def refused(self):
        return [(event.peer, event.reason) for event in self.outputs.events if isinstance(event, UpdateRefused)]


def test_honest_state_is_vouched_for_by_one_witness_and_no_more_are_compared():
    network = Network(Member(A), Member(B), Member(C)).run(A)
    [(source, witness, plausible)] = network.verdicts
    assert (source, plausible) == (A, True) and witness in (B, C)
    assert network.joiner.done and sorted(network.probed) == [B, C] and not network.refused


def test_state_whose_own_transfer_took_long_says_its_age_until_exchanges_halve_it():
    """T1 seed 650: a joiner took six rounds to fetch its model, passed it on as current, and was refused."""
    late = Member(A, off=0.11, clock=40)
    network = Network(late, Member(B), Member(C)).run(A)
    assert [plausible for _, _, plausible in network.verdicts] == [True] and not network.refused
    assert network.joiner.manifest.clock == 40
    assert Network(Member(A, off=0.11), Member(B), Member(C)).run(A).refused == [(A, "implausible")]


@pytest.mark.parametrize("scale", [-1.0, 100.0, 0.0], ids=["flipped", "hundredfold", "zero"])
def test_poisoned_state_is_refused_and_fetched_from_another(scale):
    good = Member(B)
    network = Network(Member(A, scale=scale), good, Member(C), Member(D)).run(A)
    assert network.joiner.done and network.refused == [(A, "implausible")]
    assert network.verdicts[-1][0] != A and network.verdicts[-1][2]
    assert np.abs(network.algorithm.ledger.a - good.algorithm.ledger.a).max() < 0.1
    assert network.joiner.refusals[A] == "implausible"


def flipped(values):
    values *= -1.0


def one_value(values):
    values[7] = 60.0


def scaled(values):
    values *= 1.5


def drifted(values):
    values += 2 * NEAR * np.random.default_rng(5).standard_normal(values.size)


@pytest.mark.parametrize("change", [flipped, one_value, scaled])
@pytest.mark.parametrize("chunk", range(5))
def test_change_of_one_chunk_is_found_where_no_value_of_it_is_sampled(chunk, change):
    bad, good = Member(A), Member(B)
    change(bad.algorithm.ledger.a[bad.algorithm.ledger.span(chunk)])
    network = Network(bad, good, Member(C), Member(D))
    sample = network.joiner._judge._random.sample
    elsewhere = 0 if chunk else 4
    network.joiner._judge._random.sample = lambda these, count: (
        [elsewhere] if elsewhere in these else sample(these, count)
    )
    network.run(A)
    assert network.joiner.done and network.refused == [(A, "implausible")]
    assert np.abs(network.algorithm.ledger.a - good.algorithm.ledger.a).max() < 0.1


def test_chunk_that_is_further_off_than_others_is_taken():
    """Chunks differ in how far they are apart; a sketch is a single draw."""
    source = Member(A)
    drifted(source.algorithm.ledger.a[source.algorithm.ledger.span(2)])
    assert Network(source, Member(B), Member(C)).run(A).refused == []


def test_witness_sends_sketches_only_to_versions_that_know_them():
    member = Member(B)
    sent = []
    for sketches in (False, True):
        member.source.receive(StateProbe(5, (0, 300)), C, member.model, 0.0, sketches=sketches)
        member.source.sampled(member.algorithm.run(member.outputs.jobs.popleft()), member.model)
        envelope = member.outputs.messages.popleft()
        sent.append((type(envelope.message), [memoryview(part).nbytes for part in envelope.frames[1:]]))
    assert sent == [(StateSample, [2048]), (StateSketches, [2048, 5 * SKETCH])]


@pytest.mark.parametrize(
    "sketches", [b"", bytes(5 * SKETCH - 1), bytes(4 * SKETCH) + NAN + bytes(SKETCH - 4), bytes(5 * SKETCH - 4) + NAN]
)
def test_comparison_of_malformed_sketches(sketches):
    """None of the sketches is a sample without them. Unknown steps do not count; an unknown sketch is malformed."""
    algorithm = Member(A).algorithm
    values = algorithm.ledger.sample((0,))
    result = algorithm.run(jobs.Compare(((0, 0, 256),), 256, values.data.cast("B"), (0,), (0, 4), sketches))
    if not sketches or sketches.endswith(NAN):
        assert result.distance == 0.0 and len(result.chunks) == (2 if sketches else 0)
    else:
        assert result is None


def test_while_a_sample_is_compared_nothing_is_waited_for():
    """Otherwise the timer fires again and again once the deadline for witnesses has passed."""
    held = []
    lost = lambda peer, message: isinstance(message, StateSample) and not held.append((peer, message))  # noqa: E731
    network = Network(Member(A), Member(B), Member(C), lost=lost)
    network.joiner.seek([A, B, C], 0.0)
    network.joiner.seek([A, B, C], 0.0)
    while network._carry():
        network.joiner.seek([A, B, C], 0.0)
    assert network.joiner.timer() == CONFIG.witness
    witness, message = held[0]
    runs = tuple(network.joiner._judge._parts[message.transfer].runs.values())
    sample = network.members[witness].algorithm.run(jobs.Sample(runs))
    network.joiner.receive(message, [sample.payload, sample.sketches], witness, CONFIG.witness - 0.001)
    assert [type(job) for job in network.outputs.jobs] == [jobs.Compare]
    network.joiner.handle_timer(CONFIG.witness)
    assert network.joiner.timer() is None


def test_refusals_of_other_transfers_excuse_no_witness():
    network = Network(Member(A, scale=-1.0), Member(B), Member(C), Member(D))
    receive = network.joiner.receive

    def repeated(*word):
        for witness in (B, C, D):
            receive(StateRefuse(12345, "joining"), [], witness, network.now)
        receive(*word)

    network.joiner.receive = repeated
    network.run(A)
    assert network.refused == [(A, "implausible")] and network.verdicts[-1][0] != A


def test_one_lying_witness_does_not_keep_a_joiner_out():
    network = Network(Member(A), Member(B, scale=-1.0), Member(C)).run(A)
    assert network.joiner.done and not network.refused and network.verdicts[-1] == (A, C, True)


def test_source_and_witness_in_league__their_model_is_taken():
    """The limit of this check: one witness that vouches is enough."""
    network = Network(Member(A, scale=-1.0), Member(B, scale=-1.0), Member(C)).run(A)
    assert network.joiner.done and network.verdicts[-1] == (A, B, True)


def test_joiner_between_two_peers_that_differ_tries_more_and_more_rarely():
    """No third peer can decide. Once the two have exchanged, they agree."""
    a, b = Member(A), Member(B, scale=-1.0)
    network = Network(a, b).run(A, until=300.0)
    assert not network.joiner.done and 4 <= len(network.refused) <= 10
    a.algorithm.ledger.a[:] = b.algorithm.ledger.a
    assert network.run(A, until=600.0).joiner.done


def test_state_of_the_only_member_is_accepted_unverified():
    network = Network(Member(A)).run(A)
    assert network.joiner.done and network.verdicts == [(A, b"", True)] and network.now == 0.0


def test_silent_witnesses_are_waited_for_only_a_while():
    network = Network(Member(A), Member(B), Member(C), lost=lambda _, message: isinstance(message, StateSample)).run(A)
    assert network.joiner.done and network.verdicts == [(A, b"", True)] and network.now == CONFIG.witness


def test_witness_that_is_gone_is_not_waited_for():
    network = Network(Member(A), Member(B), lost=lambda _, message: isinstance(message, StateSample))
    network.joiner.seek([A], 0.0)
    network.joiner.seek([A, B], 0.0)
    while network._carry():
        pass
    assert not network.joiner.done
    network.joiner.gone(B, 1.0)
    assert network.joiner.done and network.joiner.timer() is None


def test_witness_that_has_neither_exchanged_nor_stepped_excuses_itself():
    network = Network(Member(A), Member(B, scale=-1.0, known=False)).run(A)
    assert network.joiner.done and network.verdicts == [(A, b"", True)] and network.now == 0.0


def test_witness_that_has_exchanged_but_never_stepped_excuses_itself():
    outputs = Outputs()
    witness = Witness(outputs)
    witness.receive(StateProbe(5, (0,)), C, SIZE, sketches=False)
    witness.sampled(jobs.Sampled(b"....", 1e-4, math.nan, b""), 70, 1)
    assert [said.message for said in outputs.messages] == [StateRefuse(5, "new")]


@pytest.mark.parametrize(("steps", "plausible"), [(16.0, True), (80.0, False)])
def test_witness_that_has_stepped_but_never_exchanged_knows_only_how_far_steps_go(steps, plausible):
    """T1 seed 4414: two of 64 peers that had just joined, before any exchange, were sixteen steps apart."""
    witness = Member(B, off=0.0)
    witness.algorithm._distance[:] = math.nan
    network = Network(Member(A, off=math.sqrt(2) * steps * STEP), witness).run(A, until=1.0)
    assert network.verdicts[0] == (A, B, plausible)


@pytest.mark.parametrize(("rounds", "plausible"), [(0, False), (4, False), (20, True)])
def test_witness_may_have_moved_on_since_the_state_was_frozen(rounds, plausible):
    """Twenty times the usual distance is too far, unless the witness has gone on for rounds since."""
    moved = Member(B, clock=100 + 10 * rounds, off=math.sqrt(2) * 12 * NEAR)
    network = Network(Member(A, off=0.0), moved).run(A, until=1.0)
    assert network.verdicts[0] == (A, B, plausible)


def test_witness_whose_steps_were_longer_when_the_state_was_frozen_does_not_deny_it():
    """T1 seed 1313: a transfer took 14 s. At its end the witness moved a quarter as far per round as at its start."""
    witness = Member(B, off=0.0)
    for number in range(20):
        witness.step(0.2 * 0.86**number)
    network = Network(Member(A, off=0.0), witness).run(A, until=1.0)
    assert network.verdicts == [(A, B, True)] and not network.refused
    stranger = Network(Member(A, scale=-10.0), witness).run(A, until=1.0)
    assert stranger.verdicts == [(A, B, False)]


def test_one_step_that_was_far_too_long_does_not_make_every_state_plausible():
    witness = Member(B, off=0.0)
    witness.step(100.0)
    for _ in range(3):
        witness.step(0.01)
    network = Network(Member(A, scale=-3.0), witness).run(A, until=1.0)
    assert network.verdicts == [(A, B, False)]


def test_source_that_claims_an_old_state_is_allowed_a_bounded_distance():
    network = Network(Member(A, scale=-1.0, clock=0), Member(B, clock=10**9), Member(C, clock=10**9)).run(A, until=1.0)
    assert network.refused == [(A, "implausible")]


@pytest.mark.parametrize("change", [lambda data: data[:-4], lambda data: data[:-4] + b"\x00\x00\xc0\x7f"])
def test_malformed_sample_is_refused_and_another_witness_heard(change):
    network = Network(Member(A), Member(B), Member(C))
    honest = network.members[B].algorithm.run

    def run(job):
        result = honest(job)
        if isinstance(result, jobs.Sampled):
            return replace(result, payload=change(bytes(result.payload)))
        return result

    network.members[B].algorithm.run = run
    network.run(A)
    assert network.joiner.done and network.verdicts[-1] == (A, C, True)
    assert network.refused in ([(B, "payload")], []), "refused, unless the other was compared first"


def test_sample_with_an_infinite_distance_does_not_vouch():
    liar = Member(B, scale=-1.0)
    liar.algorithm._distance[:] = math.inf
    assert Network(Member(A), liar).run(A).verdicts == [(A, b"", True)]


def test_only_the_part_of_a_bad_source_is_fetched_again():
    """A dies after two chunks. The chunks from B are poisoned, and those from C replace them."""
    a, bad = Member(A), Member(B, scale=-1.0)
    network = Network(a, bad, Member(C), Member(D))
    network.joiner.seek([A], 0.0)
    network.joiner.seek([A, B, C, D], 0.0)
    taken = []

    def adopted(job, result, now, inner=network.joiner.adopted):
        inner(job, result, now)
        taken.append(job.chunk)
        if len(taken) == 2:
            network.joiner.gone(A, now)
            network.joiner._retry_at = None
            network.joiner.refusals.update({C: "busy", D: "busy"})

    network.joiner.adopted = adopted
    network.run(A)
    assert network.joiner.done and network.refused == [(B, "implausible")]
    times = Counter(taken)
    assert all(times[chunk] == 1 for chunk in taken[:2]), "what A gave before it died is kept"
    assert sorted(times.values()) == [1, 1, 1, 2, 2], "two of the five came from B, one was under way from A"


def test_sources_that_gave_no_chunk_are_forgotten_with_their_samples():
    outputs = Outputs()
    judge = Judge(outputs, Random(1), 10.0)
    manifest = StateManifest(0, 1, SIZE, 8192, 70, 7, SCHEMA.digest, SETTINGS)
    for transfer in range(1000):
        judge.summon(transfer, A, manifest, SCHEMA.spans(), range(5), [B, C])
        judge.heard(StateSample(transfer, 70, 7, 1.0, 1.0), [b"...."], B)
        if transfer in (3, 500):
            judge.came(transfer % 5, transfer)
        assert len(judge._parts) <= FORMER + 3
    assert judge._parts[3].chunks == {3} and judge._parts[500].samples


def test_witness_serves_a_bounded_number_of_joiners_and_refuses_places_that_do_not_exist():
    outputs = Outputs()
    witness = Witness(outputs)
    for transfer in range(QUEUE + 1):
        witness.receive(StateProbe(transfer, (0,)), C, SIZE, sketches=False)
    assert len(outputs.jobs) == QUEUE
    assert [said.message for said in outputs.messages] == [StateRefuse(QUEUE, "busy")]
    outputs.messages.clear()
    witness.sampled(jobs.Sampled(b"....", math.nan, 1.0, b""), 70, 7)
    witness.receive(StateProbe(99, (0, SIZE)), C, SIZE, sketches=False)
    assert [said.message for said in outputs.messages] == [
        StateSample(0, 70, 7, APART, 1.0),
        StateRefuse(99, "busy"),
    ]
    assert len(outputs.jobs) == QUEUE
