"""LoRA by PEFT under Transformers' Trainer: `python lora_trainer.py`. OUT is a directory."""

import tempfile

from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

from gossipdp.training.adapters.hf import GossipCallback
from peers.jobs.recipes.text import options
from peers.jobs.recipes.tiny import base_model, texts

BATCH = 8
steps, out = options()
name = base_model()
tokenizer = AutoTokenizer.from_pretrained(name)
data = texts(steps * BATCH).map(lambda rows: tokenizer(rows["text"]), batched=True, remove_columns=["text"])
model = get_peft_model(
    AutoModelForCausalLM.from_pretrained(name),
    LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear"),
)
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=steps,
    per_device_train_batch_size=BATCH,
    learning_rate=5e-3,
    logging_steps=10,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(
    model,
    arguments,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    train_dataset=data,
    callbacks=[GossipCallback()],
)
trainer.train()
if out is not None:
    trainer.save_model(out)
