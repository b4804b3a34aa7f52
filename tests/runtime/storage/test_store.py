"""Checkpoints are read back bit for bit, and the newest is known."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from safetensors.numpy import load_file

from gossipdp.runtime.files import Files
from gossipdp.runtime.storage import checkpoint as runtime_checkpoint
from gossipdp.runtime.storage import store as runtime_store
from gossipdp.runtime.storage.store import Store
from tests.runtime.storage.samples import meta, vectors


def test_saved_checkpoint_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    store = Store(tmp_path / "checkpoints")
    arrays = {
        "a": np.random.default_rng(0).standard_normal(70_001).astype(np.float32),
        "v": np.zeros(70_001, np.float32),
        "range": np.ones(274, np.float32),
        "counts": np.arange(5, dtype=np.int64),
    }
    path = store.save(arrays, meta(), b"the schema")
    checkpoint, notices = store.latest()
    assert checkpoint is not None and not notices
    assert checkpoint.path == path and checkpoint.schema == b"the schema" and checkpoint.meta == meta()
    for name, array in arrays.items():
        assert checkpoint.read(name).tobytes() == array.tobytes()
    out = np.empty(70_001, np.float32)
    checkpoint.load({"a": out})
    assert np.array_equal(out, arrays["a"])


def test_checkpoint_is_plain_safetensors_and_json(tmp_path: Path) -> None:
    path = Store(tmp_path).save(vectors(2), meta(2), b"s")
    assert np.array_equal(load_file(path / "state.safetensors")["v"], vectors(2)["v"])
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["meta"]["round"] == 2 and manifest["meta"]["peer"] == "cd" * 32
    assert manifest["files"]["schema.bin"]["bytes"] == 1


def test_files_are_private_to_the_user(tmp_path: Path) -> None:
    path = Store(tmp_path / "c").save(vectors(1), meta(), b"s")
    assert [oct(file.stat().st_mode & 0o777) for file in sorted(path.iterdir())] == ["0o600"] * 3
    assert path.stat().st_mode & 0o077 == 0


def test_no_checkpoint_yet_gives_none(tmp_path: Path) -> None:
    assert Store(tmp_path / "never").latest() == (None, [])


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=2)
    for round in range(1, 6):
        store.save(vectors(round), meta(round), b"s")
    assert [store.verify(path).meta.round for path in store.list()] == [4, 5]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-00000004", "checkpoint-00000005"]


def test_vectors_larger_than_a_piece_are_written_and_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_store, "PIECE", 4096)
    monkeypatch.setattr(runtime_checkpoint, "PIECE", 4096)
    largest = 0

    class Watched(Files):
        def write(self, file: IO[bytes], piece: memoryview) -> None:
            nonlocal largest
            if str(file.name).endswith("state.safetensors"):
                largest = max(largest, piece.nbytes)
            super().write(file, piece)

    store = Store(tmp_path, files=Watched())
    array = np.arange(50_000, dtype=np.float32)
    store.save({"a": array}, meta(), b"s")
    assert largest == 4096
    checkpoint, _ = store.latest()
    assert checkpoint is not None
    pieces = list(checkpoint.pieces("a", 100, 5000))
    assert max(len(piece) for piece in pieces) == 1024
    assert np.array_equal(np.concatenate(pieces), array[100:5000])


def test_checkpoint_can_be_written_chunk_by_chunk(tmp_path: Path) -> None:
    store = Store(tmp_path)
    layout = {"a": ("float32", (1000,)), "v": ("float32", (1000,))}
    writer = store.begin(meta(), b"s", layout)
    for name in layout:
        for start in range(0, 1000, 256):
            writer.write(vectors(1)[name][start : start + 256])
            assert store.list() == []
    writer.commit()
    checkpoint, _ = store.latest()
    assert checkpoint is not None and np.array_equal(checkpoint.read("v"), vectors(1)["v"])


def test_bytes_beyond_the_layout_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    writer = store.begin(meta(), b"s", {"a": ("float32", (10,))})
    with pytest.raises(ValueError, match="more bytes"):
        writer.write(np.zeros(11, np.float32))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="missing"):
        store.begin(meta(), b"s", {"a": ("float32", (10,))}).commit()


def test_newest_is_known_from_its_manifest(tmp_path: Path) -> None:
    store = Store(tmp_path / "c")
    assert store.newest() is None
    paths = [store.save(vectors(round), meta(round), b"s") for round in (1, 2, 3)]
    assert store.newest() == (paths[2], meta(3))
    (paths[2] / "manifest.json").write_bytes(b"{")
    (paths[1] / "state.safetensors").write_bytes(b"damaged, which only reading all of it would tell")
    assert store.newest() == (paths[1], meta(2))


def test_when_a_checkpoint_was_saved_is_in_its_manifest(tmp_path: Path) -> None:
    path = Store(tmp_path).save(vectors(1), meta(1), b"s")
    assert Store.saved_at(path) == json.loads((path / "manifest.json").read_text())["saved_at"] > 1.7e9
    (path / "manifest.json").write_bytes(b"{")
    assert math.isnan(Store.saved_at(path)) and math.isnan(Store.saved_at(tmp_path / "none"))


def test_restore_reads_each_byte_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_store, "PIECE", 1 << 20)
    size = 2_000_000
    store = Store(tmp_path)
    path = store.save({"a": np.arange(size, dtype=np.float32), "v": np.ones(size, np.float32)}, meta(), b"s")
    counts: list[int] = []
    preadv = os.preadv

    def counted(file: int, rooms: list[memoryview], at: int) -> int:
        counts.append(preadv(file, rooms, at))
        return counts[-1]

    monkeypatch.setattr(os, "preadv", counted)
    read = {"a": np.zeros(size, np.float32), "v": np.zeros(size, np.float32)}
    checkpoint, notices = store.latest(lambda _: read)
    assert checkpoint is not None and not notices
    assert np.array_equal(read["a"], np.arange(size, dtype=np.float32)) and (read["v"] == 1).all()
    header_and_schema = (1 << 20) + 1
    assert sum(counts) == (path / "state.safetensors").stat().st_size + header_and_schema
