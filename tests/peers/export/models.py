"""Small models and bases of the tests of exports. Not a test."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from gossipdp.runtime.storage.checkpoint import Checkpoint, CheckpointMeta

Save = Callable[..., Checkpoint]


def meta(schema: str = "") -> CheckpointMeta:
    return CheckpointMeta(
        network="tiny",
        run="",
        peer="",
        incarnation=1,
        round=7,
        clock=50,
        steps=50,
        samples=400,
        peer_rounds=7,
        schema=schema,
    )


def base_of(directory: Path, tensors: Mapping[str, np.ndarray], stem: str = "model", **config: Any) -> Path:
    directory.mkdir()
    save_file(dict(tensors), directory / f"{stem}.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def grid(*shape: int, start: float = 0.0) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + np.float32(start)
