"""A GPT in the manner of nanoGPT's train.py, with a checkpoint from which it goes on: `python nanogpt.py`."""

import math

import torch
from torch.nn.utils import clip_grad_norm_

import gossipdp
from peers.jobs.byte_gpt import GPT, build_model, data_generator, load_corpus, window_loss, windows_at
from peers.jobs.recipes.text import options, save

batch_size, block_size, gradient_accumulation_steps = 4, 32, 2
learning_rate, min_lr, warmup_iters, grad_clip = 1e-3, 1e-4, 20, 1.0
eval_interval, eval_iters = 40, 4
max_iters, out = options()
generator = data_generator(None, 0)


def get_batch(split: str) -> torch.Tensor:
    text = load_corpus()._asdict()[split]
    return windows_at(text, torch.randint(len(text) - block_size, (batch_size,), generator=generator), block_size)


@torch.no_grad()
def estimate_loss(model: GPT) -> dict[str, float]:
    model.eval()
    means = {}
    for split in ("train", "validation"):
        means[split] = sum(window_loss(model, get_batch(split)).item() for _ in range(eval_iters)) / eval_iters
    model.train()
    return means


def configure_optimizers(model: GPT) -> torch.optim.Optimizer:
    decayed = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


def get_lr(it: int) -> float:
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    share = min(1.0, (it - warmup_iters) / (max_iters - warmup_iters))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * share)) * (learning_rate - min_lr)


model = build_model("0.25M")
optimizer = configure_optimizers(model)
iter_num, best_val_loss = 0, math.inf
try:
    checkpoint = torch.load(f"{out}.ckpt", weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num, best_val_loss = checkpoint["iter_num"], checkpoint["best_val_loss"]
except FileNotFoundError:
    pass
peer = gossipdp.attach(model, optimizer, samples_per_step=batch_size * gradient_accumulation_steps)

while peer.clock < max_iters:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(peer.clock)
    if iter_num % eval_interval == 0:
        losses = estimate_loss(model)
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['validation']:.4f}", flush=True)
        if losses["validation"] < best_val_loss:
            best_val_loss = losses["validation"]
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**parts, "iter_num": iter_num, "best_val_loss": best_val_loss}, f"{out}.ckpt")
    for _ in range(gradient_accumulation_steps):
        loss = window_loss(model, get_batch("train")) / gradient_accumulation_steps
        loss.backward()
    clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1

save(model, out)
