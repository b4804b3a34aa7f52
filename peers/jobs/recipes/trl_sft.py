"""Supervised fine-tuning of a LoRA adapter by TRL: `python trl_sft.py`. OUT is a directory."""

import tempfile

from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

from peers.jobs.recipes.text import options
from peers.jobs.recipes.tiny import base_model, texts

BATCH = 8
steps, out = options()
arguments = SFTConfig(
    output_dir=tempfile.mkdtemp(),
    max_steps=steps,
    per_device_train_batch_size=BATCH,
    learning_rate=5e-3,
    max_length=64,
    logging_steps=10,
    save_strategy="no",
    bf16=False,
    report_to="none",
    disable_tqdm=True,
)
trainer = SFTTrainer(
    base_model(),
    args=arguments,
    train_dataset=texts(steps * BATCH),
    peft_config=LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear"),
)
trainer.train()
if out is not None:
    trainer.save_model(out)
