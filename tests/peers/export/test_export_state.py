"""Exports of constants, averages and state that peers do not exchange."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import safetensors

from gossipdp.codecs.named import header
from gossipdp.protocol.schema import Schema
from gossipdp.runtime.storage.checkpoint import Checkpoint
from gossipdp.runtime.storage.store import Store
from peers import export
from tests.peers.export.models import base_of, grid, meta


def carrying(tmp_path: Path) -> Checkpoint:
    """A checkpoint of a model with a mask, a running mean that moved from 1 by 0.5, a flag and a moved teacher."""
    mask, mean = np.float32([-np.inf, -1e9, np.finfo(np.float32).min, -0.0]), np.float64([1.0, 1e-300])
    reference = header([("mask", "F32", (4,)), ("mean", "F64", (2,)), ("half", "BF16", (2,))])
    reference += mask.tobytes() + mean.tobytes() + np.uint16([0x3F80, 0x7F80]).tobytes()
    state = header([("flag", "U8", ()), ("teacher", "F32", (2,))]) + b"\x01" + np.float32([2.0, 3.0]).tobytes()
    schema = Schema.of(
        [
            ("w", (3,), "float32", "parameter"),
            ("mask", (4,), "float32", "buffer"),
            ("mean", (2,), "float64", "buffer"),
            ("half", (2,), "bfloat16", "buffer"),
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
    assert found["w"] == np.float32([1.0, 2.0, 3.0]).tobytes()


def test_state_that_the_base_does_not_have_is_left_out_of_a_directory(tmp_path: Path) -> None:
    saved = carrying(tmp_path)
    values = {"w": grid(3), "mask": grid(4), "mean": np.zeros(2), "teacher": grid(2)}
    values["half"] = np.zeros(2, np.float32)
    base = base_of(tmp_path / "base", values)
    export.export_model(saved, tmp_path / "out", base)
    tensors = dict(safetensors.deserialize((tmp_path / "out" / "model.safetensors").read_bytes()))
    assert set(tensors) == {"w", "mask", "mean", "half", "teacher"}
    assert bytes(tensors["teacher"]["data"]) == np.float32([2.0, 3.0]).tobytes()
