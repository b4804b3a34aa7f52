"""A training script that shards its model by FSDP2 through a framework, for test_recipes: `FRAMEWORK` says which.

sharded_framework.py STEPS OUT
"""

import os
import tempfile

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.utils.data import DataLoader

from peers.jobs.byte_gpt import build_model, window_loss
from peers.jobs.recipes.text import Windows, options

BATCH = 4


def write(model: torch.nn.Module) -> None:
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        save_file(weights, out)


def with_accelerate() -> None:
    from accelerate import Accelerator
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    from gossipdp.training.adapters import accelerate as gossip

    accelerator = Accelerator()
    # Accelerate shards nowhere but on devices; what it does there is done on the CPU here.
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap", reshard_after_forward=True)
    accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
    model = build_model("0.25M")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = Windows(steps * BATCH * accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, BATCH))
    gossip.attach(accelerator, model, optimizer, loader)
    for windows in loader:
        accelerator.backward(window_loss(model, windows))
        optimizer.step()
        optimizer.zero_grad()
    write(model)
    accelerator.end_training()


def with_lightning() -> None:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    from gossipdp.training.adapters.lightning import GossipCallback

    class Bytes(LightningModule):
        def configure_model(self) -> None:
            self.gpt = build_model("0.25M")
            for block in self.gpt.blocks:
                fully_shard(block, mesh=self.device_mesh["data_parallel"])
            fully_shard(self.gpt, mesh=self.device_mesh["data_parallel"])

        def training_step(self, windows: torch.Tensor) -> torch.Tensor:
            return window_loss(self.gpt, windows)

        def validation_step(self, windows: torch.Tensor) -> None:
            # Lightning evaluates before it trains, which leaves whole parameters in FSDP2's root.
            window_loss(self.gpt, windows)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

        def on_train_end(self) -> None:
            write(self)

    trainer = Trainer(
        max_steps=steps, accelerator="cpu", devices=2, strategy=ModelParallelStrategy(), logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=10,
        callbacks=[GossipCallback()],
    )  # fmt: skip
    trainer.fit(Bytes(), DataLoader(Windows(steps * BATCH * 2), BATCH), DataLoader(Windows(4 * BATCH), BATCH))


def with_transformers() -> None:
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from gossipdp.training.adapters.hf import GossipCallback

    class Sharding(Trainer):
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
            state = self.accelerator.state
            state.distributed_type, state.fsdp_plugin, self.is_fsdp_enabled = DistributedType.FSDP, plugin, True

    def collate(windows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.stack(windows), "labels": torch.stack(windows)}

    arguments = TrainingArguments(
        tempfile.mkdtemp(), max_steps=steps, per_device_train_batch_size=BATCH, learning_rate=1e-3, save_strategy="no",
        report_to="none", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=96, n_layer=2, n_head=3))
    data = Windows(steps * BATCH * 2)
    trainer = Sharding(model, arguments, data_collator=collate, train_dataset=data, callbacks=[GossipCallback()])
    trainer.train()
    write(trainer.model)


steps, out = options()
{"accelerate": with_accelerate, "lightning": with_lightning, "transformers": with_transformers}[
    os.environ["FRAMEWORK"]
]()
