"""Exports: named tensors in the model's types, alone or with a base, as `from_pretrained` reads them."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file

import peers.cli
from gossipdp.codecs.named import header
from gossipdp.errors import DataError, MismatchError
from gossipdp.protocol.schema import Schema
from gossipdp.runtime.storage.checkpoint import Checkpoint
from gossipdp.runtime.storage.store import Store
from peers import export
from peers.export_base import Base
from tests.peers.export.models import Save, base_of, grid, meta


def test_what_is_not_trained_and_what_is_no_weight_comes_from_the_base(checkpoint: Save, tmp_path: Path) -> None:
    base = base_of(
        tmp_path / "base",
        {"w": grid(2, 3), "frozen": grid(4).astype(np.float16), "count": np.array(3), "b": np.zeros((), np.float32)},
        model_type="tiny",
    )
    beside = {
        "tokenizer.json": "{}",
        "merges.txt": "a b",
        "chat_template.jinja": "{{ x }}",
        "modeling_tiny.py": "X = 1",
    }
    for name, text in {**beside, "trainer_state.json": "{}", "optimizer.pt": "", "training_args.bin": ""}.items():
        (base / name).write_text(text)
    saved = checkpoint(w=grid(2, 3, start=10.0), b=np.float32(5.0).reshape(()))
    made = export.export_model(saved, tmp_path / "out", base)
    assert made == (2, 2, 1, [])
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert np.array_equal(found["w"], grid(2, 3, start=10.0)) and found["b"] == 5.0 and found["count"] == 3
    assert np.array_equal(found["frozen"], grid(4).astype(np.float16)) and found["frozen"].dtype == np.float16
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"config.json", "model.safetensors", *beside}
    assert (tmp_path / "out" / "merges.txt").read_text() == "a b"
    assert {path.name for path in tmp_path.iterdir()} == {"base", "checkpoints", "out"}, "nothing unfinished is left"


def test_a_big_model_is_written_as_shards_and_read_from_them(checkpoint: Save, tmp_path: Path) -> None:
    tensors = {"a": grid(10), "b": grid(5, start=1.0), "c": grid(5, start=2.0), "d": grid(40, start=3.0)}
    base = base_of(tmp_path / "base", tensors)
    saved = checkpoint(b=grid(5, start=9.0))
    made = export.export_model(saved, tmp_path / "out", base, shard=60)
    assert made.files == 3, "40 and 20 bytes, 20, and a tensor of 160 that is alone"
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    names = [f"model-0000{at}-of-00003.safetensors" for at in (1, 2, 3)]
    assert index == {
        "metadata": {"total_size": 240},
        "weight_map": {"a": names[0], "b": names[0], "c": names[1], "d": names[2]},
    }
    assert set(load_file(tmp_path / "out" / names[0])) == {"a", "b"}
    again = export.export_model(saved, tmp_path / "again", tmp_path / "out")
    assert again == (1, 3, 1, []) and not (tmp_path / "again" / "model.safetensors.index.json").exists()
    found = load_file(tmp_path / "again" / "model.safetensors")
    assert all(np.array_equal(found[name], tensors[name]) for name in "acd")
    assert np.array_equal(found["b"], grid(5, start=9.0))


@pytest.mark.parametrize(
    ("config", "dropped"),
    [
        ({"tie_word_embeddings": True, "vocab_size": 4}, ["lm_head.weight"]),
        ({"text_config": {"tie_word_embeddings": True, "vocab_size": 4}}, ["lm_head.weight"]),
        ({"tie_word_embeddings": False, "vocab_size": 4}, []),
        ({"tie_word_embeddings": True, "vocab_size": 5}, []),
    ],
)
def test_a_tied_copy_in_the_base_does_not_stay_as_it_was(
    checkpoint: Save, tmp_path: Path, config: dict[str, Any], dropped: list[str]
) -> None:
    base = base_of(
        tmp_path / "base",
        {
            "wte.weight": grid(4, 2),
            "lm_head.weight": grid(4, 2),
            "other": grid(4, 2, start=1.0),
            "zeros": np.zeros((4, 2), np.float32),
            "bias": np.zeros((4, 2), np.float32),
        },
        **config,
    )
    made = export.export_model(checkpoint(wte__weight=grid(4, 2, start=7.0), bias=grid(4, 2)), tmp_path / "out", base)
    assert made.dropped == dropped
    names = {"wte.weight", "lm_head.weight", "other", "zeros", "bias"} - set(dropped)
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == names


@pytest.mark.parametrize(
    ("frozen", "key", "said"),
    [
        (np.float32, "dtype", "float32"),
        (np.float32, "torch_dtype", "float32"),
        (np.float16, "dtype", "float16"),
    ],
)
def test_the_configuration_says_the_type_of_all_weights(
    checkpoint: Save, tmp_path: Path, frozen: type, key: str, said: str
) -> None:
    base = base_of(
        tmp_path / "base", {"w": grid(2).astype(np.float16), "f": grid(2).astype(frozen)}, **{key: "float16"}
    )
    export.export_model(checkpoint(w=grid(2)), tmp_path / "out", base)
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {key: said}


def test_adapters_of_peft_have_the_names_that_peft_saves(checkpoint: Save, tmp_path: Path) -> None:
    names = {
        "base_model.model.q.lora_A.default.weight": "base_model.model.q.lora_A.weight",
        "base_model.model.e.lora_embedding_A.default": "base_model.model.e.lora_embedding_A",
        "base_model.model.head.modules_to_save.default.weight": "base_model.model.head.weight",
    }
    base = base_of(tmp_path / "base", {name: grid(2) for name in names.values()}, stem="adapter_model")
    (base / "adapter_config.json").write_text("{}")
    saved = checkpoint(**{name: grid(2, start=at) for at, name in enumerate(names, 1)})
    assert export.export_model(saved, tmp_path / "out", base).trained == 3
    found = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert [found[name][0] for name in names.values()] == [1, 2, 3]
    assert (tmp_path / "out" / "adapter_config.json").exists()


@pytest.mark.parametrize(
    ("trained", "seen", "do"),
    [
        ({"module.h.w": (2, 3), "x.h.w": (2, 3)}, "module.h.w is not in BASE, but h.w is", "--strip-prefix module."),
        ({"module.h.w": (2, 3), "module.g": (2,)}, "module.g is not in BASE", "save_original_format=False"),
        ({"w": (2, 3)}, "w is not in BASE, but h.w is", "save the trained model"),
        ({"value_head": (2,)}, "value_head is not in BASE", "save_original_format=False"),
        ({"h.w": (3, 2)}, "h.w has the shape (3, 2), but (2, 3) in BASE", "save the trained model"),
    ],
)
def test_a_base_of_another_model_is_gd_301(
    checkpoint: Save, tmp_path: Path, trained: dict[str, tuple[int, ...]], seen: str, do: str
) -> None:
    base = base_of(tmp_path / "base", {"h.w": grid(2, 3)})
    with pytest.raises(MismatchError, match="GD-301 the base is of another model") as caught:
        export.export_model(
            checkpoint(**{name: grid(*shape) for name, shape in trained.items()}), tmp_path / "out", base
        )
    assert seen in caught.value.seen.replace(str(base), "BASE")
    assert do in caught.value.do
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.module.", "0."])
def test_a_prefix_before_all_names_of_the_base_is_taken_off(checkpoint: Save, tmp_path: Path, prefix: str) -> None:
    base = base_of(tmp_path / "base", {"h.w": grid(2, 3), "w": grid(2), "frozen": grid(4)})
    saved = checkpoint(**{f"{prefix}h.w": grid(2, 3, start=7.0), f"{prefix}w": grid(2, start=9.0)})
    assert export.export_model(saved, tmp_path / "out", base) == (2, 1, 1, [])
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert (found["h.w"][0, 0], found["w"][0], found["frozen"][0]) == (7.0, 9.0, 0.0)


def sentence_transformer(directory: Path) -> Path:
    """As SentenceTransformer saves a model: the first part in the directory itself, two layers of the same names."""
    base_of(directory, {"embed.weight": grid(4, 2), "linear.weight": grid(2, 2)}, dtype="float32")
    parts = {"1_Pooling": {}, "2_Dense": {"linear.weight": grid(2, 3)}, "3_Dense": {"linear.weight": grid(2, 3)}}
    for name, tensors in parts.items():
        base_of(directory / name, tensors) if tensors else (directory / name).mkdir()
        (directory / name / "config.json").write_text(f'{{"part": "{name}"}}')
    listed = [{"name": name[0], "path": name, "type": "..."} for name in [*parts, "4_Normalize"]]
    (directory / "modules.json").write_text(json.dumps([{"name": "0", "path": "", "type": "..."}, *listed]))
    base_of(directory / "checkpoint-500", {"embed.weight": grid(4, 2)})
    return directory


@pytest.mark.parametrize("outer", ["", "0.", "model."])
def test_a_base_of_parts_keeps_their_folders_and_names(checkpoint: Save, tmp_path: Path, outer: str) -> None:
    base = sentence_transformer(tmp_path / "base")
    trained = {
        "0.auto_model.embed.weight": grid(4, 2, start=10.0),
        "0.auto_model.linear.weight": grid(2, 2, start=20.0),
        "3.linear.weight": grid(2, 3, start=30.0),
    }
    saved = checkpoint(**{outer + name: tensor for name, tensor in trained.items()})
    out = tmp_path / "out"
    assert export.export_model(saved, out, base) == (3, 1, 3, [])
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert names == {
        *("config.json", "modules.json", "model.safetensors", "1_Pooling/config.json"),
        *(f"{part}/{name}" for part in ("2_Dense", "3_Dense") for name in ("config.json", "model.safetensors")),
    }
    found = {name: load_file(out / name) for name in names if name.endswith(".safetensors")}
    assert (found["model.safetensors"]["embed.weight"] == trained["0.auto_model.embed.weight"]).all()
    assert (found["model.safetensors"]["linear.weight"] == trained["0.auto_model.linear.weight"]).all()
    assert (found["2_Dense/model.safetensors"]["linear.weight"] == grid(2, 3)).all()
    assert (found["3_Dense/model.safetensors"]["linear.weight"] == trained["3.linear.weight"]).all()


def test_a_pipeline_of_parts_is_a_base_for_modules_by_name(checkpoint: Save, tmp_path: Path) -> None:
    base = tmp_path / "base"
    for part in ("unet", "vae"):
        base.mkdir(exist_ok=True)
        base_of(base / part, {"conv.weight": grid(2, 2)}, stem="diffusion_pytorch_model")
    (base / "model_index.json").write_text(json.dumps({"_class_name": "P", "unet": ["d", "U"], "vae": ["d", "V"]}))
    saved = checkpoint(**{"unet.conv.weight": grid(2, 2, start=5.0)})
    assert export.export_model(saved, tmp_path / "out", base) == (1, 1, 2, [])
    found = [load_file(tmp_path / "out" / part / "diffusion_pytorch_model.safetensors") for part in ("unet", "vae")]
    assert [each["conv.weight"][0, 0] for each in found] == [5.0, 0.0]
    with pytest.raises(MismatchError, match="GD-301") as caught:
        export.export_model(checkpoint(**{"conv.weight": grid(2, 2)}), tmp_path / "other", base)
    assert "but unet/conv.weight is" in caught.value.seen, "one part alone is a base of its own"


def test_two_tensors_that_peft_would_save_under_one_name_are_gd_301(checkpoint: Save, tmp_path: Path) -> None:
    base = base_of(tmp_path / "base", {"b.q.lora_A.weight": grid(2)}, stem="adapter_model")
    saved = checkpoint(b__q__lora_A__one__weight=grid(2), b__q__lora_A__two__weight=grid(2))
    with pytest.raises(MismatchError, match="GD-301") as caught:
        export.export_model(saved, tmp_path / "out", base)
    assert "b.q.lora_A.two.weight and another tensor are both b.q.lora_A.weight in" in caught.value.seen


@pytest.mark.parametrize(
    ("files", "seen"),
    [
        ({}, "no weights in safetensors"),
        ({"pytorch_model.bin": b""}, "no weights in safetensors"),
        ({"a.safetensors": b"", "b.safetensors": b""}, "several models: a.safetensors, b.safetensors"),
        ({"model.safetensors": b"\xff" * 64}, "model.safetensors: header past"),
        ({"modules.json": b"{}"}, "modules.json is not a JSON array"),
        ({"modules.json": b'[{"name": "0"}]'}, "modules.json does not name parts"),
        ({"modules.json": b'[{"name": "0", "path": "../x"}]'}, "../x is no folder of this directory"),
        ({"model_index.json": b'{"/etc": []}'}, "/etc is no folder of this directory"),
        ({"model.safetensors": b"\x02\0\0\0\0\0\0\0{]"}, "model.safetensors: "),
        ({"model.safetensors.index.json": b"[]"}, "model.safetensors.index.json is not a JSON object"),
        ({"model.safetensors.index.json": b'{"weight_map": {}}'}, "does not name files of this directory"),
        ({"model.safetensors.index.json": b'{"weight_map": {"w": "../w"}}'}, "does not name files of this directory"),
        ({"model.safetensors.index.json": b'{"weight_map": {"w": "w.safetensors"}}'}, "w.safetensors: "),
    ],
)
def test_a_directory_that_is_no_base_is_gd_609(tmp_path: Path, files: dict[str, bytes], seen: str) -> None:
    for name, contents in files.items():
        (tmp_path / name).write_bytes(contents)
    with pytest.raises(DataError, match="GD-609") as caught:
        Base(tmp_path)
    assert seen in caught.value.seen and "save_pretrained" in caught.value.do


def test_a_base_that_is_not_there_or_whose_configuration_is_broken_is_gd_609(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="GD-609"):
        Base(tmp_path / "nowhere")
    base = base_of(tmp_path / "base", {"w": grid(2)})
    (base / "config.json").write_text("{")
    with pytest.raises(DataError, match="GD-609") as caught:
        Base(base)
    assert caught.value.seen.startswith("config.json: ")


def test_what_is_there_is_left_as_it_is(checkpoint: Save, tmp_path: Path) -> None:
    base, out = base_of(tmp_path / "base", {"w": grid(2)}), tmp_path / "out"
    out.mkdir()
    saved = checkpoint(w=grid(2, start=1.0))
    export.export_model(saved, out, base)
    for taken in (out, out / "config.json"):
        with pytest.raises(DataError, match="GD-602") as caught:
            export.export_model(saved, taken, base)
        assert "already exists" in caught.value.seen
    assert {path.name for path in out.iterdir()} == {"config.json", "model.safetensors"}


def test_the_command_says_what_it_wrote_and_which_base_is_none(
    checkpoint: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("GOSSIPDP_")]:
        monkeypatch.delenv(variable)
    checkpoint(module__wte=grid(4, 2, start=1.0))
    config = {"tie_word_embeddings": True, "vocab_size": 4}
    base_of(tmp_path / "base", {"wte": grid(4, 2), "head": grid(4, 2), "frozen": grid(300)}, **config)
    words = ["--home", str(tmp_path), "checkpoint", "export", "out", "--base", "base", "--strip-prefix", "module."]
    assert peers.cli.main([*words, "--shard", "1e-6"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "wrote out: 1 tensors of round 7, 1 of base; files of weights: 2",
        "left out head: it is tied, and from_pretrained ties it again",
    ]
    assert peers.cli.main([*words[:-2], "--base", "nowhere"]) == 8
    assert capsys.readouterr().err.startswith("GD-609 nowhere cannot be the base of an export")
    words[4] = "again"
    assert peers.cli.main(words[:-2]) == 0, "the prefix that all names have is taken off anyway"


def carrying(tmp_path: Path) -> Checkpoint:
    """Of a model with a mask, a running mean that moved from 1 by 0.5, a flag, a moved teacher and a unit vector."""
    mask, mean = np.float32([-np.inf, -1e9, np.finfo(np.float32).min, -0.0]), np.float64([1.0, 1e-300])
    reference = header([("mask", "F32", (4,)), ("mean", "F64", (2,)), ("half", "BF16", (2,)), ("u", "F32", (2,))])
    reference += mask.tobytes() + mean.tobytes() + np.uint16([0x3F80, 0x7F80]).tobytes()
    reference += np.float32([1.0, 0.0]).tobytes()
    state = header([("flag", "U8", ()), ("teacher", "F32", (2,)), ("u", "F32", (2,))])
    state += b"\x01" + np.float32([2.0, 3.0, 0.6, 0.8]).tobytes()
    schema = Schema.of(
        [
            ("w", (3,), "float32", "parameter"),
            ("mask", (4,), "float32", "buffer"),
            ("mean", (2,), "float64", "buffer"),
            ("half", (2,), "bfloat16", "buffer"),
            ("u", (2,), "float32", "buffer"),
        ],
        reference=bytes(16),
    )
    anchor = np.zeros(schema.size, np.float32)
    anchor[:3] = [1.0, 2.0, 3.0]
    anchor[schema.entries[2].offset] = 0.5
    anchor[schema.entries[3].offset] = 1.0
    arrays = {
        "anchor": anchor,
        "momentum": np.zeros_like(anchor),
        "reference": np.frombuffer(reference, np.uint8),
        "state": np.frombuffer(state, np.uint8),
    }
    store = Store(tmp_path / "carrying")
    return store.verify(store.save(arrays, meta(schema.digest.hex()), schema.to_bytes()))


def test_constants_are_exported_to_the_last_bit_averages_as_numbers_and_state_as_it_was_told(tmp_path: Path) -> None:
    export.export_file(export.trained(carrying(tmp_path)), tmp_path / "model.safetensors")
    found = {
        name: bytes(tensor["data"])
        for name, tensor in safetensors.deserialize((tmp_path / "model.safetensors").read_bytes())
    }
    assert found["mask"] == np.float32([-np.inf, -1e9, np.finfo(np.float32).min, -0.0]).tobytes()
    assert found["mean"] == np.float64([1.5, 1e-300]).tobytes()
    assert found["half"] == np.uint16([0x4000, 0x7F80]).tobytes()
    assert found["flag"] == b"\x01" and found["teacher"] == np.float32([2.0, 3.0]).tobytes()
    assert found["u"] == np.float32([0.6, 0.8]).tobytes(), "what is in both is the state's"
    assert found["w"] == np.float32([1.0, 2.0, 3.0]).tobytes()


def test_state_that_the_base_does_not_have_is_left_out_of_a_directory(tmp_path: Path) -> None:
    saved = carrying(tmp_path)
    values = {"w": grid(3), "mask": grid(4), "mean": np.zeros(2), "teacher": grid(2)}
    values["half"] = values["u"] = np.zeros(2, np.float32)
    base = base_of(tmp_path / "base", values)
    export.export_model(saved, tmp_path / "out", base)
    tensors = dict(safetensors.deserialize((tmp_path / "out" / "model.safetensors").read_bytes()))
    assert set(tensors) == {"w", "mask", "mean", "half", "u", "teacher"}
    assert bytes(tensors["teacher"]["data"]) == np.float32([2.0, 3.0]).tobytes()
