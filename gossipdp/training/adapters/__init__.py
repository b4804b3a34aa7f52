"""gossipdp inside training frameworks: one module each, and no other module imports that framework.

This one holds what they share. Nothing here imports a framework.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypedDict

from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from gossipdp.errors import ConfigError, DataError
from gossipdp.training.messages import log
from gossipdp.training.tensors.excluded import Exclude

__all__ = [
    "Options",
    "StepsEach",
    "accelerated",
    "beside",
    "evaluation",
    "follow_clock",
    "last_rows",
    "missing",
    "say_end",
    "taken_apart",
]

EVALUATIONS: Final = ("eval_loss", "val_loss", "valid_loss", "validation_loss", "eval/loss", "val/loss", "valid/loss")
Factor: TypeAlias = Callable[[int], float]
"""the factor of the learning rate at a step"""
LAYERS: Final = 32
"""nested objects of a loader that are looked at, at most"""


class Options(TypedDict):
    """What a callback passes on to `gossipdp.attach`, which describes it."""

    home: str | os.PathLike[str] | None
    every: int | None
    timeout: float | None
    compare_frozen: bool
    exclude: Exclude


def beside(model: nn.Module, modules: Sequence[nn.Module]) -> nn.Module | list[nn.Module]:
    """What a callback attaches: the framework's model, alone or before the script's further modules."""
    return [model, *modules] if modules else model


def evaluation(values: Mapping[str, Any]) -> Any:
    """The loss of an evaluation among logged values, under its usual names; None if there is none."""
    return next((values[name] for name in EVALUATIONS if name in values), None)


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


def follow_clock(scheduler: Any, schedule: Callable[[Factor], Factor], interval: str = "step") -> None:
    """Put a framework's scheduler, made before `attach`, on the network's clock from the next step on.

    Args:
        scheduler: a LambdaLR, as all those of Transformers are that depend on nothing but the step.
        schedule: `schedule` of the attachment.
        interval: after what the framework steps it.

    Raises:
        ConfigError: GD-317, it is another kind of scheduler, or its function does not count steps.
    """
    if not isinstance(scheduler, LambdaLR) or interval != "step":
        raise ConfigError(
            "GD-317",
            "this learning rate schedule cannot follow the network's clock",
            seen=f"{type(scheduler).__name__}, with one step per {interval}",
            do="write it as a function of the step: torch.optim.lr_scheduler.LambdaLR(optimizer, function); in"
            ' Lightning with "interval": "step"',
        )
    scheduler.lr_lambdas = [schedule(factor) for factor in scheduler.lr_lambdas]
    rates = [base * factor(0) for base, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)]
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduler._last_lr = rates


class StepsEach:
    """How many steps a framework counts for one of the peer, which counts those of the last optimizer only."""

    def __init__(self) -> None:
        self._first: tuple[int, int] | None = None
        """both counts after the peer's first step: a scaler may skip those before it"""

    def look(self, steps: int, counted: int) -> float:
        """The number after a batch; 1 while it is unknown.

        Args:
            steps: that the framework has counted.
            counted: that the peer has counted.
        """
        if self._first is None:
            self._first = (steps, counted) if counted else None
            return 1.0
        return (steps - self._first[0]) / (counted - self._first[1]) if counted > self._first[1] else 1.0


def say_end(steps: int, clock: int, limit: str) -> None:
    """Log that the network's clock ends training, which frameworks do not say or explain in another way.

    Args:
        steps: that this training has made.
        clock: of the network, in steps.
        limit: `max_steps` of the framework, in words.
    """
    log.warning(
        "training ends at its own step %d: the network's clock is at step %d, and follow_clock=True ends "
        "training at %s; do: raise max_steps to train on",
        steps,
        clock,
        limit,
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
