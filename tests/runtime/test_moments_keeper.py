"""Moments between shared memory and what is held of them: chunk by chunk, one thing at a time."""

from __future__ import annotations

import logging
from collections import deque

import numpy as np
import pytest

from gossipdp.protocol.schema import Schema
from gossipdp.runtime.moments import MomentsKeeper

SIZE = 3 * 8192 + 100
SCHEMA = Schema.of([("w", (SIZE,), "float32", "parameter")])


class Bench:
    """A keeper, and the compute thread as a queue."""

    def __init__(self):
        self.queue, self.said = deque(), []
        self.keeper = MomentsKeeper(self.queue.append)

    def work(self, pieces=1000):
        most = 0
        while self.queue and pieces:
            most, pieces = max(most, len(self.queue)), pieces - 1
            self.keeper.ran(self.queue.popleft()())
        return most

    def take(self, which, x, steps=7):
        self.keeper.take(which, steps, x, SCHEMA, self.said.append)


def moments():
    random = np.random.default_rng(0)
    v = (random.standard_normal(SIZE) ** 2).astype(np.float32)
    return (np.sqrt(v) * random.uniform(-1, 1, SIZE)).astype(np.float32), v


def test_both_are_taken_one_piece_at_a_time_and_given_again():
    bench, (m, v), x = Bench(), moments(), np.zeros(SIZE, np.float32)
    bench.take("second", v)
    assert bench.work() == 1, "the next piece is asked for when the one before is done"
    bench.take("first", m)
    bench.work()
    nothing, held = bench.said
    assert nothing is None and held.steps == 7 and len(held.chunks) == 4
    bench.keeper.give("second", x, held, SCHEMA, lambda: bench.said.append("second"))
    bench.work()
    assert bench.said[-1] == "second" and np.allclose(x, v, rtol=0.06)
    bench.keeper.give("first", x, held, SCHEMA, lambda: bench.said.append("first"))
    bench.work()
    assert bench.said[-1] == "first" and np.abs(x - m).max() < 0.05 * np.sqrt(v).max()


@pytest.mark.parametrize("which", ["second", "first"])
def test_values_that_are_none_are_not_kept_but_the_memory_is_free_again(which, caplog):
    bench, (m, v) = Bench(), moments()
    (v if which == "second" else m)[9000] = np.nan
    with caplog.at_level(logging.WARNING, "gossipdp.node"):
        bench.take("second", v)
        bench.work()
        bench.take("first", m)
        bench.work()
    assert bench.said == [None, None] and "not kept" in caplog.text


def test_model_that_has_diverged_is_told_of_once():
    """Not once for each of its chunks, nor are the rest of them looked at."""
    bench = Bench()
    bench.take("second", np.full(SIZE, np.nan, np.float32))
    assert bench.work(1) == 1 and bench.said == [None] and not bench.queue


def test_padding_is_nought_whatever_is_given():
    schema = Schema.of([("w", (100,), "float32", "parameter"), ("b", (300,), "float32", "buffer")])
    queue, said, x = deque(), [], np.full(schema.size, 5.0, np.float32)
    keeper = MomentsKeeper(queue.append)
    ones = np.ones(schema.size, np.float32)
    for which in ("second", "first"):
        keeper.take(which, 7, ones, schema, said.append)
        keeper.ran(queue.popleft()())
    keeper.give("first", x, said[-1], schema, lambda: said.append("given"))
    keeper.ran(queue.popleft()())
    assert said[-1] == "given" and not x[100 : schema.trainable].any() and schema.trainable > 100
    assert np.allclose(x[:100], 1.0, rtol=0.05) and (x[schema.trainable :] == 5.0).all()


def test_first_without_a_second_is_not_kept():
    bench, (m, _) = Bench(), moments()
    bench.take("first", m)
    assert bench.said == [None] and not bench.queue


def test_what_begins_ends_what_was_going_on():
    """A training process dies in the middle, and the next one tells its own."""
    bench, (m, v) = Bench(), moments()
    bench.take("second", v)
    bench.work(2)
    bench.take("second", 4.0 * v, steps=9)
    bench.work()
    assert bench.said == [None], "of the first nothing more is heard"
    bench.take("first", m, steps=9)
    bench.work()
    held, x = bench.said[-1], np.zeros(SIZE, np.float32)
    bench.keeper.give("second", x, held, SCHEMA, lambda: None)
    bench.work()
    assert held.steps == 9 and np.allclose(x, 4.0 * v, rtol=0.06)
