"""Makes Lightning's `Trainer` a peer: a callback that attaches when training starts and detaches when it ends.

    from gossipdp.training.adapters.lightning import GossipCallback
    trainer = Trainer(max_steps=1000, callbacks=[GossipCallback()])

Importing this file imports lightning, or pytorch_lightning if only that is installed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from gossipdp.errors import ConfigError
from gossipdp.training.adapters import Options, StepsEach, beside, evaluation, follow_clock, missing, say_end
from gossipdp.training.attach import attach
from gossipdp.training.attachment import Attachment
from gossipdp.training.tensors.excluded import Exclude

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise missing("lightning", "lightning", error) from None

__all__ = ["GossipCallback"]


class GossipCallback(Callback):  # type: ignore[misc]
    """Trains together with the network whose daemon runs on this host.

    A step is an optimizer step, with any number of accumulated batches; with several optimizers, a step of the last.
    The last step of an epoch may have fewer samples. The reported loss is what `training_step` returns, every
    `log_every_n_steps` steps. After a validation the logged `val_loss` is reported, or `eval_loss`.

    Args:
        batch_size: samples that one process reads per batch; default the data loader's.
        home, every, timeout, compare_frozen, exclude: as `gossipdp.attach` takes them.
        modules: trained beside the LightningModule. Named as in `attach([model, *modules], optimizers)`.
        follow_clock: the schedules and `max_steps` count the network's steps instead of this process's. A joiner begins
            at the network's learning rate, and all hosts end together: with several optimizers where one would alone.
        log_to: as `Attachment.log_to` takes it; None: log nowhere.

    Raises:
        GossipdpError: from `fit()`, as `gossipdp.attach`; ConfigError GD-317, DeepSpeed steps, two optimizers step on
            one parameter, or a schedule to follow the clock is no LambdaLR with the interval "step".

    Example:
        Trainer(max_steps=1000, callbacks=[GossipCallback()]).fit(module, loader)
    """

    def __init__(
        self,
        *,
        batch_size: int | None = None,
        home: str | os.PathLike[str] | None = None,
        every: int | None = None,
        timeout: float | None = None,
        compare_frozen: bool = True,
        exclude: Exclude = (),
        modules: Sequence[nn.Module] = (),
        follow_clock: bool = False,
        log_to: Any = None,
    ) -> None:
        self._modules, self._follow_clock, self._log_to, self._batch_size = modules, follow_clock, log_to, batch_size
        self._options = Options(home=home, every=every, timeout=timeout, compare_frozen=compare_frozen, exclude=exclude)
        self._reported = 0
        """step of the last reported loss"""
        self._batch = self._samples = 0
        """samples of a full batch; samples since the last step"""
        self.peer: Attachment | None = None
        """the attachment; None before training"""

    def detach(self) -> None:
        """Hand over the last steps and leave the network."""
        if self.peer is not None:
            self.peer.detach()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if "DeepSpeed" in type(trainer.strategy).__name__:
            raise ConfigError(
                "GD-317",
                "only torch optimizers that step on the model's own parameters can be followed",
                seen=type(trainer.strategy).__name__,
                do="use DDP or FSDP2; DeepSpeed is not supported",
            )
        self._batch, self._samples = self._batch_size or _batch_size(trainer.train_dataloader) or 0, 0
        self._reported, self._steps_each = trainer.global_step, StepsEach()
        # The wrapped model, because its wrapper decides whether it can be exchanged.
        self.peer = attach(
            beside(trainer.model, self._modules),
            trainer.optimizers,
            samples_per_step=self._batch * trainer.accumulate_grad_batches or None,
            **self._options,
        )
        if self._log_to is not None:
            self.peer.log_to(self._log_to)
        if self._follow_clock:
            for each in trainer.lr_scheduler_configs:
                follow_clock(each.scheduler, self.peer.schedule, each.interval)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        last = _rows(batch) if trainer.is_last_batch else None
        self._samples += self._batch if last is None else min(last, self._batch)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self.peer is None or not self._batch or optimizer is not trainer.optimizers[-1]:
            return
        # A second step on the same batches adds no samples. LBFGS evaluates several times and takes one step.
        if self._samples or not pl_module.automatic_optimization:
            self.peer.samples_per_step, self._samples = self._samples, 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if self._follow_clock and self.peer is not None and step < trainer.max_steps and not trainer.should_stop:
            each = 1.0 if pl_module.automatic_optimization else self._steps_each.look(step, self.peer.steps)
            trainer.should_stop = trainer.max_steps <= self.peer.clock * each
            if trainer.should_stop and trainer.is_global_zero:
                counts = "" if each == 1.0 else f", which counts {each:.3g} for each step of the clock"
                say_end(self.peer.steps, self.peer.clock, f"max_steps={trainer.max_steps}{counts}")
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        # Reading the loss waits for the device: no more often than the Trainer itself reads it.
        if self.peer is None or loss is None or step - self._reported < trainer.log_every_n_steps:
            return
        self._reported = step
        # Automatic optimization gives the loss divided by the number of accumulated batches.
        share = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        self.peer.report(loss=loss * share)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self.peer is not None and not trainer.sanity_checking:
            self.peer.report(eval_loss=evaluation(trainer.callback_metrics))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.detach()


def _batch_size(loader: Any) -> int | None:
    """Samples of a batch. None if the loader is not one plain DataLoader; each step then counts as one sample."""
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def _rows(batch: Any) -> int | None:
    """Samples of this batch. None if it does not show them."""
    while isinstance(batch, Mapping | list | tuple) and batch:
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return batch.shape[0] if isinstance(batch, torch.Tensor) and batch.dim() else None
