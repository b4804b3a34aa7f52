"""A joiner and its sources, with vectors, as the tests of transfers drive them."""

import hashlib
from random import Random
from types import SimpleNamespace

import numpy as np

from gossipdp.protocol import jobs
from gossipdp.protocol.course.joiner import Joiner
from gossipdp.protocol.events import UpdateRefused
from gossipdp.protocol.membership.progress import ProgressBoard
from gossipdp.protocol.model import Model
from gossipdp.protocol.outputs import Outputs
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.source import Source, TransferConfig
from gossipdp.protocol.wire import encoding as wire
from simulations.simulator.settings import pairwise
from tests.protocol.membership.machines import TRUSTING

SIZE = 4 * 8192 + 300
CHUNKS = 5
SCHEMA = Schema.of([("w", (SIZE - 300,), "float32", "parameter"), ("m", (300,), "float32", "buffer")])
LARGER = Schema.of([("w", (100 * 8192,), "float32", "parameter")])
OTHER = Schema.of([("w", (SIZE - 1,), "float32", "parameter")])
SETTINGS = b"the settings...."
CONFIG = TransferConfig(manifest=10.0, chunk=2.0, silence=8.0, window=2, keep=60.0, fresh=30.0)
A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


def signature(peer, data):
    return hashlib.blake2b(data, key=peer).digest()


class Giver:
    def __init__(self, peer, schema=SCHEMA, clock=100, incarnation=1, ahead=1):
        self.id, self.outputs, self.algorithm = peer, Outputs(), pairwise()
        self.algorithm.allocate(schema.size, schema.trainable, 8192)
        self.a = self.algorithm.ledger.a
        self.a[:] = np.random.default_rng(7).standard_normal(schema.size) + peer[0] * 1e-3
        self.source = Source(
            CONFIG, self.outputs, lambda data: signature(peer, data), ahead=ahead, incarnation=incarnation
        )
        self.model = Model(
            schema=schema, schema_bytes=schema.to_bytes(), settings=SETTINGS, clock=clock, rounds=clock // 10
        )

    def work(self):
        count = 0
        while self.outputs.jobs:
            job = self.outputs.jobs.popleft()
            result = self.algorithm.run(job)
            if isinstance(job, jobs.Sample):
                self.source.sampled(result, self.model)
            else:
                self.source.frozen(job, result, self.model)
            count += 1
        return count


def new_joiner(
    outputs,
    verify=lambda *_: True,
    seed=3,
    *,
    config=CONFIG,
    voices=list,
    shuns=None,
    settings=SETTINGS,
    keys=(),
    **terms,
):
    """A joiner whose members all have a voice, and are not set aside."""
    parts = SimpleNamespace(
        config=SimpleNamespace(transfer=config, settings=settings, keys=keys),
        outputs=outputs,
        verify=verify,
        random=Random(seed),
        membership=SimpleNamespace(voices=voices, direct=lambda peer: True),
        strikes=SimpleNamespace(shuns=shuns or (lambda peer, now: False)),
        progress=ProgressBoard(b"j" * 32, TRUSTING),
    )
    return Joiner(parts, **terms)


class Taker:
    def __init__(self, seed=3, **terms):
        self.outputs, self.algorithm = Outputs(), pairwise()
        self.events, self.allocated, self.came = [], 0, []
        check = lambda peer, data, sign: sign == signature(peer, data)  # noqa: E731
        self.joiner = new_joiner(self.outputs, check, seed, **terms)

    def work(self, now=0.0):
        while self.outputs.jobs:
            job = self.outputs.jobs.popleft()
            result = self.algorithm.run(job)
            if isinstance(job, jobs.Adopt):
                self.joiner.adopted(job, result, now)
            elif isinstance(job, jobs.Compare):
                self.joiner.compared(result, now)
            self.allocated += isinstance(job, jobs.Allocate)
        self.events += self.outputs.events
        self.outputs.events.clear()

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def refused(self):
        return [(event.peer, event.reason) for event in self.of(UpdateRefused)]


def carry(taker, givers, now=0.0, mangle=lambda envelope: envelope, limit=1000):
    """Carry messages until there are none. `mangle` changes or (None) loses messages of the givers."""
    for _ in range(limit):
        taker.work(now)
        moved = False
        for envelope in list(taker.outputs.messages):
            taker.outputs.messages.popleft()
            moved = True
            if envelope.to in givers:
                giver = givers[envelope.to]
                message, _ = wire.decode(envelope.frames)
                giver.source.receive(message, b"j" * 32, giver.model, now)
        for giver in givers.values():
            giver.work()
            while giver.outputs.messages:
                envelope = mangle(giver.outputs.messages.popleft())
                moved = True
                if envelope is not None:
                    message, buffers = wire.decode(envelope.frames)
                    if taker.joiner.receive(message, list(buffers), giver.id, now):
                        taker.came.append(now)
                    taker.work(now)
        if not moved:
            return


def givers(*peers, **options):
    return {peer: Giver(peer, **options) for peer in peers}


def close_to(a, b):
    """Equal up to the rounding of bfloat16."""
    return np.abs(a - b) <= 2.0**-8 * np.abs(b) + 1e-30
