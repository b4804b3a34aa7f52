"""A small language model of bytes: with a schedule, evaluation, and a state to go on from after a restart."""

from pathlib import Path

import torch
from torch import nn, optim

import gossipdp

STEPS, BATCH = 100_000, 64
text = b"".join(file.read_bytes() for file in sorted(Path(nn.__file__).parent.rglob("*.py")))
windows = torch.tensor(list(text)).unfold(0, 17, 1)  # 16 bytes, and the next one
train, held_out = windows[:-2000], windows[-2000:]
model = nn.Sequential(nn.Embedding(256, 32), nn.Flatten(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 256))
optimizer = optim.AdamW(model.parameters(), lr=3e-3)
peer = gossipdp.attach(model, optimizer, samples_per_step=BATCH)
scheduler = optim.lr_scheduler.LambdaLR(optimizer, peer.schedule(lambda n: min((n + 1) / 100, 1 - n / STEPS)))
peer.load("state.safetensors", missing_ok=True)
while peer.clock < STEPS:
    batch = train[torch.randint(len(train), (BATCH,))]
    loss = nn.functional.cross_entropy(model(batch[:, :-1]), batch[:, -1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if peer.steps % 500 == 0:
        print(f"step {peer.steps}: loss {loss:.3f}", flush=True)
        peer.report(loss=loss, eval_loss=nn.functional.cross_entropy(model(held_out[:, :-1]), held_out[:, -1]))
        peer.save("state.safetensors")
