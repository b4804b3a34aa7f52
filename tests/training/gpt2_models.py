"""A small GPT-2 of Transformers, the checkpoint a peer would save of it, and its logits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gossipdp.runtime.storage.checkpoint import CheckpointMeta
from gossipdp.runtime.storage.store import Store
from tests.training.ledger_daemon import PumpedDaemon

WINDOW = torch.arange(32) % 61


def transformers() -> Any:
    """Imported by the test that needs it: every worker collects all tests, and the import takes a second."""
    return pytest.importorskip("transformers", reason="transformers is not installed")


def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers().GPT2Config(vocab_size=64, n_positions=32, n_embd=24, n_layer=2, n_head=3)
    return transformers().GPT2LMHeadModel(config)


def checkpoint_of(daemon: PumpedDaemon, directory: Path) -> Any:
    """What the peer would save."""
    daemon.pump()
    assert daemon.schema is not None and daemon.last is not None
    meta = CheckpointMeta(
        network="tiny", run="", peer="", incarnation=1, round=1, clock=4, steps=4, samples=8,
        schema=daemon.schema.digest.hex(),
    )  # fmt: skip
    store = Store(directory / "checkpoints")
    return store.verify(store.save({"anchor": np.array(daemon.last)}, meta, daemon.schema.to_bytes()))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(WINDOW[None]).logits
