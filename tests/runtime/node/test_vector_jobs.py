"""The peer's jobs on the compute thread, pieces of work between them, and the same bits on several threads."""

import select
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from gossipdp.algorithms.pairwise import Pairwise
from gossipdp.errors import HardwareError
from gossipdp.protocol import jobs
from gossipdp.protocol.schema import Schema
from gossipdp.runtime import compute
from gossipdp.runtime.free_memory import Free
from gossipdp.runtime.memory_need import MemoryPlan
from gossipdp.runtime.node.vector_jobs import MemoryShortError, SharedRegion, VectorJobs, place_of
from gossipdp.runtime.room import Room
from gossipdp.runtime.storage.store import Store
from simulations.simulator.settings import pairwise
from tests.runtime.storage.samples import meta

NOTHING_SHARED: Any = SimpleNamespace(shared_bytes=0)
"""a link server without a training process"""


class Ledger:
    def __init__(self) -> None:
        self.bound: list[object] = []

    def bind(self, buffers: tuple[object, object]) -> None:
        self.bound.append(buffers)

    def unbind(self) -> None:
        self.bound.clear()


class Algorithm:
    """Has a ledger only once a job has run, as the real ones have after the allocation."""

    ledger: Ledger

    def run(self, job: object) -> object:
        if job == "too large":
            raise MemoryError
        if isinstance(job, jobs.Seal):
            return jobs.Sealed(3, (0,))
        self.ledger = Ledger()
        return "allocated"


def room(free: int) -> Room:
    return Room(MemoryPlan(), held=lambda: 0, free=lambda: Free(free, free, "this machine"))


class Region:
    """Buffers, and the token for the free one."""

    buffers = "even", "odd"

    def __init__(self) -> None:
        self.sealed: list[int] = []

    def take(self) -> int | None:
        return self.sealed[-1] if self.sealed else None

    def give(self, sealed: int) -> None:
        self.sealed.append(sealed)


class Host:
    def __init__(self, home: Path, free: int = 1 << 50) -> None:
        self.algorithm, self.region = Algorithm(), SharedRegion()
        self.done: list[tuple[object, object]] = []
        self.heard: Callable[[], object] = lambda: None
        """called with each job that is done"""
        self.jobs = VectorJobs(
            cast(Any, self.algorithm),
            Store(home),
            self.region,
            room(free),
            NOTHING_SHARED,
            self._finished,
            lambda code, text: None,
        )

    def _finished(self, job: object, result: object) -> None:
        self.done.append((job, result))
        self.heard()

    def collect(self, count: int) -> None:
        while len(self.done) < count:
            assert select.select([self.jobs], [], [], 5.0)[0]
            self.jobs.collect()


