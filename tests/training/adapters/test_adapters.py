"""Adapters: where a framework's steps, samples and ends differ from a loop's. Whole scripts are in test_recipes."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gossipdp
from gossipdp.errors import ConfigError
from gossipdp.runtime import link as links
from gossipdp.training import adapters
from gossipdp.training import session as sessions
from tests.training.ledger_daemon import LedgerDaemon, PumpedDaemon

FRAMEWORKS = {"hf": "transformers", "lightning": "lightning", "accelerate": "accelerate", "ray": "ray"}
pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks are their own affair


def framework(name: str) -> ModuleType:
    """The adapter of a framework, if it is installed."""
    pytest.importorskip(FRAMEWORKS[name], reason=f"{FRAMEWORKS[name]} is not installed")
    return importlib.import_module(f"gossipdp.training.adapters.{name}")


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerDaemon]:
    """Runs in a thread meanwhile. Frameworks see no GPU; the environment is restored afterwards."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("GOSSIPDP_HOME", str(home))
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    monkeypatch.setattr(sessions, "REPORT_EVERY", 0.0)
    before = dict(os.environ)
    daemon = PumpedDaemon(home, every=2)
    with daemon.running():
        yield daemon
    daemon.server.close()
    os.environ.clear()
    os.environ.update(before)


def seen(daemon: LedgerDaemon, kind: type) -> list[Any]:
    daemon.pump()
    return [event for event in daemon.events if isinstance(event, kind)]


def handed_over(daemon: LedgerDaemon) -> tuple[int, int]:
    """Steps and samples."""
    submits = seen(daemon, links.Submitted)
    return sum(event.steps for event in submits), sum(event.samples for event in submits)


def is_what_was_handed_over(model: nn.Module, daemon: LedgerDaemon) -> bool:
    daemon.pump()
    assert daemon.last is not None
    return all(
        np.array_equal(daemon.last[start : start + p.numel()], p.detach().numpy().ravel())
        for start, p in zip((entry.offset for entry in daemon.schema.entries), model.parameters(), strict=True)  # type: ignore[union-attr]
    )


# -- what all of them keep to -----------------------------------------------------------------------------------


def test_gossipdp_imports_none_of_them() -> None:
    code = (
        "import sys, gossipdp, gossipdp.training.attach, gossipdp.training.adapters\n"
        "gossipdp.attach\n"
        f"print(sorted({{'pytorch_lightning', *{sorted(FRAMEWORKS.values())!r}}} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_a_framework_that_is_not_there_is_gd_307(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in (FRAMEWORKS[name], "pytorch_lightning"):
        for loaded in [key for key in sys.modules if key.partition(".")[0] == module]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"gossipdp.training.adapters.{name}", raising=False)
    with pytest.raises(ConfigError, match="GD-307") as caught:
        importlib.import_module(f"gossipdp.training.adapters.{name}")
    assert caught.value.cause == f"{FRAMEWORKS[name]} cannot be imported"
    assert FRAMEWORKS[name] in caught.value.seen or name == "lightning"
    assert caught.value.do == f"pip install 'gossipdp[{name}]'"


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_an_adapter_is_one_short_file_with_one_name(name: str) -> None:
    assert Path(adapters.__file__).with_name(f"{name}.py").read_text().count("\n") < 150
    assert framework(name).__all__ == ["attach" if name in ("accelerate", "ray") else "GossipCallback"]


# -- transformers -----------------------------------------------------------------------------------------------


class Rows(torch.utils.data.Dataset):
    """y = 3 x, as a data set of transformers."""

    def __init__(self, count: int) -> None:
        self.x = torch.linspace(-1, 1, count)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index : index + 1], "labels": 3 * self.x[index : index + 1]}


