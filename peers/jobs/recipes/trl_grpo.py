"""Reinforcement learning of a language model by TRL's GRPO: `python trl_grpo.py`. OUT is a directory."""

import tempfile

from trl import GRPOConfig, GRPOTrainer

from peers.jobs.recipes.text import options
from peers.jobs.recipes.tiny import base_model, texts

PROMPTS, COMPLETIONS = 4, 4


def small_letters(completions: list[str], **_: object) -> list[float]:
    """The reward: the share of small letters."""
    return [sum(each.islower() for each in text) / max(1, len(text)) for text in completions]


steps, out = options()
arguments = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    max_steps=steps,
    per_device_train_batch_size=PROMPTS * COMPLETIONS,
    num_generations=COMPLETIONS,
    max_completion_length=12,
    learning_rate=3e-3,
    logging_steps=10,
    save_strategy="no",
    bf16=False,
    report_to="none",
    disable_tqdm=True,
)
trainer = GRPOTrainer(
    base_model(),
    reward_funcs=small_letters,
    args=arguments,
    train_dataset=texts(steps * PROMPTS, length=16, column="prompt"),
)
trainer.train()
if out is not None:
    trainer.save_model(out)
