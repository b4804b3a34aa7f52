"""The adapter of Lightning: where its steps, samples and ends differ from a loop's."""

from pathlib import Path
from typing import Any

import pytest
import torch

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


def lightning_module(model: Line, parts: Any = None) -> Any:
    """Steps on each of `parts` with its own optimizer, by hand. By default Lightning steps on everything."""
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.automatic_optimization = parts is None
            self.losses: list[float] = []

        def training_step(self, batch: Any) -> torch.Tensor:
            loss = self.model(**batch)["loss"]
            self.losses.append(float(loss))
            if parts is not None:
                self.manual_backward(loss)
                for optimizer in self.optimizers():
                    optimizer.step()
                    optimizer.zero_grad()
            return loss

        def configure_optimizers(self) -> Any:
            if parts is None:
                return torch.optim.SGD(self.parameters(), lr=0.1)
            return [torch.optim.SGD(each, lr=0.1) for each in parts]

    return Module()


def fit(module: Any, callback: Any, out: Path, rows: int = 128, **settings: Any) -> Any:
    from lightning.pytorch import Trainer

    trainer = Trainer(
        **{
            "max_steps": 6, "accumulate_grad_batches": 3, "log_every_n_steps": 2, "accelerator": "cpu", "logger": False,
            "default_root_dir": str(out), "enable_checkpointing": False, "enable_progress_bar": False,
            "enable_model_summary": False, "callbacks": [callback], **settings,
        }
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(Rows(rows), batch_size=4))
    return trainer


def test_lightning__a_step_is_an_optimizer_step_and_the_loss_is_whole(daemon: LedgerDaemon, tmp_path: Path) -> None:
    callback = framework("lightning").GossipCallback()
    module = lightning_module(Line())
    fit(module, callback, tmp_path)
    assert callback.peer.steps == 6 and callback.peer.alone
    assert handed_over(daemon) == (6, 6 * 4 * 3)
    assert seen(daemon, links.Detached) == [links.Detached("it has detached", left=True)]
    # Read when the batch of the sixth step is over: Lightning says a third of it.
    assert seen(daemon, links.Reported)[-1].loss == pytest.approx(module.losses[-1])
    assert is_what_was_handed_over(module, daemon)


def test_lightning__the_logged_loss_of_a_validation_is_reported(daemon: LedgerDaemon, tmp_path: Path) -> None:
    module = lightning_module(Line())
    said: list[float] = []

    def validation_step(batch: Any) -> None:
        said.append(float(module.model(**batch)["loss"]))
        module.log("val_loss", said[-1])

    module.validation_step = validation_step
    module.val_dataloader = lambda: torch.utils.data.DataLoader(Rows(4), batch_size=4)
    fit(module, framework("lightning").GossipCallback(), tmp_path, val_check_interval=6)
    assert said[0] not in [report.eval_loss for report in seen(daemon, links.Reported)], "the check before training"
    assert len(said) == 4 and said[-1] == pytest.approx(seen(daemon, links.Reported)[-1].eval_loss)


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_lightning__the_schedule_and_the_end_follow_the_networks_clock(
    daemon: LedgerDaemon, tmp_path: Path, interval: str
) -> None:
    daemon.clock = 1000
    callback = framework("lightning").GossipCallback(follow_clock=True)
    module = lightning_module(Line())
    optimizer = torch.optim.SGD(module.parameters(), lr=2.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (step + 1))
    module.configure_optimizers = lambda: {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": scheduler, "interval": interval},
    }
    rates: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    if interval == "epoch":
        with pytest.raises(ConfigError, match="GD-317"):
            fit(module, callback, tmp_path, max_steps=1005)
        return
    fit(module, callback, tmp_path, max_steps=1005)
    assert rates == [2.0 / (clock + 1) for clock in range(1000, 1005)]
    assert handed_over(daemon)[0] == 5


def test_lightning__the_last_step_of_an_epoch_counts_what_it_was_given(daemon: LedgerDaemon, tmp_path: Path) -> None:
    callback = framework("lightning").GossipCallback()
    fit(lightning_module(Line()), callback, tmp_path, rows=31, max_steps=-1, max_epochs=2)
    assert handed_over(daemon) == (6, 2 * (12 + 12 + 7)), "8 batches, the last of 3"


