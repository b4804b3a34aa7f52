"""Train a small network to read handwritten digits: 1,797 images of 8 x 8 pixels that come with scikit-learn.

    gossipdp up --network digits -- python -m peers.jobs.digits --peers 2 --rank 0   # on one host
    gossipdp join @invite -- python -m peers.jobs.digits --peers 2 --rank 1          # on the other: other images
    GOSSIPDP_OFF=1 python -m peers.jobs.digits                                       # alone

Settings, data (`images`), model, optimizer, loop, in this order. It is the smallest job, and takes seconds. gossipdp
needs only the one line with `attach`. Needs scikit-learn: ``pip install scikit-learn``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import gossipdp
from peers.jobs.images import Images, load_images

# -- settings --------------------------------------------------------------------------------------------------


def settings(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="digits", description="Train a small network to read handwritten digits.")
    add = parser.add_argument
    add("--steps", type=int, default=500, help="optimizer steps (%(default)s)")
    add("--batch", type=int, default=32, help="images per step (%(default)s)")
    add("--lr", type=float, default=0.05, help="learning rate of SGD with momentum 0.9 (%(default)s)")
    add("--width", type=int, default=64, help="width of the hidden layers (%(default)s)")
    add("--peers", type=int, default=1, help="number of shares of the training images (%(default)s)")
    add("--rank", type=int, default=0, help="this process's share (%(default)s)")
    add("--seed", type=int, default=0, help="seed of the initial weights, the same on every peer (%(default)s)")
    add("--data-seed", type=int, help="seed of the order of images (default: --rank)")
    add("--threads", type=int, default=1, help="torch threads (%(default)s)")
    add("--log", type=Path, help="append JSON lines to this file: step, loss, accuracy, elapsed")
    add("--log-every", type=int, default=50, help="steps between lines (%(default)s)")
    chosen = parser.parse_args(argv)
    if not 0 <= chosen.rank < chosen.peers:
        parser.error(f"--rank {chosen.rank} is not one of --peers {chosen.peers}: 0 to {chosen.peers - 1}")
    return chosen


# -- data ------------------------------------------------------------------------------------------------------


def share(images: Images, rank: int, peers: int) -> Images:
    """The share of one of `peers`. The shares are disjoint, and together are all images."""
    return Images(images.pixels[rank::peers], images.labels[rank::peers])


# -- model -----------------------------------------------------------------------------------------------------


def build_model(width: int = 64, seed: int = 0) -> nn.Sequential:
    """Two hidden layers. The same `seed` gives the same weights on every host."""
    model = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.kaiming_normal_(parameter, nonlinearity="relu", generator=generator)
        else:
            nn.init.zeros_(parameter)
    return model


@torch.inference_mode()
def evaluate(model: nn.Module, images: Images) -> float:
    """The share of `images` that the model classifies correctly."""
    return (model(images.pixels).argmax(1) == images.labels).float().mean().item()


# -- loop ------------------------------------------------------------------------------------------------------


def train(options: argparse.Namespace) -> dict[str, Any]:
    """One training process from start to end. Return what `main` prints."""
    torch.set_num_threads(options.threads)
    everything, test = load_images()
    images = share(everything, options.rank, options.peers)
    generator = torch.Generator().manual_seed(options.rank if options.data_seed is None else options.data_seed)

    model = build_model(options.width, options.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)

    peer = gossipdp.attach(model, optimizer)

    start = time.monotonic()
    for step in range(options.steps):
        chosen = torch.randint(len(images.labels), (options.batch,), generator=generator)
        loss = F.cross_entropy(model(images.pixels[chosen]), images.labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        done = step + 1
        if done % options.log_every == 0 or done == options.steps:
            peer.report(loss=loss.item())
            record = {"step": done, "loss": loss.item(), "accuracy": evaluate(model, test)}
            if options.log is not None:
                with options.log.open("a") as lines:
                    lines.write(json.dumps(record | {"elapsed": round(time.monotonic() - start, 4)}) + "\n")

    seconds = time.monotonic() - start
    peer.detach()
    return {
        "accuracy": evaluate(model, test),
        "steps": options.steps,
        "seconds": round(seconds, 4),
        "stall_seconds": round(peer.stall_seconds, 4),
        "stall_share": round(peer.stall_seconds / seconds, 6) if seconds else 0.0,
    }


def main(argv: Sequence[str] | None = None) -> None:
    print(json.dumps(train(settings(argv))), flush=True)


if __name__ == "__main__":
    main()
