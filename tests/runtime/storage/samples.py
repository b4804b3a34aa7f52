"""Small checkpoints for tests."""

import numpy as np

from gossipdp.runtime.storage.checkpoint import CheckpointMeta


def meta(round: int = 1) -> CheckpointMeta:
    return CheckpointMeta(
        network="tiny", run="ab" * 16, peer="cd" * 32, incarnation=3, round=round, clock=50 * round, steps=50 * round,
        samples=400 * round, schema="ef" * 16,
    )  # fmt: skip


def vectors(round: int, size: int = 1000) -> dict[str, np.ndarray]:
    return {"a": np.full(size, round, np.float32), "v": np.arange(size, dtype=np.float32) * round}
