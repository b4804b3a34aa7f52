"""A model of Transformers that was trained as a peer, exported, and loaded again by `from_pretrained`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gossipdp
from peers import export
from tests.training.gpt2_models import WINDOW, checkpoint_of, gpt2, logits, transformers
from tests.training.ledger_daemon import PumpedDaemon

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks are their own affair


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PumpedDaemon]:
    monkeypatch.setenv("GOSSIPDP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    (tmp_path / "home").mkdir()
    before = dict(os.environ)
    daemon = PumpedDaemon(tmp_path / "home", every=2)
    with daemon.running():
        yield daemon
    daemon.server.close()
    os.environ.clear()
    os.environ.update(before)


def train(model: Any, out: Path) -> None:
    from gossipdp.training.adapters.hf import GossipCallback

    arguments = transformers().TrainingArguments(
        str(out), max_steps=4, per_device_train_batch_size=2, learning_rate=1e-2, save_strategy="no", report_to="none",
        disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    rows = [{"input_ids": WINDOW + n, "labels": WINDOW + n} for n in range(3)] * 4
    transformers().Trainer(model, arguments, train_dataset=rows, callbacks=[GossipCallback()]).train()


class Holder(torch.nn.Module):
    """As in a LightningModule: names begin with `model.`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model


@pytest.mark.parametrize(
    ("frozen", "shard", "files"), [(False, export.SHARD, 1), (True, 20_000, 4)], ids=["whole", "half frozen, in shards"]
)
def test_from_pretrained_loads_an_export__the_same_logits(
    daemon: PumpedDaemon, tmp_path: Path, frozen: bool, shard: int, files: int
) -> None:
    model = gpt2()
    for parameter in model.transformer.h[0].parameters():
        parameter.requires_grad_(not frozen)
    before = logits(model)
    model.save_pretrained(tmp_path / "base")
    train(model, tmp_path / "trainer")
    made = export.export_model(checkpoint_of(daemon, tmp_path), tmp_path / "out", tmp_path / "base", shard=shard)
    assert made.files == files and (made.kept > 0) == frozen
    loaded = transformers().AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(logits(loaded), logits(model)) and not torch.equal(logits(model), before)
    assert loaded.lm_head.weight.data_ptr() == loaded.transformer.wte.weight.data_ptr(), "tied, as it was"


def test_from_pretrained_loads_shards_that_were_exported_without_a_base(daemon: PumpedDaemon, tmp_path: Path) -> None:
    model = gpt2()
    train(model, tmp_path / "trainer")
    out = tmp_path / "out"
    files = export.export_files(export.trained(checkpoint_of(daemon, tmp_path)), out, shard=20_000)
    model.config.save_pretrained(out)
    loaded = transformers().AutoModelForCausalLM.from_pretrained(out)
    assert files == 4 and torch.equal(logits(loaded), logits(model))


def test_names_of_a_module_around_the_model_lose_their_prefix__the_same_logits(
    daemon: PumpedDaemon, tmp_path: Path
) -> None:
    model = gpt2()
    model.half().save_pretrained(tmp_path / "base")
    model.float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with gossipdp.attach(Holder(model), optimizer):
        for _ in range(4):
            model(input_ids=WINDOW[None], labels=WINDOW[None]).loss.backward()
            optimizer.step()
    saved = checkpoint_of(daemon, tmp_path)
    export.export_model(saved, tmp_path / "out", tmp_path / "base", prefixes=["model."])
    loaded = transformers().AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert loaded.dtype == torch.float32, "in which it was trained, and not half as its base was saved"
    assert torch.equal(logits(loaded), logits(model))
