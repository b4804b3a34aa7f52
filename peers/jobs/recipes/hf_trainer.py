"""Transformers' Trainer, alone or under torchrun: `python hf_trainer.py`."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from peers.jobs.recipes.text import Windows, options


def collate(windows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    tokens = torch.stack(windows)
    return {"input_ids": tokens, "labels": tokens}


steps, out = options()
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=96, n_layer=2, n_head=3))
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=steps,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    learning_rate=1e-3,
    logging_steps=10,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(
    model,
    arguments,
    data_collator=collate,
    train_dataset=Windows(steps * 8),
)
trainer.train()
trainer.save_model(out)
