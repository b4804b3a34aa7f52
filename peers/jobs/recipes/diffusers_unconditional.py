"""Diffusers' unconditional training with Accelerate and an EMA, which is saved: `python diffusers_unconditional.py`."""

import torch
from accelerate import Accelerator
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from torch.utils.data import DataLoader, RandomSampler

from peers.jobs.byte_gpt import data_generator
from peers.jobs.images import load_images
from peers.jobs.recipes.text import options

BATCH = 16
steps, out = options()
accelerator = Accelerator()
model = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(16, 32),
    norm_num_groups=8,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
ema = EMAModel(model.parameters(), decay=0.99, use_ema_warmup=True, power=3 / 4)
noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.95, 0.999), weight_decay=1e-6)
images = load_images()[0].pixels.view(-1, 1, 8, 8) * 2 - 1
chosen = RandomSampler(images, replacement=True, num_samples=steps * BATCH, generator=data_generator(None, 0))
schedule = get_scheduler("constant_with_warmup", optimizer, num_warmup_steps=20)
model, optimizer, loader, schedule = accelerator.prepare(
    model, optimizer, DataLoader(images, BATCH, sampler=chosen), schedule
)
ema.to(accelerator.device)

for clean in loader:
    noise = torch.randn_like(clean)
    times = torch.randint(noise_scheduler.config.num_train_timesteps, (len(clean),), device=clean.device)
    noisy = noise_scheduler.add_noise(clean, noise, times)
    with accelerator.accumulate(model):
        loss = torch.nn.functional.mse_loss(model(noisy, times).sample, noise)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        ema.step(model.parameters())
        accelerator.log({"loss": loss.item()})

if accelerator.is_main_process and out is not None:
    unet = accelerator.unwrap_model(model)
    ema.store(unet.parameters())
    ema.copy_to(unet.parameters())
    DDPMPipeline(unet, noise_scheduler).save_pretrained(out)
    ema.restore(unet.parameters())
accelerator.end_training()
