"""gossipdp inside the frameworks people train with: one file each, and nobody else imports that framework.

Here is what the files share. Nothing here may import a framework.
"""

from __future__ import annotations

from typing import Any

import torch

from gossipdp.errors import ConfigError

__all__ = ["bare", "last_rows", "missing"]


def missing(framework: str, extra: str, error: ImportError) -> ConfigError:
    """GD-307, for a framework that does not let itself be imported."""
    return ConfigError(
        "GD-307",
        f"{framework} cannot be imported",
        seen=str(error),
        do=f"pip install 'gossipdp[{extra}]'",
    )


def bare(optimizer: object) -> torch.optim.Optimizer:
    """The torch optimizer inside Accelerate's: a hook on the wrapper would not fire, for it is no whole optimizer.

    Raises:
        ConfigError: GD-317, what steps is no torch optimizer, or its parameters are not the model's.
    """
    # By name and not by `.optimizer`: DeepSpeed's has one too, which steps on a flat copy of the parameters.
    inner = getattr(optimizer, "optimizer", None) if type(optimizer).__name__ == "AcceleratedOptimizer" else optimizer
    if not isinstance(inner, torch.optim.Optimizer) or "DeepSpeed" in type(inner).__name__:
        raise ConfigError(
            "GD-317",
            "this optimizer does not step on the model's own parameters, and cannot be followed",
            seen=f"{type(inner).__module__}.{type(inner).__name__}",
            do="train with DDP or FSDP2 (fully_shard) and a torch optimizer; DeepSpeed is not supported",
        )
    return inner


def last_rows(state: Any, processes: int) -> int | None:
    """Samples of the batch at hand, if Accelerate's `state` of gradients says that it is a last one with fewer.

    Several processes get full ones, filled up from the beginning of the data.
    """
    if processes > 1 or not state.end_of_dataloader or state.remainder <= 0:
        return None
    return int(state.remainder)
