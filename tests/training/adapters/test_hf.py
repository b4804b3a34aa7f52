"""The adapter of transformers: where its steps, samples and ends differ from a loop's."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from gossipdp.errors import ConfigError
from gossipdp.runtime import link as links
from tests.training.adapters.frameworks import (
    Line,
    Rows,
    Tail,
    exchanged,
    framework,
    handed_over,
    is_what_was_handed_over,
    seen,
)
from tests.training.ledger_daemon import LedgerDaemon

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks are their own affair


def trainer_of(model: nn.Module, callback: Any, out: Path, rows: int = 96, **settings: Any) -> Any:
    import transformers

    arguments = transformers.TrainingArguments(
        **{
            "output_dir": str(out), "max_steps": 6, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 3,
            "learning_rate": 0.1, "logging_steps": 2, "save_strategy": "no", "report_to": "none", "disable_tqdm": True,
            "use_cpu": True, **settings,
        }
    )  # fmt: skip
    return transformers.Trainer(model, arguments, train_dataset=Rows(rows), eval_dataset=Rows(8), callbacks=[callback])


def test_hf__a_step_is_an_optimizer_step_and_the_loss_is_what_it_logs(daemon: LedgerDaemon, tmp_path: Path) -> None:
    callback = framework("hf").GossipCallback()
    trainer = trainer_of(model := Line(), callback, tmp_path)
    assert callback.peer is None and not seen(daemon, links.Attached), "not before training begins"
    trainer.train()
    assert callback.peer.steps == 6 and callback.peer.alone
    assert handed_over(daemon) == (6, 6 * 4 * 3)
    assert seen(daemon, links.Detached) == [links.Detached("it has detached", left=True)]
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert seen(daemon, links.Reported)[-1].loss == pytest.approx(logged[-1])
    assert is_what_was_handed_over(model, daemon)
    trainer.train()
    assert len(seen(daemon, links.Attached)) == 2 and callback.peer.steps == 6


@pytest.mark.parametrize(
    ("until", "steps"),
    [
        ({"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 2, "save_steps": 2}, 6),
        ({"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 1, "eval_delay": 2, "save_steps": 2}, 3),
        ({"eval_strategy": "epoch", "save_strategy": "epoch", "max_steps": -1, "num_train_epochs": 4}, 16),
    ],
    ids=["steps run out", "stopped early after a step", "stopped early after an epoch"],
)
def test_hf__the_best_model_loaded_at_the_end_is_no_progress(
    daemon: LedgerDaemon, tmp_path: Path, until: dict[str, Any], steps: int
) -> None:
    settings = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
    daemon.every = 100
    callback = framework("hf").GossipCallback()
    trainer = trainer_of(model := Line(), callback, tmp_path, **settings, **until)
    if steps != 6:
        from transformers import EarlyStoppingCallback

        trainer.add_callback(EarlyStoppingCallback(1))
    trained = trainer.train()
    assert trained.global_step == steps
    best = trainer.state.best_model_checkpoint
    assert not best.endswith(f"-{steps}"), "the loaded model must not be the last one"
    assert handed_over(daemon)[0] == steps
    worst = float(model.linear.weight)
    assert daemon.last is not None and float(daemon.last[0]) > worst + 0.02, "what was trained, and not what was loaded"


def test_hf__averaged_weights_written_by_an_earlier_callback_are_no_progress(
    daemon: LedgerDaemon, tmp_path: Path
) -> None:
    callback = framework("hf").GossipCallback()
    from transformers import TrainerCallback

    class Average(TrainerCallback):  # type: ignore[misc]
        def on_train_end(self, *_: Any, model: nn.Module, **more: Any) -> None:
            for parameter in model.parameters():
                parameter.data.fill_(7.0)

    daemon.every = 4
    trainer = trainer_of(Line(), Average(), tmp_path)
    trainer.add_callback(callback)
    trainer.train()
    steps = handed_over(daemon)[0]
    assert steps == 6 or (steps == 4 and daemon.last is not None)
    assert daemon.last is not None and not (daemon.last == 7.0).any()


def test_hf__the_loss_of_each_evaluation_is_reported(daemon: LedgerDaemon, tmp_path: Path) -> None:
    trainer = trainer_of(Line(), framework("hf").GossipCallback(), tmp_path, eval_strategy="steps", eval_steps=2)
    trainer.train()
    logged = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    said = [report.eval_loss for report in seen(daemon, links.Reported)]
    assert len(logged) == 3 and set(logged[:2]) <= set(said)


class Run:
    """As a run of W&B."""

    def __init__(self) -> None:
        self.points: list[dict[str, float]] = []

    def log(self, data: dict[str, float], step: int) -> None:
        self.points.append(data | {"step": step})


def test_hf__a_tracker_gets_a_last_point_when_training_ends(daemon: LedgerDaemon, tmp_path: Path) -> None:
    trainer = trainer_of(Line(), framework("hf").GossipCallback(log_to=(run := Run())), tmp_path)
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert run.points[-1]["step"] == 6 and run.points[-1]["gossipdp/loss"] == pytest.approx(logged[-1])


def test_hf__the_schedule_and_the_end_follow_the_networks_clock(daemon: LedgerDaemon, tmp_path: Path) -> None:
    daemon.clock = 1000
    trainer = trainer_of(
        Line(),
        framework("hf").GossipCallback(follow_clock=True),
        tmp_path,
        max_steps=1006,
        lr_scheduler_type="linear",
        learning_rate=1.0,
        logging_steps=1,
    )
    rates: list[float] = []
    trainer.create_optimizer().register_step_pre_hook(lambda *_: rates.append(trainer.optimizer.param_groups[0]["lr"]))
    assert trainer.train().global_step == 6
    assert rates == pytest.approx([(1006 - clock) / 1006 for clock in range(1000, 1006)])
    assert handed_over(daemon)[0] == 6


def test_hf__the_end_by_the_clock_is_the_trainers_own(
    daemon: LedgerDaemon, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import TrainerCallback

    saved: list[tuple[int, bool]] = []

    class Reports(TrainerCallback):  # type: ignore[misc]
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # as Ray's callback
            saved.append((state.global_step, "eval_loss" in state.log_history[-1]))

    daemon.clock = 1000
    intervals = {"eval_strategy": "steps", "eval_steps": 100, "save_strategy": "steps", "save_steps": 100}
    trainer = trainer_of(
        Line(),
        framework("hf").GossipCallback(follow_clock=True),
        tmp_path,
        max_steps=1006,
        load_best_model_at_end=True,
        **intervals,
    )
    trainer.add_callback(Reports())
    trainer.train()
    assert saved == [(6, True)], "a checkpoint after an evaluation"
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-6")
    assert trainer.state.max_steps == 1006 and handed_over(daemon)[0] == 6
    assert "ends at its own step 6: the network's clock is at step 1006" in caplog.text
    trainer.train()
    assert saved[1:] == [(1, True)] and "ends at its own step 1: the network's clock is at step 1007" in caplog.text


def test_hf__a_schedule_that_depends_on_the_loss_cannot_follow_the_clock(daemon: LedgerDaemon, tmp_path: Path) -> None:
    callback = framework("hf").GossipCallback(follow_clock=True)
    settings = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 2}
    with pytest.raises(ConfigError, match="GD-317") as caught:
        trainer_of(Line(), callback, tmp_path, **settings).train()
    assert "ReduceLROnPlateau" in caught.value.seen
    callback.detach()


def test_hf__train_after_an_exception_attaches_anew(daemon: LedgerDaemon, tmp_path: Path) -> None:
    callback = framework("hf").GossipCallback()
    trainer = trainer_of(Line(broken_at=8), callback, tmp_path)
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    first = callback.peer
    assert not first.alone and first.steps == 2, "the Trainer tells no callback"
    trainer.train()
    assert first.alone and callback.peer is not first and callback.peer.steps == 6
    assert handed_over(daemon) == (8, 8 * 12)
    callback.detach()


def test_hf__a_batch_that_is_found_by_trying_is_counted_as_it_is(daemon: LedgerDaemon, tmp_path: Path) -> None:
    callback = framework("hf").GossipCallback()
    model = Line(broken_at=4, error=RuntimeError)
    trainer_of(model, callback, tmp_path, auto_find_batch_size=True, gradient_accumulation_steps=1).train()
    steps, samples = handed_over(daemon)
    halves = samples - 3 * 4
    assert steps == 3 + 6 and halves % 6 == 0 and halves < 6 * 4, "the batches of the second try are smaller"


def test_hf__the_last_step_of_an_epoch_counts_what_it_was_given(daemon: LedgerDaemon, tmp_path: Path) -> None:
    epochs = {"max_steps": -1, "num_train_epochs": 2}
    trainer_of(Line(), framework("hf").GossipCallback(), tmp_path, rows=27, **epochs).train()
    assert handed_over(daemon) == (6, 2 * (12 + 12 + 3)), "7 batches, the last of 3"


def test_hf__further_modules_are_exchanged_and_excluded_tensors_are_not(daemon: LedgerDaemon, tmp_path: Path) -> None:
    import torch

    model, tail = Line(), Tail()
    callback = framework("hf").GossipCallback(modules=[tail], exclude=["1.queue"])
    trainer = trainer_of(model, callback, tmp_path)
    trainer.optimizer = torch.optim.SGD([*model.parameters(), *tail.parameters()], lr=0.1)
    trainer.train()
    assert exchanged(daemon) == ["0.linear.weight", "0.linear.bias", "1.scale"]