def test_lightning__a_step_skipped_by_the_scaler_is_none(daemon: LedgerDaemon, tmp_path: Path) -> None:
    callback = framework("lightning").GossipCallback(batch_size=7)
    from lightning.pytorch.plugins import MixedPrecision

    class Broken(Line):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            said = super().forward(x, labels)
            return said | {"loss": said["loss"] * torch.inf} if self.calls == 3 else said

    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    settings = {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)], "accumulate_grad_batches": 1}
    fit(lightning_module(Broken()), callback, tmp_path, **settings)
    assert callback.peer.steps == 5, "of six"
    assert handed_over(daemon) == (5, 5 * 7)


def test_lightning__averaged_weights_written_by_an_earlier_callback_are_no_progress(
    daemon: LedgerDaemon, tmp_path: Path
) -> None:
    callback = framework("lightning").GossipCallback()
    from lightning.pytorch import Callback

    class Average(Callback):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            for parameter in pl_module.parameters():
                parameter.data.fill_(7.0)

    daemon.every = 4
    fit(lightning_module(Line()), callback, tmp_path, callbacks=[Average(), callback])
    assert handed_over(daemon)[0] == 4, "of six"
    assert daemon.last is not None and not (daemon.last == 7.0).any()


def test_lightning__an_exception_detaches(daemon: LedgerDaemon, tmp_path: Path) -> None:
    callback = framework("lightning").GossipCallback()
    module = lightning_module(Line(broken_at=8))
    with pytest.raises(ZeroDivisionError):
        fit(module, callback, tmp_path)
    assert callback.peer.alone and callback.peer.steps == 2
    assert handed_over(daemon) == (2, 24)


def test_lightning__several_optimizers_are_one_step(daemon: LedgerDaemon, tmp_path: Path) -> None:
    callback, model = framework("lightning").GossipCallback(), Line()
    module = lightning_module(model, parts=[[model.linear.weight], [model.linear.bias]])
    fit(module, callback, tmp_path, accumulate_grad_batches=1)
    assert callback.peer.steps == 3, "Lightning's six are those of either"
    assert handed_over(daemon) == (3, 3 * 4)
    assert is_what_was_handed_over(module, daemon)


def test_lightning__several_optimizers_end_with_the_clock_where_one_host_would(
    daemon: LedgerDaemon, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.clock = 1000
    callback, model = framework("lightning").GossipCallback(follow_clock=True), Line()
    module = lightning_module(model, parts=[[model.linear.weight], [model.linear.bias]])
    trainer = fit(module, callback, tmp_path, accumulate_grad_batches=1, max_steps=2010, max_epochs=1)
    assert (callback.peer.steps, callback.peer.clock, trainer.global_step) == (5, 1005, 10)
    assert "ends at its own step 5: the network's clock is at step 1005" in caplog.text
    assert "max_steps=2010, which counts 2 for each step of the clock" in caplog.text


def test_lightning__two_optimizers_of_one_parameter_are_gd_317(daemon: LedgerDaemon, tmp_path: Path) -> None:
    callback, model = framework("lightning").GossipCallback(), Line()
    module = lightning_module(model, parts=[model.parameters(), [model.linear.bias]])
    with pytest.raises(ConfigError, match="GD-317") as caught:
        fit(module, callback, tmp_path, accumulate_grad_batches=1)
    assert caught.value.seen == "SGD, SGD" and callback.peer is None and not seen(daemon, links.Attached)


def test_lightning__further_modules_are_exchanged_and_excluded_tensors_are_not(
    daemon: LedgerDaemon, tmp_path: Path
) -> None:
    model, tail = Line(), Tail()
    module = lightning_module(model)
    module.configure_optimizers = lambda: torch.optim.SGD([*model.parameters(), *tail.parameters()], lr=0.1)
    fit(module, framework("lightning").GossipCallback(modules=[tail], exclude="*.queue"), tmp_path)
    assert exchanged(daemon) == ["0.model.linear.weight", "0.model.linear.bias", "1.scale"]
