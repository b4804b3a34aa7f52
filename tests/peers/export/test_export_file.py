"""Exports to one file, with tied names and prefixes."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file

from gossipdp.codecs import named
from gossipdp.errors import DataError, MismatchError
from gossipdp.protocol.schema import Schema
from gossipdp.runtime import progress
from gossipdp.runtime.storage.checkpoint import Checkpoint
from gossipdp.runtime.storage.store import Store
from peers import export
from tests.peers.export.models import Save, base_of, grid, meta


def test_a_file_has_named_tensors_in_the_models_dtypes(tmp_path: Path) -> None:
    schema = Schema.of(
        [
            ("layer.weight", (4, 3), "float32", "parameter"),
            ("layer.bias", (4,), "bfloat16", "parameter"),
            ("running_mean", (), "float64", "buffer"),
            ("head.weight", (2, 5), "float16", "parameter"),
        ]
    )
    at = {entry.name: slice(entry.offset, entry.stop) for entry in schema.entries}
    values = np.random.default_rng(1).standard_normal(schema.size).astype(np.float32)
    values[at["layer.bias"]] = [1 + 2**-8, 1 + 3 * 2**-8, -1.001, 3e38]  # two ties, and two that are none
    values[at["head.weight"]][4] = 1e6
    store = Store(tmp_path / "c")
    store.save({"anchor": values, "momentum": np.zeros_like(values)}, meta(), schema.to_bytes())
    checkpoint, _ = store.latest()
    assert checkpoint is not None
    (tmp_path / f".unfinished-model.safetensors-{os.getpid()}").write_bytes(b"of a process of this number, killed")
    export.export_file(export.trained(checkpoint), tmp_path / "model.safetensors")
    tensors = dict(safetensors.deserialize((tmp_path / "model.safetensors").read_bytes()))
    assert {name: (tensor["dtype"], tensor["shape"]) for name, tensor in tensors.items()} == {
        "layer.weight": ("F32", [4, 3]),
        "layer.bias": ("BF16", [4]),
        "head.weight": ("F16", [2, 5]),
        "running_mean": ("F64", []),
    }
    assert bytes(tensors["layer.weight"]["data"]) == values[at["layer.weight"]].tobytes()
    bias = (np.frombuffer(tensors["layer.bias"]["data"], np.uint16).astype(np.uint32) << 16).view(np.float32)
    assert bias[:3].tolist() == [1.0, 1 + 2**-6, -1.0] and abs(bias[3] / 3e38 - 1) < 2**-9
    half = np.frombuffer(tensors["head.weight"]["data"], np.float16)
    assert half[4] == 65504, "past the range of float16: its largest number, never infinity"
    assert np.array_equal(np.delete(half, 4), np.delete(values[at["head.weight"]], 4).astype(np.float16))
    assert np.frombuffer(tensors["running_mean"]["data"], np.float64) == np.float64(values[at["running_mean"]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "model.safetensors"]


@pytest.mark.parametrize("based", [False, True], ids=["alone", "on a base"])
def test_model_is_the_anchor_without_the_lookahead_of_each_chunk(tmp_path: Path, *, based: bool) -> None:
    tensors = [("a", (9000,), "float32", "parameter"), ("b", (4000,), "float16", "parameter")]
    schema = Schema.of([*tensors, ("mean", (5,), "float32", "buffer")])  # type: ignore[list-item]
    assert len(schema.spans()) == 3, "a is in two chunks"
    anchor, momentum = np.random.default_rng(1).standard_normal((2, schema.size)).astype(np.float32)
    ahead = np.array([0.5, 0.25, 0.0], np.float32)
    arrays = {"anchor": anchor, "momentum": momentum, "lookahead": ahead}
    saved = Store.verify(Store(tmp_path / "c").save(arrays, meta(), schema.to_bytes()))
    whole = anchor + np.repeat(ahead, [span.stop - span.start for span in schema.spans()]) * momentum
    if based:
        base = {"a": grid(9000), "b": grid(4000), "mean": grid(5)}
        export.export_model(saved, tmp_path / "out", base_of(tmp_path / "base", base))
    else:
        export.export_file(export.trained(saved), tmp_path / "out" / "model.safetensors")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert np.array_equal(found["a"], whole[:9000]) and np.array_equal(found["b"], whole[9000:13000].astype(np.float16))
    assert np.array_equal(found["mean"], anchor[schema.entries[2].offset :][:5])


@pytest.mark.parametrize("schema", [b"", b"\xc1", Schema.of([("w", (7,), "float32", "parameter")]).to_bytes()])
def test_a_schema_that_does_not_fit_the_vector_is_not_exported(tmp_path: Path, schema: bytes) -> None:
    store = Store(tmp_path / "c")
    store.save({"anchor": np.zeros(8, np.float32)}, meta(), schema)
    checkpoint, _ = store.latest()
    assert checkpoint is not None
    with pytest.raises(DataError, match="GD-601"):
        export.trained(checkpoint)


TIED = {"embed.weight": ("head.weight", "again.weight")}


@pytest.fixture
def tied(tmp_path: Path) -> Checkpoint:
    tensors = [("embed.weight", (4, 3), "float32", "parameter"), ("bias", (4,), "float32", "parameter")]
    schema = Schema.of(tensors, also=TIED)  # type: ignore[arg-type]
    store = Store(tmp_path / "c")
    return store.verify(store.save({"anchor": grid(16).ravel()}, meta(schema.digest.hex()), schema.to_bytes()))


def test_tied_weight__every_name_is_written_with_numbers_of_its_own(tied: Checkpoint, tmp_path: Path) -> None:
    export.export_file(export.trained(tied), tmp_path / "model.safetensors")
    tensors = dict(safetensors.deserialize((tmp_path / "model.safetensors").read_bytes()))
    assert set(tensors) == {"embed.weight", "head.weight", "again.weight", "bias"}
    assert {bytes(tensors[name]["data"]) for name in ("embed.weight", *TIED["embed.weight"])} == {grid(12).tobytes()}


def test_state_of_a_tensor_that_is_in_the_vector_too_has_all_its_names(tmp_path: Path) -> None:
    tensors = [("embed.weight", (4, 3), "float32", "parameter"), ("norm.mask", (2,), "float32", "buffer")]
    schema = Schema.of(tensors, also={**TIED, "norm.mask": ("net.1.mask",)})  # type: ignore[arg-type]
    masks = ("norm.mask", "net.1.mask")
    head = named.header([*((name, "F32", (2,)) for name in masks), ("embed.count", "I64", ())])
    state = np.frombuffer(head + np.array([0, 1, 0, 1], np.float32).tobytes() + np.array(5).tobytes(), np.uint8)
    store = Store(tmp_path / "c")
    arrays = {"anchor": grid(schema.size).ravel(), "state": state}
    saved = store.verify(store.save(arrays, meta(schema.digest.hex()), schema.to_bytes()))
    found = export.trained(saved)
    assert set(found) == {"embed.weight", *TIED["embed.weight"], *masks, "embed.count"}
    assert found["norm.mask"] is found["net.1.mask"], "one tensor, of which a base may have either name"
    export.export_file(found, tmp_path / "model.safetensors")
    assert load_file(tmp_path / "model.safetensors")["net.1.mask"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("saved", [["embed.weight"], ["head.weight"], ["embed.weight", "again.weight"]])
def test_tied_weight_and_a_base_that_has_some_of_its_names__these_are_written(
    tied: Checkpoint, tmp_path: Path, saved: list[str]
) -> None:
    base = base_of(tmp_path / "base", {name: grid(4, 3, start=100) for name in saved} | {"bias": grid(4)})
    made = export.export_model(tied, tmp_path / "out", base)
    tensors = dict(safetensors.deserialize((tmp_path / "out" / "model.safetensors").read_bytes()))
    assert set(tensors) == {*saved, "bias"} and made.trained == len(saved) + 1
    assert {bytes(tensors[name]["data"]) for name in saved} == {grid(12).tobytes()}


def test_numbers_of_each_type_begin_at_a_multiple_of_their_size(checkpoint: Save, tmp_path: Path) -> None:
    saved = checkpoint({"a": "float16"}, a=grid(3), b=grid(2), c=grid(1))
    export.export_file(export.trained(saved), tmp_path / "out.safetensors")
    raw = (tmp_path / "out.safetensors").read_bytes()
    entries = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert {name: entries[name]["data_offsets"][0] for name in "abc"} == {"b": 0, "c": 8, "a": 12}
    assert load_file(tmp_path / "out.safetensors")["b"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("prefixes", "names"),
    [
        ((), ["module.w", "module.b", "head"]),
        (("module.",), ["w", "b", "head"]),
        (("module.", "he"), ["w", "b", "ad"]),
    ],
)
def test_prefixes_are_taken_off_names(checkpoint: Save, prefixes: tuple[str, ...], names: list[str]) -> None:
    saved = checkpoint(module__w=grid(2), module__b=grid(1), head=grid(1))
    assert list(export.trained(saved, prefixes)) == names


@pytest.mark.parametrize(
    ("prefix", "cause", "seen"),
    [
        ("model.", "no tensor of the checkpoint has the prefix 'model.'", "its first tensor is module.w"),
        ("module.", "without the prefix 'module.' two tensors have the same name", "w"),
    ],
)
def test_a_prefix_of_no_name_or_that_makes_two_names_one_is_gd_301(
    checkpoint: Save, prefix: str, cause: str, seen: str
) -> None:
    with pytest.raises(MismatchError, match="GD-301") as caught:
        export.trained(checkpoint(module__w=grid(2), w=grid(1)), (prefix,))
    assert (caught.value.cause, caught.value.seen) == (cause, seen)


def test_a_directory_gets_shards_with_an_index__and_a_later_export_replaces_them(
    checkpoint: Save, tmp_path: Path
) -> None:
    saved = checkpoint(a=grid(10), b=grid(5, start=1.0), c=grid(5, start=2.0))
    tensors, out, lines = export.trained(saved), tmp_path / "out", list[str]()
    assert export.export_files(tensors, out, shard=60) == 2
    names = [f"model-0000{at}-of-00002.safetensors" for at in (1, 2)]
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {"a": names[0], "b": names[0], "c": names[1]}
    assert index["metadata"] == {"total_size": 80}
    assert np.array_equal(load_file(out / names[1])["c"], grid(5, start=2.0))
    assert export.export_files(tensors, out, say=lines.append) == 1 and not lines
    assert not (out / "model.safetensors.index.json").exists() and len(load_file(out / "model.safetensors")) == 3
    assert export.export_files(tensors, out, shard=60) == 2
    assert sorted(path.name for path in out.iterdir()) == [*names, "model.safetensors.index.json"]


def test_what_lasts_tells_amount_rate_and_time_left(
    checkpoint: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "AFTER", 0.0)
    lines: list[str] = []
    export.export_file(export.trained(checkpoint(a=grid(10), b=grid(5))), tmp_path / "m", say=lines.append)
    assert len(lines) == 1 and lines[0].startswith("writing m: 0.0 of 0.0 GB, ") and lines[0].endswith(" s left")
