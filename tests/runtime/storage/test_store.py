"""Checkpoints are read back bit for bit, the newest is known, pins stay, and a damaged one is never used."""

import hashlib
import json
import math
import os
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from gossipdp.errors import DataError
from gossipdp.runtime.files import Files
from gossipdp.runtime.storage import checkpoint as runtime_checkpoint
from gossipdp.runtime.storage import store as runtime_store
from gossipdp.runtime.storage.store import PINS, Store
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


def test_pinned_checkpoint_outlives_all_pruning_and_loads(tmp_path: Path) -> None:
    store = Store(tmp_path / "c", keep=2)
    first = store.save(vectors(1), meta(1), b"s")
    store.pin(first, "GD-605 it is later")
    store.pin(first, "and again")
    assert store.pinned(first) and (first / "pinned").read_text() == "GD-605 it is later\n"
    later = [store.save(vectors(round), meta(round), b"s") for round in (2, 3, 4)]
    assert store.list() == [first, *later[1:]] and not store.pinned(later[2])
    assert Store.verify(first).meta == meta(1)
    assert store.why_pinned(first) == "GD-605 it is later" and store.why_pinned(later[2]) is None
    (first / "pinned").unlink()
    store.save(vectors(5), meta(5), b"s")
    assert first not in store.list()


def test_only_the_newest_pins_are_kept__and_lost_pins_are_returned(tmp_path: Path) -> None:
    store = Store(tmp_path / "c", keep=1)
    pinned, told = [], []
    for round in range(1, PINS + 3):
        pinned.append(store.save(vectors(round), meta(round), b"s"))
        told += store.pin(pinned[-1], "it is later")
    assert told == pinned[:2] and not any(map(store.pinned, told))
    last = store.save(vectors(9), meta(9), b"s")
    assert store.list() == [*pinned[2:], last]
    assert store.pin(pinned[3], "again") == []


def test_pin_with_a_torn_reason_is_a_pin(tmp_path: Path) -> None:
    store = Store(tmp_path / "c", keep=1)
    first = store.save(vectors(1), meta(1), b"s")
    for torn in (b"", b"x" * 5000):
        (first / "pinned").write_bytes(torn)
        assert store.pinned(first) and store.why_pinned(first) == ""
    store.save(vectors(2), meta(2), b"s")
    assert first in store.list()


def test_checkpoint_that_cannot_be_pinned_is_an_error_with_a_code(tmp_path: Path) -> None:
    store = Store(tmp_path / "c")
    with pytest.raises(DataError, match="GD-602"):
        store.pin(store.dir / "checkpoint-00000001", "there is none")


def flip(path: Path, at: int) -> None:
    contents = bytearray(path.read_bytes())
    contents[at] ^= 1
    path.write_bytes(contents)


