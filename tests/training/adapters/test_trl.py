"""TRL's trainers with the callback of Transformers' Trainer: what they generate, and their reference models."""

import logging
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gossipdp.training.tensors.frozen import frozen_digests
from gossipdp.training.tensors.schema import exchanged
from tests.training.ledger_daemon import LedgerDaemon, PumpedDaemon

pytestmark = [
    pytest.mark.long,  # the import alone takes twenty seconds
    pytest.mark.recipes,
    pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed"),
    pytest.mark.filterwarnings("ignore"),  # those of the frameworks are their own affair
]


def model_that_says_x(directory: str) -> Any:
    """The model in `directory`, trained to say nothing but x."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    x = transformers.AutoTokenizer.from_pretrained(directory)("x")["input_ids"][0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        tokens = torch.randint(250, (8, 24))
        model(input_ids=tokens, labels=torch.full_like(tokens, x)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def as_vector(daemon: LedgerDaemon, model: Any) -> NDArray[np.float32]:
    assert daemon.schema is not None
    tensors, vector = model.state_dict(), np.zeros(daemon.region.size, np.float32)
    for entry in daemon.schema.entries:
        vector[entry.offset : entry.stop] = tensors[entry.name].float().flatten().numpy()
    return vector


def test_what_grpo_generates_after_a_correction_is_of_the_corrected_model(pumped: PumpedDaemon) -> None:
    import trl

    from gossipdp.training.adapters.hf import GossipCallback
    from peers.jobs.recipes import tiny

    directory = tiny.base_model()
    says_x = model_that_says_x(directory)
    said: list[list[str]] = []

    def reward(completions: list[str], **_: object) -> list[float]:
        said.append(completions)
        if len(said) == 3:
            with pumped.lock:
                assert pumped.a is not None
                pumped.mix(as_vector(pumped, says_x) - pumped.a)
                pumped.seal()
        return [float(len(text)) for text in completions]

    arguments = trl.GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=8, per_device_train_batch_size=4, num_generations=4,
        max_completion_length=6, learning_rate=1e-6, bf16=False, save_strategy="no", report_to="none",
    )  # fmt: skip
    trl.GRPOTrainer(
        directory,
        reward_funcs=reward,
        args=arguments,
        train_dataset=tiny.texts(32, length=16, column="prompt"),
        callbacks=[GossipCallback()],
    ).train()
    assert not any("xxx" in text for texts in said[:3] for text in texts)
    assert pumped.drained == 1
    assert all(text == "xxxxxx" for text in said[-1]), said


def test_a_joiner_that_trains_with_a_reference_model_is_told_that_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import datasets
    import trl

    from gossipdp.training.adapters.hf import GossipCallback
    from peers.jobs.recipes import tiny

    monkeypatch.setenv("GOSSIPDP_HOME", str(tmp_path))
    rows = {"prompt": ["def "] * 8, "chosen": ["f()"] * 8, "rejected": ["???"] * 8}
    arguments = trl.DPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=2, learning_rate=1e-3,
        bf16=False, save_strategy="no", report_to="none",
    )  # fmt: skip
    daemon = PumpedDaemon(tmp_path, every=1)
    kept = []
    with daemon.running(), caplog.at_level(logging.WARNING, "gossipdp.training"):
        for _ in range(2):
            trainer = trl.DPOTrainer(
                tiny.base_model(),
                args=arguments,
                train_dataset=datasets.Dataset.from_dict(rows),
                processing_class=tiny.tokenizer(),
                callbacks=[GossipCallback()],
            )
            before = {name: each.clone() for name, each in trainer.ref_model.named_parameters()}
            trainer.train()
            after = dict(trainer.ref_model.named_parameters())
            kept.append(all(torch.equal(each, after[name]) for name, each in before.items()))
    daemon.server.close()
    assert kept == [True, True]
    said = [each.getMessage() for each in caplog.records if "copy of the model" in each.getMessage()]
    assert len(said) == 1 and "leave a reference model, as of DPO or GRPO, as it is" in said[0], said


def test_the_copy_of_an_adapter_that_trl_keeps_as_a_reference_is_frozen_and_compared() -> None:
    import peft
    import transformers
    import trl

    from peers.jobs.recipes import tiny

    arguments = trl.GRPOConfig(
        output_dir=tempfile.mkdtemp(), beta=0.1, per_device_train_batch_size=4, num_generations=4, bf16=False,
        report_to="none",
    )  # fmt: skip

    def frozen_of(seed: int) -> dict[str, bytes]:
        base = transformers.AutoModelForCausalLM.from_pretrained(tiny.base_model())
        transformers.set_seed(seed)
        adapted = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]))
        trainer = trl.GRPOTrainer(
            adapted,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=arguments,
            train_dataset=tiny.texts(8, length=16, column="prompt"),
        )
        assert not any(".ref." in entry.name for entry in exchanged(trainer.model)[0].entries)
        return dict(frozen_digests(trainer.model))

    one, same, other = frozen_of(1), frozen_of(1), frozen_of(2)
    assert one == same
    if not any(".ref." in name for name in one):
        pytest.skip("this trl keeps no second adapter")
    differing = [name for name in one if one[name] != other[name]]
    assert differing and all(".lora_A.ref." in name for name in differing), "B begins with zeros everywhere"
