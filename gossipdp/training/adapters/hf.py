"""Makes Transformers' `Trainer` a peer: a callback that attaches when training begins and detaches when it ends.

    from gossipdp.training.adapters.hf import GossipCallback
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[GossipCallback()])

Importing this file imports transformers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch import nn

from gossipdp.training.adapters import Options, beside, evaluation, follow_clock, last_rows, missing, say_end
from gossipdp.training.attach import attach
from gossipdp.training.attachment import Attachment
from gossipdp.training.tensors.excluded import Exclude

try:
    from accelerate.state import GradientState
    from transformers import TrainerCallback
except ImportError as error:
    raise missing("transformers", "hf", error) from None

__all__ = ["GossipCallback"]


class GossipCallback(TrainerCallback):  # type: ignore[misc]
    """Trains together with the network whose daemon runs on this host, and reports the losses that the Trainer logs.

    A step is an optimizer step, with any number of accumulated batches. Samples are rows of the data set, of all ranks;
    the last step of an epoch may have fewer.

    The Trainer does not tell a callback about exceptions. If an exception ends the process, the daemon notices. If your
    script catches it and does not train again, call `detach`. Another `train()` attaches anew by itself.

    Args:
        home, every, timeout, compare_frozen, exclude: as `gossipdp.attach` takes them.
        modules: trained beside the Trainer's model, such as a loss with weights of its own. Named as in
            `attach([model, *modules], optimizer)`.
        follow_clock: the schedule and `max_steps` count the network's steps instead of this process's. A joiner begins
            at the network's learning rate, and all hosts end together, each with the Trainer's last evaluation and
            checkpoint.
        log_to: as `Attachment.log_to` takes it; None: log nowhere.

    Raises:
        GossipdpError: from `train()`, as `gossipdp.attach`; ConfigError GD-317, DeepSpeed steps, or the schedule is no
            LambdaLR, as "reduce_lr_on_plateau" is none.

    Example:
        Trainer(model, arguments, train_dataset=data, callbacks=[GossipCallback()]).train()
    """

    def __init__(
        self,
        *,
        home: str | os.PathLike[str] | None = None,
        every: int | None = None,
        timeout: float | None = None,
        compare_frozen: bool = True,
        exclude: Exclude = (),
        modules: Sequence[nn.Module] = (),
        follow_clock: bool = False,
        log_to: Any = None,
    ) -> None:
        self._modules, self._follow_clock, self._log_to = modules, follow_clock, log_to
        self._options = Options(home=home, every=every, timeout=timeout, compare_frozen=compare_frozen, exclude=exclude)
        self.peer: Attachment | None = None
        """the attachment; None before training"""
        self._batches = 0
        """batches accumulated for the next step, without its last one"""
        self._max_steps = 0
        """of the Trainer"""

    def detach(self) -> None:
        """Hand over the last steps and leave the network."""
        if self.peer is not None:
            self.peer.detach()

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any, optimizer: Any, lr_scheduler: Any = None, **_: Any
    ) -> None:
        # After an exception, such as the one that `auto_find_batch_size` catches, the last attachment is still there.
        self.detach()
        self._max_steps = state.max_steps
        self.peer = attach(
            beside(model, self._modules),
            optimizer,
            samples_per_step=state.train_batch_size * args.gradient_accumulation_steps,
            **self._options,
        )
        if self._log_to is not None:
            self.peer.log_to(self._log_to)
        if self._follow_clock and lr_scheduler is not None:
            follow_clock(lr_scheduler, self.peer.schedule)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._batches = 0

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._batches += 1

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.peer is not None:
            last = last_rows(GradientState(), args.world_size) or state.train_batch_size
            self.peer.samples_per_step = self._batches * state.train_batch_size + last

    # The Trainer and other callbacks evaluate and save at the end, which they find by `max_steps`. Here the clock has
    # this step, and `global_step` has not.
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._follow_clock and self.peer is not None and self.peer.clock >= self._max_steps > state.global_step + 1:
            state.max_steps = state.global_step + 1
            if state.is_world_process_zero:
                say_end(self.peer.steps, self.peer.clock, f"max_steps={self._max_steps}")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self.peer is not None and logs:
            self.peer.report(loss=logs.get("loss"), eval_loss=evaluation(logs))

    # Before `on_train_end` the Trainer may load its best checkpoint, which must not count as progress. The last step is
    # over at one of the next two calls; the second is for an evaluation that stops training at the end of an epoch.
    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        state.max_steps = self._max_steps  # the Trainer divides by it to count samples
        if control.should_training_stop:
            self.detach()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if control.should_training_stop:
            self.detach()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.detach()
