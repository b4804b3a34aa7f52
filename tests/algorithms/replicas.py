"""Replicas that average by `pairwise` on the real jobs."""

import itertools

import numpy as np

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.protocol import jobs

WIDTH = 256


class Replica:
    """One peer's vectors, with a training process that takes no time."""

    def __init__(self, number, size, clip=np.inf, trainable=None, tensors=(), width=WIDTH):
        self.id = bytes([number]) * 32
        self.algorithm = Pairwise(clip=clip)
        self.algorithm.allocate(size, size if trainable is None else trainable, width, tensors)
        self.ledger = self.algorithm.ledger
        self.x = np.zeros(size, np.float32)
        self.buffers = np.zeros((2, size), np.float32)
        self.ledger.bind((self.buffers[0], self.buffers[1]))
        self.applied = 0
        self.numbers = itertools.count(1)
        """of the exchanges that it begins: the codec's rounding depends on them"""

    @property
    def a(self):
        return self.ledger.a.astype(np.float64)

    @property
    def v(self):
        return self.ledger.v.astype(np.float64)

    def run(self, job):
        return self.algorithm.run(job)

    def settle(self):
        """Seal, drain and release: x holds all corrections."""
        sealed = self.run(jobs.Seal())
        for chunk in sealed.chunks:
            span = self.ledger.span(chunk)
            self.x[span] += self.buffers[sealed.slot % 2][span]
        if sealed.chunks:
            self.applied = sealed.slot
            self.run(jobs.Release(sealed.slot))

    def outer(self, lr, momentum, part=1.0):
        self.ledger.x[:] = self.x
        for chunk in range(self.ledger.chunks):
            self.run(jobs.OuterStep(chunk, lr, momentum, self.applied, part))


MIXING = jobs.Mixing(weight=0.5, pull=0.0)


def opened(i, j, key, codec, lower=True, **form):
    """Open a chunk. i is the initiator; `lower`: its id is the lower one. Returns the responder's turn."""
    one, other = (jobs.Coding(codec=codec, lower=each, **form) for each in (lower, not lower))
    turn = i.run(jobs.Begin(key=key, coding=one))
    return j.run(jobs.Answer(key=key, coding=other, ranges=turn.buffers[0]))


def exchange(i, j, codec="fp32", weight=0.5, pull=0.0, within=True, limited=True):
    """Exchange all chunks between two replicas; i is the initiator. Returns the responder's turns.

    Args:
        within: False as between peers of which one knows no blocks of tensors.
        limited: False as between peers of which one knows no limit of a grid.
    """
    number, mixed, mixing = next(i.numbers), [], jobs.Mixing(weight=weight, pull=pull)
    for chunk in range(i.ledger.chunks):
        key = jobs.ChunkKey(i.id, number, chunk)
        turn = opened(i, j, key, codec, lower=i.id < j.id, within=within, limited=limited)
        first = True
        while True:
            turn = i.run(jobs.Decode(key=key, buffers=turn.buffers, first=first))
            assert not turn.refused
            first = False
            turn = j.run(jobs.DecodeAndMix(key=key, buffers=turn.buffers, bound=turn.bound, mixing=mixing))
            assert not turn.refused
            if turn.mixed:
                break
        mixed.append(turn)
        done = i.run(jobs.Mix(key=key, buffers=turn.buffers, share=turn.share, mixing=mixing))
        assert done.mixed and not done.refused
    return mixed


def replicas(count, size=600, seed=0, **options):
    rng = np.random.default_rng(seed)
    made = [Replica(number, size, **options) for number in range(1, count + 1)]
    for replica in made:
        replica.ledger.a[:] = rng.standard_normal(size)
        replica.algorithm.range[:] = 1.0
        replica.x[:] = replica.ledger.a
    return made


def bounded(scale=1.0):
    """Two replicas with known bounds, from own outer steps of norm about `scale`."""
    i, j = replicas(2, size=256, clip=2.0)
    for replica in (i, j):
        replica.algorithm._step[:] = scale
    return i, j
