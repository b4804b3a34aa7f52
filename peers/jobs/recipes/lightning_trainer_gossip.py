"""Lightning's Trainer: `python lightning_trainer.py`."""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from gossipdp.training.adapters.lightning import GossipCallback
from peers.jobs.byte_gpt import build_model, window_loss
from peers.jobs.recipes.text import Windows, options, save


class Bytes(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.gpt = build_model("0.25M")

    def training_step(self, windows: torch.Tensor) -> torch.Tensor:
        return window_loss(self.gpt, windows)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


BATCH, ACCUMULATE = 4, 2
steps, out = options()
model = Bytes()
trainer = Trainer(
    max_steps=steps,
    accumulate_grad_batches=ACCUMULATE,
    gradient_clip_val=1.0,
    log_every_n_steps=10,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[GossipCallback()],
)
trainer.fit(model, DataLoader(Windows(steps * BATCH * ACCUMULATE), BATCH))
if trainer.is_global_zero:
    save(model, out)