class Line(nn.Module):
    """Raises at the forward pass `broken_at`."""

    def __init__(self, broken_at: int = -1, error: type[Exception] = ZeroDivisionError) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.calls, self.broken_at, self.error = 0, broken_at, error

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        if self.calls == self.broken_at:
            raise self.error("CUDA out of memory.")
        y = self.linear(x)
        return {"loss": nn.functional.mse_loss(y, labels), "logits": y}


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
    assert seen(daemon, links.Detached) == [links.Detached("it ended")]
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
    assert not trainer.state.best_model_checkpoint.endswith(f"-{steps}"), (
        "the worst is the best, for the test to see it"
    )
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


# -- accelerate -------------------------------------------------------------------------------------------------


@pytest.fixture
def accelerator_of() -> Iterator[Any]:
    """Makes an Accelerator. Its state is one per process, and reset after the test."""
    framework("accelerate")
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    yield lambda **settings: Accelerator(cpu=True, **settings)
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def test_accelerate__accumulated_and_skipped_steps_are_none(daemon: LedgerDaemon, accelerator_of: Any) -> None:
    gossip = framework("accelerate")
    accelerator = accelerator_of(gradient_accumulation_steps=2)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)  # as fp16 has it on a GPU
    model = Line()
    loader = torch.utils.data.DataLoader(Rows(30), batch_size=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with pytest.raises(AttributeError):
        optimizer.register_step_post_hook(print)  # the wrapper is none: so the adapter looks inside
    peer = gossip.attach(accelerator, model, optimizer, loader)
    skipped = 0
    for number, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(**batch)["loss"]
            accelerator.backward(loss * torch.inf if number == 4 else loss)
            optimizer.step()
            skipped += accelerator.sync_gradients and optimizer.step_was_skipped
            optimizer.zero_grad()
    assert skipped == 1 and peer.steps == 4, "ten batches, two a step, and one of the steps was skipped"
    accelerator.log({"loss": 0.25, "epoch": 1})
    accelerator.log({"accuracy": 1.0})
    assert accelerator.get_tracker("gossipdp").tracker is peer
    accelerator.end_training()
    assert peer.alone and handed_over(daemon) == (4, 4 * 3 * 2)
    assert seen(daemon, links.Reported)[-1].loss == 0.25
    assert is_what_was_handed_over(accelerator.unwrap_model(model), daemon)


def test_accelerate__the_last_step_of_an_epoch_counts_what_it_was_given(
    daemon: LedgerDaemon, accelerator_of: Any
) -> None:
    accelerator = accelerator_of(gradient_accumulation_steps=3)
    model = Line()
    loader = torch.utils.data.DataLoader(Rows(31), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    with framework("accelerate").attach(accelerator, model, optimizer, loader):
        for _ in range(2):
            for batch in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(**batch)["loss"])
                    optimizer.step()
                    optimizer.zero_grad()
    assert handed_over(daemon) == (6, 2 * (12 + 12 + 7)), "8 batches, the last of 3"


def test_accelerate__an_exception_detaches_who_says_with(daemon: LedgerDaemon, accelerator_of: Any) -> None:
    accelerator = accelerator_of()
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    peer = framework("accelerate").attach(accelerator, model, optimizer, samples_per_step=5)
    with pytest.raises(ZeroDivisionError), peer:
        accelerator.backward(model(torch.ones(5, 1), torch.ones(5, 1))["loss"])
        optimizer.step()
        raise ZeroDivisionError
    assert peer.alone and handed_over(daemon) == (1, 5)


@pytest.mark.parametrize("off", [False, True])
def test_accelerate__what_it_prepared_can_be_given_to_the_plain_attach(
    daemon: LedgerDaemon, accelerator_of: Any, monkeypatch: pytest.MonkeyPatch, off: bool
) -> None:
    if off:
        monkeypatch.setenv("GOSSIPDP_OFF", "1")
    model = Line()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    accelerator = accelerator_of()
    model, optimizer = accelerator.prepare(model, inner)
    peer = gossipdp.attach(model, optimizer)
    for _ in range(3):
        accelerator.backward(model(torch.ones(5, 1), torch.ones(5, 1))["loss"])
        optimizer.step()
    peer.detach()
    assert peer.steps == 3 and handed_over(daemon)[0] == (0 if off else 3)
    assert not inner._optimizer_step_post_hooks


def test_accelerate__several_optimizers_are_one_step(daemon: LedgerDaemon, accelerator_of: Any) -> None:
    accelerator = accelerator_of(gradient_accumulation_steps=2)
    model = Line()
    loader = torch.utils.data.DataLoader(Rows(30), batch_size=3)
    made = [torch.optim.SGD([model.linear.weight], lr=0.1), torch.optim.AdamW([model.linear.bias], lr=0.1)]
    model, first, second, loader = accelerator.prepare(model, *made, loader)
    with framework("accelerate").attach(accelerator, model, [first, second], loader) as peer:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                for optimizer in (first, second):
                    optimizer.step()
                    optimizer.zero_grad()
    assert peer.steps == 5 and handed_over(daemon) == (5, 30)
    assert is_what_was_handed_over(accelerator.unwrap_model(model), daemon)


# -- lightning --------------------------------------------------------------------------------------------------


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
    assert seen(daemon, links.Detached) == [links.Detached("it ended")]
    # Read when the batch of the sixth step is over: Lightning says a third of it.
    assert seen(daemon, links.Reported)[-1].loss == pytest.approx(module.losses[-1])
    assert is_what_was_handed_over(module, daemon)


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


def test_lightning__two_optimizers_of_one_parameter_are_gd_317(daemon: LedgerDaemon, tmp_path: Path) -> None:
    callback, model = framework("lightning").GossipCallback(), Line()
    module = lightning_module(model, parts=[model.parameters(), [model.linear.bias]])
    with pytest.raises(ConfigError, match="GD-317") as caught:
        fit(module, callback, tmp_path, accumulate_grad_batches=1)
    assert caught.value.seen == "SGD, SGD" and callback.peer is None and not seen(daemon, links.Attached)


# -- ray --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [False, True])
def test_ray__the_function_that_returns_or_raises_is_detached(
    daemon: LedgerDaemon, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    gossip = framework("ray")
    peers: list[Any] = []

    def loop() -> None:
        model = Line()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        peers.append(gossip.attach(model, optimizer, samples_per_step=5))
        for _ in range(3):
            model(torch.ones(5, 1), torch.ones(5, 1))["loss"].backward()
            optimizer.step()
        if broken:
            raise SystemExit

    monkeypatch.setattr(gossip.ray.train, "get_context", lambda: None)
    function = threading.Thread(target=loop)
    function.start()
    function.join()
    for thread in threading.enumerate():
        if thread.name == "gossipdp detach":
            thread.join()
    assert peers[0].alone and peers[0].steps == 3
    assert handed_over(daemon) == (3, 15)
    assert seen(daemon, links.Detached) == [links.Detached("it ended")]


def test_ray__a_script_that_is_no_worker_is_told_by_ray(daemon: LedgerDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    gossip = framework("ray")

    def refuse() -> None:
        raise RuntimeError("`get_context` cannot be used outside of a Ray Train training function.")

    monkeypatch.setattr(gossip.ray.train, "get_context", refuse)
    model = Line()
    with pytest.raises(RuntimeError, match="outside of a Ray Train"):
        gossip.attach(model, torch.optim.SGD(model.parameters()))
    assert not seen(daemon, links.Attached)


def test_ray__workers_on_several_hosts_are_told_what_to_do_with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    gossip = framework("ray")

    def refuse(*_: object, **__: object) -> None:
        raise ConfigError(
            "GD-308", "the ranks of one group are on several hosts", seen="2 ranks on a, b", do="torchrun"
        )

    monkeypatch.setattr(gossip.ray.train, "get_context", lambda: None)
    monkeypatch.setattr(gossip.training, "attach", refuse)
    model = Line()
    with pytest.raises(ConfigError, match="GD-308") as caught:
        gossip.attach(model, torch.optim.SGD(model.parameters()))
    assert "STRICT_PACK" in caught.value.do and caught.value.seen == "2 ranks on a, b"
