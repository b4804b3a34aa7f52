"""Fixtures of the tests of exports."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from gossipdp.protocol.schema import Schema
from gossipdp.runtime.storage.checkpoint import Checkpoint
from gossipdp.runtime.storage.store import Store
from tests.peers.export.models import Save, meta


@pytest.fixture
def checkpoint(tmp_path: Path) -> Save:
    """`checkpoint(w=array, ...)`: a saved checkpoint of these parameters, in float32 or in `dtypes`."""

    def save(dtypes: Mapping[str, str] = {}, **values: np.ndarray) -> Checkpoint:
        schema = Schema.of(
            (name.replace("__", "."), array.shape, dtypes.get(name, "float32"), "parameter")  # type: ignore[misc]
            for name, array in values.items()
        )
        anchor = np.concatenate([array.astype(np.float32).ravel() for array in values.values()])
        store = Store(tmp_path / "checkpoints")
        return store.verify(store.save({"anchor": anchor}, meta(schema.digest.hex()), schema.to_bytes()))

    return save
