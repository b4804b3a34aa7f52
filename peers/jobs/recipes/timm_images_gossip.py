"""A loop of timm's functions, with its schedule and its ModelEmaV3, which is saved: `python timm_images.py`."""

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import gossipdp
from peers.jobs.byte_gpt import data_generator
from peers.jobs.images import load_images
from peers.jobs.recipes.text import options, save

BATCH, EPOCH = 16, 40
steps, out = options()
model = timm.create_model("test_resnet", num_classes=10, in_chans=1)
optimizer = create_optimizer_v2(model, opt="adamw", lr=2e-3, weight_decay=0.05)
peer = gossipdp.attach(model, optimizer, samples_per_step=BATCH)
ema = ModelEmaV3(model, decay=0.99, use_warmup=True)
scheduler, epochs = create_scheduler_v2(
    optimizer, "cosine", -(-steps // EPOCH), warmup_epochs=1, step_on_epochs=False, updates_per_epoch=EPOCH
)
train, test = load_images()
small = TensorDataset(train.pixels.view(-1, 1, 8, 8).repeat_interleave(4, 2).repeat_interleave(4, 3), train.labels)
loader = DataLoader(small, BATCH, sampler=RandomSampler(small, True, EPOCH * BATCH, data_generator(None, 0)))
loss_of, updates = LabelSmoothingCrossEntropy(0.1), 0

for epoch in range(epochs):
    model.train()
    for images, labels in loader:
        loss = loss_of(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        updates = peer.clock
        ema.update(model, step=updates)
        scheduler.step_update(updates)
    with torch.no_grad():
        pixels = test.pixels.view(-1, 1, 8, 8).repeat_interleave(4, 2).repeat_interleave(4, 3)
        right = (ema(pixels).argmax(1) == test.labels).float().mean()
    print(f"epoch {epoch}: loss {loss:.3f}, accuracy of the average {right:.3f}", flush=True)

save(ema.module, out)
