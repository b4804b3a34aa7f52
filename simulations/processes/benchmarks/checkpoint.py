"""A checkpoint and its restore, against the same work step by step.

    python -m simulations.processes.benchmarks.checkpoint [--parameters 25000000] [--runs 5] [--folder DIR]

Step by step means: each piece is copied, written, then hashed; to restore, the file is hashed, then read. Every run
times that right before the daemon's way, and gives a ratio. The figure is the median of the ratios. Each restore is
compared with what was saved. Files come from the page cache if memory allows, so the restore is bound by the cores.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import select
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gossipdp.algorithms.ledger import Ledger
from gossipdp.codecs.base import Vector
from gossipdp.errors import DataError
from gossipdp.protocol.schema import Schema, chunk_parameters
from gossipdp.runtime.compute import Compute
from gossipdp.runtime.storage.checkpoint import CheckpointMeta
from gossipdp.runtime.storage.checkpointer import Checkpointer
from gossipdp.runtime.storage.pieces import PIECE
from gossipdp.runtime.storage.store import Store

MARK = 1.0
"""largest ratio of each direction"""
META = CheckpointMeta(
    network="bench", run="", peer="", incarnation=1, round=1, clock=1, steps=1, samples=1, schema=""
)  # fmt: skip


def saved_step_by_step(ledger: Ledger, path: Path) -> None:
    digest = hashlib.blake2b(digest_size=32)
    new = path.with_suffix(".new")
    with open(new, "wb", buffering=0) as file:
        for vector in (ledger.a, ledger.v):
            for chunk in range(ledger.chunks):
                piece = vector[ledger.span(chunk)].copy()
                file.write(piece.data)
                digest.update(piece.data)
        os.fsync(file.fileno())
    new.replace(path)


def saved(ledger: Ledger, schema: bytes, store: Store) -> None:
    """Save as the daemon does: copies on the compute thread, the rest on the storage thread."""
    outcomes: list[Path | DataError] = []
    compute = Compute(lambda work: work[0]())

    def call(function: Callable[[], Any], done: Callable[[Any], None], place: int | None = None) -> None:
        compute.submit((function, done))

    checkpointer = Checkpointer(store, call, outcomes.append)
    poll = select.poll()
    poll.register(compute, select.POLLIN)
    poll.register(checkpointer, select.POLLIN)
    checkpointer.save(ledger, META, schema)
    while not outcomes:
        poll.poll()
        for finished in compute.collect():
            finished.work[1](finished.result)
        checkpointer.collect()
    checkpointer.close()
    compute.close()
    if isinstance(outcomes[0], DataError):
        raise outcomes[0]


def restored_step_by_step(path: Path, vectors: dict[str, Vector]) -> None:
    digest, room = hashlib.blake2b(digest_size=32), memoryview(bytearray(PIECE))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(room):
            digest.update(room[:count])
        file.seek(0)
        for vector in vectors.values():
            file.readinto(vector.data.cast("B"))


def restored(store: Store, vectors: dict[str, Vector]) -> None:
    checkpoint, notices = store.latest(lambda _: vectors)
    assert checkpoint is not None and not notices


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(parameters: int, runs: int, folder: Path) -> dict[str, tuple[float, float]]:
    """For each direction, the median of the ratios, and that of the seconds a gigabyte."""
    schema = Schema.of([("w", (parameters,), "float32", "parameter")]).to_bytes()
    ledger = Ledger(parameters, parameters, chunk_parameters(parameters))
    ledger.a[:], ledger.v[:] = np.arange(parameters), -1.0
    store, plain = Store(folder / "checkpoints", keep=1), folder / "plain"
    vectors = {"anchor": np.zeros_like(ledger.a), "momentum": np.zeros_like(ledger.v)}
    times: dict[str, list[tuple[float, float]]] = {"checkpoint": [], "restore": []}
    for _ in range(runs):
        before = seconds(lambda: saved_step_by_step(ledger, plain))
        times["checkpoint"].append((before, seconds(lambda: saved(ledger, schema, store))))
        before = seconds(lambda: restored_step_by_step(plain, vectors))
        for vector in vectors.values():
            vector[:] = 0.0
        times["restore"].append((before, seconds(lambda: restored(store, vectors))))
        assert np.array_equal(vectors["anchor"], ledger.a) and np.array_equal(vectors["momentum"], ledger.v)
    size = 8 * parameters / 1e9
    return {
        name: (
            statistics.median(after / before for before, after in pairs),
            statistics.median(after for _, after in pairs) / size,
        )
        for name, pairs in times.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to be measured")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=words.folder) as folder:
        found = measure(words.parameters, words.runs, Path(folder))
    for name, (ratio, took) in found.items():
        print(f"{name}: {ratio:.2f} of the time step by step (mark {MARK:.2f}); {took:.2f} s a GB here")
    return int(any(ratio > MARK for ratio, _ in found.values()))


if __name__ == "__main__":
    sys.exit(main())
