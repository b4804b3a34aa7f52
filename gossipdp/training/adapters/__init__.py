"""gossipdp inside the frameworks people train with: one file each, and nobody else imports that framework.

Here is what the files share. Nothing here may import a framework.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from gossipdp.errors import ConfigError, DataError

__all__ = ["accelerated", "last_rows", "missing", "taken_apart"]

LAYERS: Final = 32
"""objects that a loader is made of, at most"""


def missing(framework: str, extra: str, error: ImportError) -> ConfigError:
    """GD-307, for a framework that does not let itself be imported."""
    return ConfigError(
        "GD-307",
        f"{framework} cannot be imported",
        seen=str(error),
        do=f"pip install 'gossipdp[{extra}]'",
    )


def last_rows(state: Any, processes: int) -> int | None:
    """Samples of the batch at hand, if Accelerate's `state` of gradients says that it is a last one with fewer.

    Several processes get full ones, filled up from the beginning of the data.
    """
    if processes > 1 or not state.end_of_dataloader or state.remainder <= 0:
        return None
    return int(state.remainder)


def accelerated() -> bool:
    """Is Accelerate at work in this process?"""
    state = sys.modules.get("accelerate.state")
    return state is not None and bool(state.is_initialized())


def taken_apart(reads: object) -> bool:
    """Does the loader that begins to read this leave every rank a part of it? One that Accelerate has prepared does,
    whatever the sampler, and so all ranks are to read the same there.

    Raises:
        DataError: GD-309, the first rank reads for all.
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
            "this loader reads on the first rank for all, and would leave out what is for the others",
            seen="Accelerate's dispatch_batches",
            do="Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False)); of transformers,"
            " TrainingArguments(accelerator_config={'dispatch_batches': False})",
        )
    return any(getattr(layer, "num_processes", 1) > 1 for layer in layers)
