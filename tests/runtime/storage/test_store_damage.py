"""A damaged checkpoint is never used."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossipdp.errors import DataError
from gossipdp.runtime.storage import store as runtime_store
from gossipdp.runtime.storage.store import Store
from tests.runtime.storage.samples import meta, vectors


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
    assert notices[0].startswith(f"GD-601 checkpoint {newer} is damaged\n  seen: ")
    assert notices[0].endswith(f"\n  used: {older}")


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
    assert notice == (
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
    assert all(notice.endswith("used: none, no older one is left") for notice in notices)


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
