"""Makes a loop written for Accelerate a peer: call `attach` after `prepare`, with the prepared objects.

    from gossipdp.training.adapters import accelerate as gossip
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    peer = gossip.attach(accelerator, model, optimizer, loader)

Importing this file imports accelerate.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from gossipdp.training import attach as training
from gossipdp.training.adapters import evaluation, last_rows, missing
from gossipdp.training.attachment import Attachment
from gossipdp.training.tensors.excluded import Exclude
from gossipdp.training.tensors.optimizers import followed
from gossipdp.training.tensors.parts import Modules

try:
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise missing("accelerate", "accelerate", error) from None

__all__ = ["attach"]

LOSSES: Final = ("loss", "train_loss", "train/loss")
"""names under which the examples of Accelerate, Transformers and Diffusers log the loss"""


class _Tracker(GeneralTracker):  # type: ignore[misc]
    """Accelerate calls it when a loss is logged, and when training ends."""

    name = "gossipdp"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, peer: Attachment) -> None:
        # The accelerator may outlive the model: a function that `find_executable_batch_size` calls again makes another.
        self._peer = weakref.ref(peer)
        super().__init__()

    @property
    def tracker(self) -> Attachment | None:
        """The attachment; None once its model is gone."""
        return self._peer()

    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        if (peer := self._peer()) is None:
            return
        loss = next((values[name] for name in LOSSES if name in values), None)
        found = [each if isinstance(each, int | float | torch.Tensor) else None for each in (loss, evaluation(values))]
        peer.report(loss=found[0], eval_loss=found[1])

    def finish(self) -> None:
        if (peer := self._peer()) is not None:
            peer.detach()


def attach(
    accelerator: Any,
    model: Modules,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    loader: Any = None,
    *,
    home: str | os.PathLike[str] | None = None,
    every: int | None = None,
    samples_per_step: int | None = None,
    timeout: float | None = None,
    compare_frozen: bool = True,
    exclude: Exclude = (),
) -> Attachment:
    """Train `model` together with the network whose daemon runs on this host. Call it on every rank.

    Only steps that the optimizer takes count: not those that `accumulate` holds back or that the fp16 scaler skips.
    `loss` and `eval_loss` of `accelerator.log` are reported, and `accelerator.end_training` detaches. Call
    `init_trackers` before this in releases of Accelerate whose `init_trackers` forgets trackers. `load_state` comes
    before this, too: what it loads later gives way to the network's model.

    Args:
        accelerator, model, optimizer: as `accelerator.prepare` returned them. Several modules or optimizers as
            `gossipdp.attach` takes them.
        loader: the prepared loader. Its batch size gives the samples of a step.
        samples_per_step: samples that one process takes per step, instead of that number; default 1.
        home, every, timeout, compare_frozen, exclude: as `gossipdp.attach` takes them.

    Returns:
        The attachment, which also is a context manager that detaches.

    Raises:
        GossipdpError: as `gossipdp.attach`; ConfigError GD-317, DeepSpeed or Megatron steps.

    Example:
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        peer = attach(accelerator, model, optimizer, loader)
    """
    whole, stepping = getattr(loader, "total_batch_size", None), followed(optimizer)
    batch = whole // accelerator.num_processes if samples_per_step is None and isinstance(whole, int) else 0
    usual = batch * accelerator.gradient_accumulation_steps if batch else samples_per_step
    peer = training.attach(
        model,
        stepping,
        home=home,
        every=every,
        samples_per_step=usual,
        timeout=timeout,
        compare_frozen=compare_frozen,
        exclude=exclude,
    )
    if batch:

        def count(*_: Any) -> None:
            peer.samples_per_step = _samples(accelerator, batch)

        stepping[-1].register_step_pre_hook(torch.compiler.disable(count))  # type: ignore[no-untyped-call]
    others = [each for each in accelerator.trackers if not (isinstance(each, _Tracker) and each.tracker is None)]
    accelerator.trackers[:] = [*others, _Tracker(peer)]
    return peer


def _samples(accelerator: Any, batch: int) -> int:
    """Samples of the next step. The last step of an epoch may have fewer batches, and its last batch fewer samples."""
    state, batches = accelerator.gradient_state, accelerator.gradient_accumulation_steps
    if not (state.end_of_dataloader and state.sync_with_dataloader):
        return int(batch * batches)
    try:
        batches = len(state.active_dataloader) % batches or batches
    except TypeError:  # a stream has no length
        pass
    return int(batch * (batches - 1) + (last_rows(state, accelerator.num_processes) or batch))