def test_bind_asked_for_before_the_ledger_exists__binds_after_the_allocation(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.region.attach(cast(Any, Region()))
    host.jobs.submit(cast(Any, "allocate"))
    host.jobs.submit(jobs.Bind())
    host.collect(2)
    assert host.done == [("allocate", "allocated"), (jobs.Bind(), None)]
    assert host.algorithm.ledger.bound == [("even", "odd")]
    host.region.detach()
    host.jobs.submit(jobs.Unbind())
    host.collect(3)
    assert host.algorithm.ledger.bound == [] and host.region.region is None
    host.jobs.close()


def test_seal_waits_for_its_buffer_and_others_overtake_it(tmp_path: Path) -> None:
    host, region, told = Host(tmp_path), Region(), list[list[int]]()
    host.heard = lambda: told.append([*region.sealed])
    host.region.attach(cast(Any, region))
    host.jobs.submit(jobs.Seal())
    host.jobs.submit(cast(Any, "allocate"))
    host.collect(1)
    host.region.free.done("model")
    host.collect(2)
    assert host.done == [("allocate", "allocated"), (jobs.Seal(), jobs.Sealed(3, (0,)))]
    assert told == [[], []] and region.sealed == [3], "the peer has heard of the slot before training may write"
    host.jobs.close()


def test_seal_that_waits_for_a_process_that_died__is_over_without_a_slot(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.region.attach(cast(Any, Region()))
    host.jobs.submit(jobs.Seal())
    host.region.detach()
    host.collect(1)
    assert host.done == [(jobs.Seal(), jobs.Sealed(0, ()))]
    host.jobs.close()


def test_memory_of_a_process_that_is_gone_is_released(tmp_path: Path) -> None:
    host, region = Host(tmp_path), Region()
    there = weakref.ref(region)
    host.region.attach(cast(Any, region))
    host.region.free.done("model")
    host.region.detach()
    host.region.unbind()
    del region
    assert there() is None
    host.jobs.close()


def test_memory_is_known_to_be_taken_for_a_model_from_the_asking_on(tmp_path: Path) -> None:
    """A founder of a billion parameters was told that a member sends it a message without an end."""
    host = Host(tmp_path)
    host.jobs.submit(jobs.Allocate(10**9, 10**9, 256))
    assert host.jobs.parameters == 10**9
    host.jobs.close()


def test_region_of_a_new_process__kept_when_the_job_of_the_old_one_unbinds() -> None:
    region, new = SharedRegion(), cast(Any, object())
    region.attach(cast(Any, object()))
    region.detach()
    region.attach(new)
    region.unbind()
    assert region.region is new


def test_pieces_run_between_jobs_in_order(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.jobs.submit(cast(Any, "allocate"))
    host.jobs.call(lambda: 7, lambda result: host.done.append(("piece", result)))
    assert host.jobs.waiting == 2
    host.collect(2)
    assert host.done == [("allocate", "allocated"), ("piece", 7)]
    host.jobs.close()


def test_longest_of_each_kind_of_work_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 0.25, 1.0, 1.5, 2.0, 2.125, 3.0, 5.0])
    monkeypatch.setattr(compute, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    host = Host(tmp_path)
    host.algorithm.ledger = Ledger()
    for _ in range(3):
        host.jobs.submit(jobs.Unbind())
    host.jobs.call(partial(sorted, [2, 1]), lambda result: host.done.append(("piece", result)))
    host.collect(4)
    assert host.jobs.longest == {"Unbind": 0.5, "sorted": 2.0}
    host.jobs.close()


def test_job_without_memory__hardware_error_that_names_the_job(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.jobs.submit(cast(Any, "too large"))
    assert select.select([host.jobs], [], [], 5.0)[0]
    with pytest.raises(MemoryShortError, match="GD-502") as caught:
        host.jobs.collect()
    assert "too large" in caught.value.seen
    host.jobs.close()


def test_a_model_for_which_there_is_no_memory__refused_before_any_is_taken(tmp_path: Path) -> None:
    host = Host(tmp_path, free=10**9)
    host.jobs.submit(jobs.Allocate(10**6, 10**6, 256))
    host.collect(1)
    with pytest.raises(HardwareError, match="GD-502") as caught:
        host.jobs.submit(jobs.Allocate(10**9, 10**9, 256))
    assert not isinstance(caught.value, MemoryShortError), "the peer ends: another start would say the same"
    assert "1,000,000,000 parameters need" in caught.value.seen and host.jobs.parameters == 10**6
    host.jobs.close()


def test_a_checkpoint_for_which_there_is_no_memory__not_read(tmp_path: Path) -> None:
    schema = Schema.of([("w", (700,), "float32", "parameter")])
    arrays = {"anchor": np.zeros(700, np.float32), "momentum": np.zeros(700, np.float32)}
    Store(tmp_path).save(arrays, meta(1), schema.to_bytes())
    host = Host(tmp_path, free=10**6)
    host.jobs.submit(jobs.Restore())
    with pytest.raises(HardwareError, match="GD-502"):
        host.collect(1)
    assert not host.done and host.jobs.parameters == 0
    host.jobs.close()


def restored(store: Store) -> tuple[Pairwise, list[str], list[Any]]:
    algorithm, told, done = pairwise(), list[str](), list[Any]()
    vectors = VectorJobs(
        algorithm,
        store,
        SharedRegion(),
        room(1 << 50),
        NOTHING_SHARED,
        lambda _, result: done.append(result),
        lambda code, _: told.append(code),
    )
    vectors.submit(jobs.Restore())
    while not done:
        assert select.select([vectors], [], [], 5.0)[0]
        vectors.collect()
    vectors.close()
    return algorithm, told, done


def test_damaged_newest_checkpoint__the_one_before_is_restored(tmp_path: Path) -> None:
    schema = Schema.of([("w", (700,), "float32", "parameter")])
    store = Store(tmp_path)
    for round in (1, 2):
        arrays = {"anchor": np.full(700, round, np.float32), "momentum": np.full(700, -round, np.float32)}
        newest = store.save(arrays, meta(round), schema.to_bytes())
    state = newest / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1] + b"\x01")
    algorithm, told, done = restored(store)
    assert done[0].clock == meta(1).clock and told == ["GD-601"]
    assert (algorithm.ledger.a == 1).all() and (algorithm.ledger.v == -1).all()


@pytest.mark.parametrize(
    ("more", "lookahead"),
    [({}, 0.0), ({"lookahead": np.full(1, 0.5, np.float32)}, 0.5), ({"lookahead": np.ones(2, np.float32)}, 0.0)],
    ids=["of an earlier version", "of this version", "of other chunks"],
)
def test_lookahead_of_a_checkpoint_is_restored(tmp_path: Path, more: dict[str, Any], lookahead: float) -> None:
    schema = Schema.of([("w", (700,), "float32", "parameter")])
    arrays = {"anchor": np.ones(700, np.float32), "momentum": np.full(700, 2.0, np.float32), **more}
    Store(tmp_path).save(arrays, meta(1), schema.to_bytes())
    algorithm, told, _ = restored(Store(tmp_path))
    assert not told and algorithm.ledger.lookahead.tolist() == [lookahead]
    assert (algorithm.ledger.a == 1.0).all() and (algorithm.ledger.v == 2.0).all()


SIZE, TRAINABLE, WIDTH = 60_000, 51_200, 8192
PLENTY = Room(MemoryPlan(), held=lambda: 0, free=lambda: Free(1 << 50, 1 << 50, "this machine"))


class Peer:
    """An algorithm behind `VectorJobs`, bound to buffers of its own."""

    def __init__(self, algorithm: Pairwise, home: Path, workers: int, seed: int) -> None:
        self.algorithm, self.results, self.asked = algorithm, list[Any](), list[Any]()
        self.vectors = VectorJobs(
            algorithm, Store(home), SharedRegion(), PLENTY, NOTHING_SHARED, self._done, print, workers
        )
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


def met(home: Path, workers: int, codec: str) -> list[Any]:
    """Both peers step, exchange all chunks, and freeze. Everything that the protocol or a file would see."""
    i, j = (Peer(pairwise(), home, workers, seed) for seed in (1, 2))
    seen: list[Any] = []
    for number in range(2):
        for peer in (i, j):
            asked = [*map(jobs.Check, peer.chunks), *(jobs.OuterStep(chunk, 0.7, 0.6, 0) for chunk in peer.chunks)]
            seen += peer.run(asked)
        keys = [jobs.ChunkKey(i.id, number, chunk) for chunk in i.chunks]
        turns = i.run([jobs.Begin(key=key, coding=jobs.Coding(codec=codec, lower=True)) for key in keys])
        coding, mixing = jobs.Coding(codec=codec, lower=False), jobs.Mixing(weight=0.5, pull=0.4)
        pairs = zip(keys, turns, strict=True)
        turns = j.run([jobs.Answer(key=key, coding=coding, ranges=t.buffers[0]) for key, t in pairs])
        first, open_ = True, keys
        while open_:
            asked = [jobs.Decode(key=key, buffers=t.buffers, first=first) for key, t in zip(open_, turns, strict=True)]
            turns, first = i.run(asked), False
            asked_back = zip(open_, turns, strict=True)
            asked = [
                jobs.DecodeAndMix(key=key, buffers=t.buffers, bound=t.bound, mixing=mixing) for key, t in asked_back
            ]
            turns = j.run(asked)
            mixed = [(key, t) for key, t in zip(open_, turns, strict=True) if t.mixed]
            asked = [jobs.Mix(key=key, buffers=t.buffers, share=t.share, mixing=mixing) for key, t in mixed]
            assert all(t.mixed for t in i.run(asked))
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
    one = met(tmp_path, 1, codec)
    assert met(tmp_path, 2, codec) == one == met(tmp_path, 3, codec)


def test_every_kind_of_job_has_a_place_or_runs_alone() -> None:
    key = jobs.ChunkKey(b"", 1, 5)
    placed = {
        jobs.Begin, jobs.Answer, jobs.Decode, jobs.DecodeAndMix, jobs.Mix, jobs.Check, jobs.OuterStep, jobs.Found,
        jobs.Attach, jobs.Freeze, jobs.HashPiece, jobs.CheckPiece, jobs.Adopt, jobs.Resync, jobs.Conclude,
        jobs.CheckMoments, jobs.Rest,
    }  # fmt: skip
    for kind in placed:
        fields = dict.fromkeys(kind.__dataclass_fields__, 0) | {"key": key, "chunk": 5}
        job: Any = kind(**{name: fields[name] for name in kind.__dataclass_fields__})
        assert place_of(job) == 5, kind
    named = [getattr(jobs, name) for name in jobs.__all__]
    kinds = {kind for kind in named if isinstance(kind, type) and issubclass(kind, jobs.Job)}
    assert kinds - {jobs.Job, jobs.OfExchange} - placed == {
        jobs.Allocate, jobs.Restore, jobs.Bind, jobs.Unbind, jobs.Renew, jobs.Widen, jobs.Seal, jobs.Release, jobs.Drop,
        jobs.Keep, jobs.Sample, jobs.Compare,
    }  # fmt: skip
