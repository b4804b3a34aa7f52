"""The jobs of real vectors on one, two and three compute threads give the same results and the same bits."""

from __future__ import annotations

import select
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.config import AUTO_CLIP
from gossipdp.protocol import jobs
from gossipdp.runtime.free_memory import Free
from gossipdp.runtime.memory_need import MemoryPlan
from gossipdp.runtime.node.vector_jobs import SharedRegion, VectorJobs, place_of
from gossipdp.runtime.room import Room
from gossipdp.runtime.storage.store import Store

SIZE, TRAINABLE, WIDTH = 60_000, 51_200, 8192
PLENTY = Room(MemoryPlan(), held=lambda: 0, free=lambda: Free(1 << 50, 1 << 50, "this machine"))


class Peer:
    """An algorithm behind `VectorJobs`, bound to buffers of its own."""

    def __init__(self, algorithm: Pairwise, home: Path, workers: int, seed: int) -> None:
        self.algorithm, self.results, self.asked = algorithm, list[Any](), list[Any]()
        self.vectors = VectorJobs(algorithm, Store(home), SharedRegion(), PLENTY, lambda: 0, self._done, print, workers)
        self.id, rng = bytes([seed]) * 32, np.random.default_rng(seed)
        self.run([jobs.Allocate(SIZE, TRAINABLE, WIDTH)])
        ledger = algorithm.ledger
        buffers = rng.standard_normal((2, SIZE), dtype=np.float32)
        buffers[0] = 0.05 * np.random.default_rng(9).standard_normal(SIZE) + 1e-3 * buffers[0]
        ledger.bind((buffers[0], buffers[1]))
        self.chunks = range(ledger.chunks)
        self.run([jobs.Found(chunk) for chunk in self.chunks])
        buffers[0] += np.float32(1e-3) * rng.standard_normal(SIZE, dtype=np.float32)

    def _done(self, job: object, result: Any) -> None:
        self.asked.append(job)
        self.results.append(result)

    def run(self, asked: Sequence[jobs.Job[Any]]) -> list[Any]:
        self.results, self.asked = [], []
        for job in asked:
            self.vectors.submit(job)
        while len(self.results) < len(asked):
            assert select.select([self.vectors], [], [], 60.0)[0]
            self.vectors.collect()
        assert self.asked == list(asked), "results come in the order asked"
        return self.results

    def bits(self) -> list[bytes]:
        ledger = self.algorithm.ledger
        pending = [ledger.pending(chunk).tobytes() for chunk in self.chunks]
        return [ledger.a.tobytes(), ledger.v.tobytes(), *pending]


def pairwise(home: Path, workers: int, codec: str) -> list[Any]:
    """Both peers step, exchange all chunks, and freeze. Everything that the protocol or a file would see."""
    i, j = (Peer(Pairwise(clip=AUTO_CLIP), home, workers, seed) for seed in (1, 2))
    seen: list[Any] = []
    for number in range(2):
        for peer in (i, j):
            asked = [*map(jobs.Check, peer.chunks), *(jobs.OuterStep(chunk, 0.7, 0.6, 0) for chunk in peer.chunks)]
            seen += peer.run(asked)
        keys = [jobs.ChunkKey(i.id, number, chunk) for chunk in i.chunks]
        turns = i.run([jobs.Begin(key, codec, True) for key in keys])
        turns = j.run([jobs.Answer(key, codec, False, t.buffers[0]) for key, t in zip(keys, turns, strict=True)])
        first, open_ = True, keys
        while open_:
            asked = [jobs.Decode(key, t.buffers, first) for key, t in zip(open_, turns, strict=True)]
            turns, first = i.run(asked), False
            asked_back = zip(open_, turns, strict=True)
            turns = j.run([jobs.DecodeAndMix(key, t.buffers, t.bound, 0.5, 0.4) for key, t in asked_back])
            mixed = [(key, t) for key, t in zip(open_, turns, strict=True) if t.mixed]
            assert all(t.mixed for t in i.run([jobs.Mix(key, t.buffers, t.share, 0.5, 0.4) for key, t in mixed]))
            seen += [(key.chunk, t.share, t.distance2, t.escalated) for key, t in mixed]
            rest = [(key, t) for key, t in zip(open_, turns, strict=True) if not t.mixed]
            open_, turns = [key for key, _ in rest], [t for _, t in rest]
        seen += i.run([jobs.Drop(tuple(keys))])
    seen += [(bytes(f.payload), f.hash) for f in j.run([jobs.Freeze(chunk) for chunk in j.chunks])]
    sample = i.run([jobs.Sample((0, 9000, 40_000))])[0]
    seen += [bytes(sample.payload), sample.distance, sample.step, *i.bits(), *j.bits()]
    i.vectors.close()
    j.vectors.close()
    return seen


@pytest.mark.parametrize("codec", ["modulo4", "modulo2", "bf16"])
def test_pairwise_exchanges_have_the_same_bits_on_any_number_of_threads(tmp_path: Path, codec: str) -> None:
    one = pairwise(tmp_path, 1, codec)
    assert pairwise(tmp_path, 2, codec) == one == pairwise(tmp_path, 3, codec)


def test_every_kind_of_job_has_a_place_or_runs_alone() -> None:
    key = jobs.ChunkKey(b"", 1, 5)
    placed = {
        jobs.Begin, jobs.Answer, jobs.Decode, jobs.DecodeAndMix, jobs.Mix, jobs.Check, jobs.OuterStep, jobs.Found,
        jobs.Attach, jobs.Freeze, jobs.HashPiece, jobs.CheckPiece, jobs.Adopt, jobs.Resync, jobs.Conclude,
        jobs.CheckMoments,
    }  # fmt: skip
    for kind in placed:
        fields = dict.fromkeys(kind.__dataclass_fields__, 0) | {"key": key, "chunk": 5}
        job: Any = kind(**{name: fields[name] for name in kind.__dataclass_fields__})
        assert place_of(job) == 5, kind
    named = [getattr(jobs, name) for name in jobs.__all__]
    kinds = {kind for kind in named if isinstance(kind, type) and issubclass(kind, jobs.Job)} - {jobs.Job}
    assert kinds - placed == {
        jobs.Allocate, jobs.Restore, jobs.Bind, jobs.Unbind, jobs.Renew, jobs.Widen, jobs.Seal, jobs.Release, jobs.Drop,
        jobs.Keep, jobs.Sample, jobs.Compare,
    }  # fmt: skip
