"""Encoded moments between shared memory and the daemon: chunk by chunk, one copy at a time."""

import logging
from collections import deque

import numpy as np
import pytest

from gossipdp.codecs.moments import digest, places, shared
from gossipdp.protocol.schema import Schema
from gossipdp.protocol.transfer.moments import chunk_sizes
from gossipdp.runtime.moments import MomentsCopier
from tests.codecs.moments_reference import encoded

WIDTH = 8192
SIZE = 3 * WIDTH + 101
SCHEMA = Schema.of([("w", (SIZE,), "float32", "parameter")])
PAGES = -(-4 * SIZE // 4096) * 4096


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

    def read(self, memory, steps=7):
        self.copier.read(steps, memory, SCHEMA, self.said.append)


def payloads(scale=1.0):
    random = np.random.default_rng(0)
    v = (scale * random.standard_normal(SIZE) ** 2).astype(np.float32)
    m = (np.sqrt(v) * random.uniform(-1, 1, SIZE)).astype(np.float32)
    starts = range(0, SIZE, WIDTH)
    return [encoded(m[start : start + WIDTH], v[start : start + WIDTH]) for start in starts]


def memory_of(chunks):
    memory = np.full(PAGES, 7, np.uint8)
    for chunk, (payload, size) in enumerate(zip(chunks, chunk_sizes(SCHEMA), strict=True)):
        memory[shared(chunk, WIDTH, size)] = payload
    return memory


def test_moments_are_read_one_piece_at_a_time_and_written_back():
    bench, chunks = Bench(), payloads()
    memory = memory_of(chunks)
    bench.read(memory)
    assert bench.work() == 1, "a piece is asked for when the one before is done"
    memory[:] = 9
    (held,) = bench.said
    assert held.steps == 7 and [bytes(each.payload) for each in held.chunks] == [bytes(each) for each in chunks]
    assert [each.hash for each in held.chunks] == [digest(each.data) for each in chunks]
    again = np.full(PAGES, 7, np.uint8)
    bench.copier.write(again, held, SCHEMA, lambda: bench.said.append("given"))
    assert bench.work() == 1 and bench.said[-1] == "given" and np.array_equal(again, memory_of(chunks))


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0, 2.0**70])
@pytest.mark.parametrize("part", ["tops", "scales"])
def test_moments_that_training_could_not_encode__not_kept__but_the_memory_is_free_again(part, value, caplog):
    """One warning, and the chunks after it are not looked at."""
    bench, memory = Bench(), memory_of(payloads())
    at = getattr(places(WIDTH, 512, 768, shared(1, WIDTH, WIDTH).start), part)
    memory[at] = np.array([value], "<f4").view(np.uint8)
    with caplog.at_level(logging.WARNING, "gossipdp.node"):
        bench.read(memory)
        bench.work(2)
    assert bench.said == [None] and not bench.queue and caplog.text.count("not kept") == 1


def test_buffers_are_not_touched():
    schema = Schema.of([("w", (100,), "float32", "parameter"), ("b", (300,), "float32", "buffer")])
    bench, memory = Bench(), np.full(4096, 5, np.uint8)
    payload = encoded(np.ones(schema.trainable, np.float32), np.ones(schema.trainable, np.float32))
    memory[: len(payload)] = payload
    bench.copier.read(7, memory, schema, bench.said.append)
    bench.work()
    again = np.zeros(4096, np.uint8)
    bench.copier.write(again, bench.said[0], schema, lambda: bench.said.append("given"))
    bench.work()
    assert bench.said[1:] == ["given"] and not again[4 * schema.trainable :].any()


def test_new_copy_ends_the_one_under_way():
    """A training process dies in the middle, and the next one sends its own moments."""
    bench = Bench()
    bench.read(memory_of(payloads()))
    bench.work(2)
    bench.read(memory_of(payloads(4.0)), steps=9)
    bench.work()
    (held,) = bench.said
    assert held.steps == 9 and [bytes(each.payload) for each in held.chunks] == [bytes(each) for each in payloads(4.0)]
