"""One peer of `epidemic` for tests: its vectors, its training process and its messages.

There is no protocol. The test decides which peer gets which message, and in which order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from gossipdp.algorithms.epidemic.epidemic import Epidemic
from gossipdp.codecs import COMPRESSORS
from gossipdp.codecs.base import PayloadError
from gossipdp.codecs.increments.whole import WHOLE
from gossipdp.protocol import jobs

SIZE, TRAINABLE, WIDTH = 6400, 4500, 2048
CHUNKS = 4
"""number of chunks; the third has buffers from its 405th parameter, the last has only buffers"""
INFINITE = float("inf")
TOLERANCE = 2e-5
"""fp32, values of about 1, some hundred additions"""
CHUNK = st.integers(0, CHUNKS - 1)


class Raw:
    """A compressor that sends every parameter in fp32."""

    name = "raw"
    contraction = 1.0

    def most_bytes(self, size):
        return 4 * size

    def encode(self, values, *, seed):
        return values.tobytes()

    def decode(self, payload, size):
        values = np.frombuffer(payload, np.uint8)
        if len(values) != 4 * size:
            raise PayloadError("length")
        values = values.view("<f4").astype(np.float32)
        if not (np.abs(values) <= 2.0**100).all():
            raise PayloadError("not finite")
        return values


COMPRESSORS_HERE = {**COMPRESSORS, "whole": WHOLE, "raw": Raw()}


@dataclass(frozen=True)
class Message:
    """One round of one peer: a payload for each chunk. All peers use the same alpha and bound."""

    payloads: tuple
    weight: float
    compressor: str
    lr: float
    bound: float = INFINITE


class Peer:
    def __init__(self, seed, size=SIZE, trainable=TRAINABLE, width=WIDTH, **settings):
        self.algorithm = Epidemic(compressors=COMPRESSORS_HERE, **settings)
        self.algorithm.allocate(size, trainable, width)
        self.ledger = self.algorithm.ledger
        self.ledger.a[:] = np.random.default_rng(0).standard_normal(size) * 0.1
        self.random = np.random.default_rng((seed, 1))
        self.sealed = 0
        self.attach()

    @property
    def chunks(self):
        return range(self.ledger.chunks)

    def attach(self):
        self.region = np.zeros((2, self.ledger.size), np.float32)
        self.ledger.bind((self.region[0], self.region[1]))
        for chunk in self.chunks:
            self.algorithm.run(jobs.Attach(chunk))
        self.x = self.region[0].copy()
        self.since = np.zeros(self.ledger.size)
        self.applied = self.unreleased = self.sealed = 0

    def train(self, scale=0.01):
        before = self.x.astype(np.float64)
        self.x += (self.random.standard_normal(self.ledger.size) * scale).astype(np.float32)
        self.since += self.x - before

    def publish(self, compressor="topk128", lr=1.0, beta=0.95, weight=0.25, bound=INFINITE, lead=False):
        """Publish a round. Returns the message and the results of the jobs."""
        self.ledger.x[:] = self.x
        said = [
            self.algorithm.run(jobs.Publish(chunk, compressor, lr, beta, weight, self.applied, chunk, bound, lead))
            for chunk in self.chunks
        ]
        assert all(len(one.payload) for one in said)
        self.since[:] = 0.0
        return Message(tuple(one.payload for one in said), weight, compressor, lr, bound), said

    def alone(self):
        self.ledger.x[:] = self.x
        for chunk in self.chunks:
            self.algorithm.run(jobs.OuterStep(chunk, 1.0, 0.0, self.applied))
        self.since[:] = 0.0

    def apply(self, message, chunks=None):
        for chunk in self.chunks if chunks is None else chunks:
            payload = message.payloads[chunk]
            job = jobs.Apply(chunk, message.compressor, payload, message.lr, message.weight, message.bound)
            assert self.algorithm.run(job).sound

    def drain(self):
        sealed = self.algorithm.run(jobs.Seal())
        if sealed.chunks:
            for chunk in sealed.chunks:
                span = self.ledger.span(chunk)
                self.x[span] += self.region[sealed.slot % 2][span]
            self.applied = self.unreleased = sealed.slot

    def release(self):
        if self.unreleased:
            self.algorithm.run(jobs.Release(self.unreleased))
            self.unreleased = 0

    def error(self):
        """Largest deviation from the ledger's invariant: x + pending - a = progress since the snapshot."""
        outstanding = np.concatenate([self.ledger.outstanding(chunk, self.applied) for chunk in self.chunks])
        return float(np.abs(self.x.astype(np.float64) + outstanding - self.ledger.a - self.since).max())

    def state(self):
        """The state that must be the same at every peer."""
        return (
            tuple(self.algorithm.ledger.digest(chunk) for chunk in self.chunks),
            self.ledger.fixed.tobytes(),
            self.ledger.a.tobytes(),
        )

    def decode(self, message):
        """c of a message, fp64."""
        parts = [self.algorithm._decode(chunk, message.compressor, message.payloads[chunk]) for chunk in self.chunks]
        return np.concatenate(parts).astype(np.float64)


def spread(messages, peers):
    """Each peer applies the messages of all others, in their order."""
    for number, peer in enumerate(peers):
        for other, message in enumerate(messages):
            if other != number:
                peer.apply(message)
        peer.drain()
        peer.release()


def scale(lr, weight, size=SIZE, trainable=TRAINABLE):
    """alpha p of each parameter."""
    return np.where(np.arange(size) < trainable, lr * weight, weight)
