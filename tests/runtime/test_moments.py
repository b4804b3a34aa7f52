"""Moments between shared memory and their encoded form: chunk by chunk, one copy at a time."""

from __future__ import annotations

import logging
from collections import deque

import numpy as np
import pytest

from gossipdp.protocol.schema import Schema
from gossipdp.runtime.moments import MomentsCopier

SIZE = 3 * 8192 + 100
SCHEMA = Schema.of([("w", (SIZE,), "float32", "parameter")])


def run(queue):
    piece, done = queue.popleft()
    done(piece())


class Bench:
    """A copier, and the compute thread as a queue."""

    def __init__(self):
        self.queue, self.said = deque(), []
        self.copier = MomentsCopier(lambda piece, done, place: self.queue.append((piece, done)))

    def work(self, pieces=1000):
        most = 0
        while self.queue and pieces:
            most, pieces = max(most, len(self.queue)), pieces - 1
            run(self.queue)
        return most

    def read(self, which, x, steps=7):
        self.copier.read(which, steps, x, SCHEMA, self.said.append)


def moments():
    random = np.random.default_rng(0)
    v = (random.standard_normal(SIZE) ** 2).astype(np.float32)
    return (np.sqrt(v) * random.uniform(-1, 1, SIZE)).astype(np.float32), v


def test_both_moments_are_read_one_piece_at_a_time_and_written_back():
    bench, (m, v), x = Bench(), moments(), np.zeros(SIZE, np.float32)
    bench.read("second", v)
    assert bench.work() == 1, "a piece is asked for when the one before is done"
    bench.read("first", m)
    bench.work()
    nothing, held = bench.said
    assert nothing is None and held.steps == 7 and len(held.chunks) == 4
    bench.copier.write("second", x, held, SCHEMA, lambda: bench.said.append("second"))
    bench.work()
    assert bench.said[-1] == "second" and np.allclose(x, v, rtol=0.06)
    bench.copier.write("first", x, held, SCHEMA, lambda: bench.said.append("first"))
    bench.work()
    assert bench.said[-1] == "first" and np.abs(x - m).max() < 0.05 * np.sqrt(v).max()


@pytest.mark.parametrize("which", ["second", "first"])
def test_moments_with_nan__not_kept__but_the_memory_is_free_again(which, caplog):
    bench, (m, v) = Bench(), moments()
    (v if which == "second" else m)[9000] = np.nan
    with caplog.at_level(logging.WARNING, "gossipdp.node"):
        bench.read("second", v)
        bench.work()
        bench.read("first", m)
        bench.work()
    assert bench.said == [None, None] and "not kept" in caplog.text


def test_moments_all_nan__one_warning():
    """There is no warning for each chunk, and the other chunks are not looked at."""
    bench = Bench()
    bench.read("second", np.full(SIZE, np.nan, np.float32))
    assert bench.work(1) == 1 and bench.said == [None] and not bench.queue


def test_padding_is_zero_whatever_was_received():
    schema = Schema.of([("w", (100,), "float32", "parameter"), ("b", (300,), "float32", "buffer")])
    queue, said, x = deque(), [], np.full(schema.size, 5.0, np.float32)
    copier = MomentsCopier(lambda piece, done, place: queue.append((piece, done)))
    ones = np.ones(schema.size, np.float32)
    for which in ("second", "first"):
        copier.read(which, 7, ones, schema, said.append)
        run(queue)
    copier.write("first", x, said[-1], schema, lambda: said.append("given"))
    run(queue)
    assert said[-1] == "given" and not x[100 : schema.trainable].any() and schema.trainable > 100
    assert np.allclose(x[:100], 1.0, rtol=0.05) and (x[schema.trainable :] == 5.0).all()


def test_first_moment_without_a_second__not_kept():
    bench, (m, _) = Bench(), moments()
    bench.read("first", m)
    assert bench.said == [None] and not bench.queue


def test_new_copy_ends_the_one_under_way():
    """A training process dies in the middle, and the next one sends its own moments."""
    bench, (m, v) = Bench(), moments()
    bench.read("second", v)
    bench.work(2)
    bench.read("second", 4.0 * v, steps=9)
    bench.work()
    assert bench.said == [None], "nothing more comes of the first"
    bench.read("first", m, steps=9)
    bench.work()
    held, x = bench.said[-1], np.zeros(SIZE, np.float32)
    bench.copier.write("second", x, held, SCHEMA, lambda: None)
    bench.work()
    assert held.steps == 9 and np.allclose(x, 4.0 * v, rtol=0.06)