DAMAGE = {
    "one bit of a vector": lambda path: flip(path / "state.safetensors", -5),
    "one bit of the header": lambda path: flip(path / "state.safetensors", 12),
    "one bit of the schema": lambda path: flip(path / "schema.bin", 0),
    "one bit of the manifest's hash": lambda path: flip(path / "manifest.json", -20),
    "cut short": lambda path: os.truncate(path / "state.safetensors", 2000),
    "empty": lambda path: os.truncate(path / "state.safetensors", 0),
    "longer": lambda path: os.truncate(path / "state.safetensors", 20_000),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "no vectors": lambda path: (path / "state.safetensors").unlink(),
    "manifest of zeros": lambda path: (path / "manifest.json").write_bytes(bytes(500)),
    "manifest without end": lambda path: (path / "manifest.json").write_bytes(b"[" * (1 << 20)),
    "manifest without bottom": lambda path: (path / "manifest.json").write_bytes(b'{"x":' + b"[" * 60_000),
    "manifest of no version": lambda path: (path / "manifest.json").write_text(
        (path / "manifest.json").read_text().replace('"format": 3', '"format": 0')
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_checkpoint_is_skipped_with_a_notice(tmp_path: Path, damage: Any) -> None:
    store = Store(tmp_path)
    older, newer = (store.save(vectors(round), meta(round), b"schema") for round in (1, 2))
    damage(newer)
    checkpoint, notices = store.latest()
    assert checkpoint is not None and checkpoint.path == older and checkpoint.read("a")[0] == 1
    assert len(notices) == 1
    assert str(notices[0]).startswith(f"GD-601 checkpoint {newer} is damaged\n  seen: ")
    assert notices[0].text.endswith(f"\n  used: {older}")


@pytest.mark.parametrize("added", [{}, {"parts": 16}], ids=["as now", "with more in it"])
def test_checkpoint_of_a_later_version_is_skipped_without_advice_to_delete_it(
    tmp_path: Path, added: dict[str, int]
) -> None:
    store = Store(tmp_path)
    older, newer = (store.save(vectors(round), meta(round), b"schema") for round in (1, 2))
    manifest = json.loads((newer / "manifest.json").read_text()) | {"format": 4} | added
    (newer / "manifest.json").write_text(json.dumps(manifest))
    checkpoint, [notice] = store.latest()
    assert checkpoint is not None and checkpoint.path == older and store.newest() == (older, meta(1))
    assert str(notice) == (
        f"GD-601 checkpoint {newer} was written by a later version of gossipdp\n"
        "  seen: format 4, this version reads 3\n"
        "  do:   upgrade gossipdp on this host\n"
        "  more: gossipdp explain GD-601\n"
        f"  used: {older}"
    )


def test_every_checkpoint_damaged_gives_none_and_a_notice_each(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for round in (1, 2):
        flip(store.save(vectors(round), meta(round), b"schema") / "state.safetensors", -1)
    checkpoint, notices = store.latest()
    assert checkpoint is None and len(notices) == 2
    assert all(notice.text.endswith("used: none, no older one is left") for notice in notices)


def test_hostile_header_with_a_matching_hash_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.save(vectors(1), meta(), b"s")
    state = path / "state.safetensors"
    for hostile in ((1 << 40).to_bytes(8, "little") + b"{}", (5).to_bytes(8, "little") + b"{{{{{", b""):
        state.write_bytes(hostile)
        manifest = json.loads((path / "manifest.json").read_text())
        digest = hashlib.blake2b(hostile, digest_size=32).hexdigest()
        manifest["files"]["state.safetensors"] = {"bytes": len(hostile), "blake2b": digest}
        (path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(DataError, match="GD-601"):
            store.verify(path)


def test_manifest_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    path = Store(tmp_path).save(vectors(1), meta(), b"s")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["../../etc/passwd"] = manifest["files"].pop("schema.bin")
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="the manifest names"):
        Store.verify(path)


def test_damage_is_named_by_its_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_store, "PIECE", 4096)
    path = Store(tmp_path).save(vectors(1, 10_000), meta(), b"s")
    flip(path / "state.safetensors", 50_000)
    flip(path / "state.safetensors", 70_000)
    with pytest.raises(DataError, match=r"state\.safetensors: bytes 49152 to 53248 do not match their hash"):
        Store.verify(path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["state.safetensors"]["pieces"].pop()
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="19 hashes for 20 pieces"):
        Store.verify(path)


def as_format_2(path: Path) -> None:
    """Give a checkpoint the manifest that versions before format 3 wrote."""
    manifest = json.loads((path / "manifest.json").read_text()) | {"format": 2}
    for name in manifest["files"]:
        contents = (path / name).read_bytes()
        digest = hashlib.blake2b(contents, digest_size=32).hexdigest()
        manifest["files"][name] = {"bytes": len(contents), "blake2b": digest}
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_checkpoint_with_one_hash_a_file_still_loads__and_its_damage_is_noticed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.save(vectors(3, 2_500_000), meta(3), b"schema")  # 20 MB: several reads for one hash
    as_format_2(path)
    read = {"a": np.zeros(2_500_000, np.float32)}
    checkpoint = store.verify(path, lambda _: read)
    assert checkpoint.schema == b"schema" and (read["a"] == 3).all()
    flip(path / "state.safetensors", 15_000_000)
    with pytest.raises(DataError, match="do not match their hash"):
        store.verify(path)


@pytest.mark.parametrize(("size", "dtype"), [(999, np.float32), (1000, np.float64)])
def test_arrays_of_another_form_are_not_filled(tmp_path: Path, size: int, dtype: Any) -> None:
    path = Store(tmp_path).save(vectors(1), meta(), b"s")
    with pytest.raises(DataError, match=r"GD-601 .*\n.*asked for"):
        Store.verify(path, lambda _: {"a": np.zeros(size, dtype)})
    with pytest.raises(DataError, match="none is"):
        Store.verify(path, lambda _: {"none": np.zeros(1, np.float32)})
