"""A script for Lightning's DDP on two CPUs, for test_recipes: it is started once, and Lightning starts the other rank.

lightning_ddp.py STEPS OUT
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from gossipdp.training.adapters.lightning import GossipCallback
from peers.jobs.byte_gpt import build_model, window_loss
from peers.jobs.recipes.text import Windows, options, save

BATCH, ACCUMULATE = 4, 2


class Bytes(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.gpt = build_model("0.25M")

    def training_step(self, windows: torch.Tensor) -> torch.Tensor:
        return window_loss(self.gpt, windows)

    def validation_step(self, windows: torch.Tensor) -> None:
        self.log("held out", window_loss(self.gpt, windows), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


torch.set_num_threads(1)
steps, out = options()
model = Bytes()
trainer = Trainer(
    max_steps=steps, accelerator="cpu", devices=2, strategy="ddp", accumulate_grad_batches=ACCUMULATE, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[GossipCallback()],
)  # fmt: skip
trainer.fit(model, DataLoader(Windows(steps * BATCH * ACCUMULATE * 2), BATCH), DataLoader(Windows(8), BATCH))
if trainer.is_global_zero:
    save(model, out)
