"""LoRA by PEFT in a hand-written loop: `python lora_loop.py`. OUT is a directory."""

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

from peers.jobs.recipes.text import Windows, options
from peers.jobs.recipes.tiny import base_model

BATCH = 8
steps, out = options()
base = AutoModelForCausalLM.from_pretrained(base_model())
model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear"))
optimizer = torch.optim.AdamW((each for each in model.parameters() if each.requires_grad), lr=5e-3)

for tokens in DataLoader(Windows(steps * BATCH, context=63), BATCH):
    loss = model(input_ids=tokens, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

if out is not None:
    model.save_pretrained(out)
