"""gossipdp inside training frameworks: one module each, and no other module imports that framework.

This one holds what they share. Nothing here imports a framework.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from gossipdp.errors import ConfigError, DataError

__all__ = ["accelerated", "last_rows", "missing", "taken_apart"]

LAYERS: Final = 32
"""nested objects of a loader that are looked at, at most"""


def missing(framework: str, extra: str, error: ImportError) -> ConfigError:
    """The error GD-307 for a framework that cannot be imported.

    Args:
        framework: its name.
        extra: the extra of gossipdp that installs it.
        error: what the import raised.
    """
    return ConfigError(
        "GD-307",
        f"{framework} cannot be imported",
        seen=str(error),
        do=f"pip install 'gossipdp[{extra}]'",
    )


def last_rows(state: Any, processes: int) -> int | None:
    """Samples of the current batch if it is a shorter last one, else None.

    Several processes get full batches, filled up from the beginning of the data.

    Args:
        state: Accelerate's GradientState.
        processes: processes that train together.
    """
    if processes > 1 or not state.end_of_dataloader or state.remainder <= 0:
        return None
    return int(state.remainder)


def accelerated() -> bool:
    """True if this process uses Accelerate."""
    state = sys.modules.get("accelerate.state")
    return state is not None and bool(state.is_initialized())


def taken_apart(reads: object) -> bool:
    """True if the loader that begins to read `reads` gives each rank a part of it.

    A loader that Accelerate has prepared does so with any sampler. All ranks must then read the same.

    Raises:
        DataError: GD-309, the first rank reads for all ranks.
    """
    state = sys.modules.get("accelerate.state")
    layers: list[Any] = [] if state is None else [state.GradientState().active_dataloader]
    for layer in layers:
        for name in ("batch_sampler", "sampler", "dataset"):
            inner = getattr(layer, name, None)
            if inner is not None and len(layers) < LAYERS and all(inner is not each for each in layers):
                layers.append(inner)
    if not any(layer is reads for layer in layers):
        return False
    if type(layers[0]).__name__ == "DataLoaderDispatcher":
        raise DataError(
            "GD-309",
            "this loader reads on the first rank for all ranks, and would leave out the other ranks' samples",
            seen="Accelerate's dispatch_batches",
            do="Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False)); in transformers,"
            " TrainingArguments(accelerator_config={'dispatch_batches': False})",
        )
    return any(getattr(layer, "num_processes", 1) > 1 for layer in layers)
