"""What goes with a model and is not averaged is fetched in pieces after its chunks, exactly, from one source."""

import hashlib
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from gossipdp.algorithms.ledger import state_hash
from gossipdp.protocol import jobs
from gossipdp.protocol.carried_state import PIECE, Carried, pieces, reference_digest
from gossipdp.protocol.events import UpdateRefused
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.source import Source, TransferConfig
from gossipdp.protocol.wire import encoding as wire
from gossipdp.protocol.wire.messages import StateAsk, StateChunk, StateManifest
from simulations.simulator.settings import pairwise
from tests.protocol.transfer.transfer_rig import new_joiner

A, B, SETTINGS = b"a" * 32, b"b" * 32, b"the settings...."
CONFIG = TransferConfig(manifest=10.0, chunk=2.0, silence=8.0, window=2, keep=60.0, fresh=30.0)
REFERENCE = Random(1).randbytes(2 * PIECE + 77)
CHUNKS = 2


def schema_of(reference):
    parts = [reference[start : start + PIECE] for start in range(0, len(reference), PIECE)]
    tensors = [("w", (8000,), "float32", "parameter"), ("m", (300,), "float32", "buffer")]
    return Schema.of(tensors, reference=reference_digest(b"".join(map(state_hash, parts))))


def signature(peer, data):
    return hashlib.blake2b(data, key=peer).digest()


class Giver:
    def __init__(self, peer, state=b"", reference=REFERENCE, schema=None):
        schema = schema or schema_of(reference)
        self.id, self.outputs, self.algorithm = peer, Outputs(), pairwise()
        self.algorithm.allocate(schema.size, schema.trainable, 8192)
        self.algorithm.ledger.a[:] = np.random.default_rng(7).standard_normal(schema.size)
        self.source = Source(CONFIG, self.outputs, lambda data: signature(peer, data), incarnation=1)
        self.model = Model.of(schema.to_bytes(), SETTINGS, 100, 10, Carried(reference, state))

    def receive(self, message):
        self.source.receive(message, b"j" * 32, self.model, 0.0)
        while self.outputs.jobs:
            job = self.outputs.jobs.popleft()
            result = self.algorithm.run(job)
            of = self.source.hashed if isinstance(job, jobs.HashPiece) else self.source.frozen
            of(job, result, self.model)


class Taker:
    def __init__(self, givers):
        self.givers, self.outputs, self.algorithm = givers, Outputs(), pairwise()
        self.joiner = new_joiner(self.outputs, lambda peer, data, sign: sign == signature(peer, data), config=CONFIG)
        self.refused = []

    def work(self):
        while self.outputs.jobs:
            job = self.outputs.jobs.popleft()
            result = self.algorithm.run(job)
            if isinstance(job, jobs.Adopt | jobs.CheckPiece):
                self.joiner.adopted(job, result, 0.0)
        self.refused += [event.reason for event in self.outputs.events if isinstance(event, UpdateRefused)]
        self.outputs.events.clear()

    def fetch(self, peer, stop=lambda message: False, mangle=lambda message, buffers: buffers):
        """Fetch from `peer` until it sends a message for which `stop` holds."""
        self.joiner.seek([peer], 0.0)
        while self.outputs.messages:
            asked = self.outputs.messages.popleft()
            self.givers[asked.to].receive(wire.decode(asked.frames)[0])
            answers = self.givers[asked.to].outputs.messages
            while answers:
                message, buffers = wire.decode(answers.popleft().frames)
                if stop(message):
                    return
                self.joiner.receive(message, mangle(message, list(buffers)), asked.to, 0.0)
                self.work()


def test_reference_and_state_longer_than_a_piece_arrive_to_the_last_byte():
    state = Random(2).randbytes(PIECE + 1)
    taker = Taker({A: Giver(A, state)})
    taker.fetch(A)
    assert taker.joiner.done and taker.joiner.arrived.carried == Carried(REFERENCE, state) and not taker.refused


def test_model_with_nothing_to_carry_has_no_pieces():
    taker = Taker({A: Giver(A, reference=b"")})
    taker.fetch(A)
    assert taker.joiner.done and taker.joiner.arrived.carried == Carried() and taker.joiner.schema.reference == b""


def test_source_that_goes_halfway_through_a_state_leaves_no_patchwork_of_two_states():
    """The reference is kept, because it is the same everywhere."""
    first, second = (Random(seed).randbytes(2 * PIECE) for seed in (5, 6))
    taker = Taker({A: Giver(A, first), B: Giver(B, second)})
    taker.fetch(A, stop=lambda message: isinstance(message, StateChunk) and message.chunk == CHUNKS + 4)
    taker.joiner.gone(A, 0.0)
    taker.joiner.handle_timer(taker.joiner.timer())
    asked = []

    def note(message, buffers):
        if isinstance(message, StateChunk):
            asked.append(message.chunk)
        return buffers

    taker.fetch(B, mangle=note)
    assert taker.joiner.done and taker.joiner.arrived.carried == Carried(REFERENCE, second)
    assert sorted(asked) == [CHUNKS + 3, CHUNKS + 4], "the state alone"


def test_state_submitted_while_the_model_is_frozen_goes_with_it():
    giver = Giver(A, b"before")
    taker = Taker({A: giver})
    hashed = giver.source.frozen

    def tell(job, result, model):
        giver.model = replace(giver.model, carried=Carried(REFERENCE, b"after"))
        hashed(job, result, giver.model)

    giver.source.frozen = tell
    taker.fetch(A)
    assert taker.joiner.arrived.carried.state == b"after"


def test_piece_that_differs_from_what_was_signed_is_refused():
    taker = Taker({A: Giver(A, b"the state")})

    def damage(message, buffers):
        damaged = isinstance(message, StateChunk) and message.chunk == CHUNKS + 3
        return [b"another 1"] if damaged else buffers

    taker.fetch(A, mangle=damage)
    assert not taker.joiner.done and taker.refused == ["hash"]


@pytest.mark.parametrize("lie", ["another reference", "none"])
def test_manifest_with_another_reference_is_refused(lie):
    other = Random(9).randbytes(3 * PIECE) if lie == "another reference" else b""
    taker = Taker({A: Giver(A, reference=other, schema=schema_of(REFERENCE))})
    taker.fetch(A)
    assert not taker.joiner.done and taker.refused == ["manifest"]


def test_pieces_of_any_length_stand_end_to_end():
    for size in (0, 1, PIECE, PIECE + 1):
        carried = Carried(bytes(3), bytes(size))
        parts = [carried.piece(number) for number in range(1 + pieces(size))]
        assert b"".join(map(bytes, parts)) == bytes(3 + size) and carried.piece(1 + pieces(size)) is None


def test_manifest_of_more_than_may_be_carried_does_not_decode():
    manifest = StateManifest(1, 1, 1, 256, 0, 0, bytes(16), bytes(16), (1 << 30) + 1)
    with pytest.raises(Exception, match="StateManifest"):
        wire.decode(wire.encode(manifest, [b"", b"", b""]))
    assert wire.decode(wire.encode(StateAsk(1, 1, (0,))))
