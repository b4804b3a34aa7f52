"""Ray Train's TorchTrainer with the workers of one host: `python ray_train.py`."""

import ray.train
import ray.train.torch
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader

from gossipdp.training.adapters import ray as gossip
from peers.jobs.byte_gpt import build_model, window_loss
from peers.jobs.recipes.text import Windows, options, save

BATCH = 4


def loop(settings: dict) -> None:
    model = ray.train.torch.prepare_model(build_model("0.25M"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gossip.attach(model, optimizer, samples_per_step=BATCH)
    data = Windows(settings["steps"] * BATCH * ray.train.get_context().get_world_size())
    for windows in ray.train.torch.prepare_data_loader(DataLoader(data, BATCH)):
        loss = window_loss(model, windows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ray.train.report({"loss": loss.item()})
    if ray.train.get_context().get_world_rank() == 0:
        save(getattr(model, "module", model), settings["out"])


if __name__ == "__main__":
    steps, out = options()
    scaling = ScalingConfig(num_workers=2, use_gpu=torch.cuda.is_available())
    TorchTrainer(loop, train_loop_config={"steps": steps, "out": out}, scaling_config=scaling).fit()
