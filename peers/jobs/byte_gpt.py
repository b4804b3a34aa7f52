"""Train a GPT on bytes: a decoder-only transformer on the standard library's own sources.

    gossipdp up --network gpt -- python -m peers.jobs.byte_gpt --size 1M --steps 2000  # one process, with its peers
    gossipdp up --network gpt -- torchrun --nproc-per-node 8 -m peers.jobs.byte_gpt --size 11M  # 8 GPUs
    gossipdp up --network gpt -- torchrun --nproc-per-node 8 -m peers.jobs.byte_gpt --shard  # by FSDP2
    GOSSIPDP_OFF=1 python -m peers.jobs.byte_gpt  # alone

Settings, data, model, optimizer, loop, in this order. gossipdp needs only the one line with `attach`. Nothing else here
knows of peers, rounds or networks. The model follows GPT-2 (Radford et al. 2019). Rotary positions (Su et al. 2021,
arXiv 2104.09864) replace learned ones, so its size does not depend on the context.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import math
import os
import socket
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeAlias

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gossipdp

# -- settings --------------------------------------------------------------------------------------------------


class Size(NamedTuple):
    layers: int
    heads: int
    width: int
    lr: float
    """peak learning rate for tens of windows per step; a smaller model tolerates a higher one"""


VOCABULARY = 256
SIZES = {
    "0.25M": Size(layers=2, heads=3, width=96, lr=3e-3),
    "1M": Size(layers=5, heads=4, width=128, lr=2e-3),
    "3M": Size(layers=4, heads=8, width=256, lr=1.5e-3),
    "11M": Size(layers=6, heads=6, width=384, lr=1e-3),
}


def settings(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line. Under torchrun write --log-file: torchrun takes --log as an abbreviation of its own."""
    parser = argparse.ArgumentParser(prog="byte_gpt", description="Train a byte-level GPT on the standard library.")
    add = parser.add_argument
    add("--size", choices=SIZES, default="0.25M", help="parameters (%(default)s)")
    add("--steps", type=int, default=1000, help="optimizer steps (%(default)s)")
    add("--batch", type=int, default=8, help="windows per step and process (%(default)s)")
    add("--context", type=int, default=128, help="bytes per window (%(default)s)")
    add("--lr", type=float, help="peak learning rate (by size: " + ", ".join(f"{s.lr:g}" for s in SIZES.values()) + ")")
    add("--warmup", type=int, help="steps of linear warm-up (a twentieth of --steps, at most 100)")
    add("--seed", type=int, default=0, help="seed of the initial weights, the same on every peer (%(default)s)")
    add("--data-seed", type=int, help="seed of the windows (default: from host, home and rank)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, ... (%(default)s)")
    add("--dtype", choices=("fp32", "bf16"), default="fp32", help="type of matrix products; weights are fp32")
    add("--shard", action="store_true", help="under torchrun: FSDP2 instead of DDP")
    add("--threads", type=int, default=0, help="torch threads on a CPU; 0: torch's choice")
    add("--eval-every", type=int, default=200, help="steps between validations; 0: only at the end (%(default)s)")
    add("--eval-windows", type=int, default=128, help="validation windows, the same on all peers (%(default)s)")
    add("--log", "--log-file", type=Path, help="append JSON lines to this file: step, loss, tokens, elapsed, val")
    add("--log-every", type=int, default=10, help="steps between lines (%(default)s)")
    add("--save", type=Path, help="write the final weights to this file (safetensors)")
    return parser.parse_args(argv)


# -- data ------------------------------------------------------------------------------------------------------

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "encodings"}
"""Folders that are not the library, or (encodings) whose files are so similar that validation would leak."""


class Corpus(NamedTuple):
    """Bytes as uint8 vectors; files are separated by a zero byte."""

    train: Tensor
    validation: Tensor


def is_validation(path: str) -> bool:
    """Whether a file is held out. One in ten is.

    The name alone decides, so peers with different versions of Python hold out the same files.

    Args:
        path: relative to the library, with forward slashes.
    """
    return hashlib.blake2b(path.encode(), digest_size=8).digest()[0] % 10 == 0


def corpus_files(root: Path) -> list[str]:
    """The sources below `root`, as sorted relative paths."""
    found = []
    for directory, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in SKIPPED]
        found += [Path(directory, name).relative_to(root).as_posix() for name in names if name.endswith(".py")]
    return sorted(found)


@functools.cache
def load_corpus(root: Path | None = None) -> Corpus:
    root = root or Path(sysconfig.get_paths()["stdlib"])
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    for name in corpus_files(root):
        parts[is_validation(name)].append((root / name).read_bytes())
    if not all(parts.values()):
        raise SystemExit(f"byte_gpt: too few .py sources below {root} for a training and a validation set")
    return Corpus(*(torch.frombuffer(bytearray(b"\0".join(parts[held])), dtype=torch.uint8) for held in (False, True)))


def windows_at(text: Tensor, starts: Tensor, context: int) -> Tensor:
    """`context` bytes and the next one, from each start: (len(starts), context + 1), int64."""
    return text[starts[:, None] + torch.arange(context + 1)].long()


def validation_windows(n: int, context: int) -> Tensor:
    """`n` fixed windows, evenly spread over the validation text, so that losses of different peers compare."""
    text = load_corpus().validation
    starts = torch.linspace(0, len(text) - context - 1, n, dtype=torch.float64).long()
    return windows_at(text, starts, context)


def data_generator(seed: int | None, rank: int) -> torch.Generator:
    """The random generator of windows: a different stream for every peer, rank and start of the process.

    Without a seed, host and home determine it. GOSSIPDP_ATTEMPT counts restarts: a restarted process must not read the
    same windows again.
    """
    home = os.environ.get("GOSSIPDP_HOME", "")
    source = f"{socket.gethostname()}:{Path(home).resolve()}" if seed is None and home else str(seed or 0)
    name = f"{source}:{rank}:{os.environ.get('GOSSIPDP_ATTEMPT', '0')}"
    digest = hashlib.blake2b(name.encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))


# -- model -----------------------------------------------------------------------------------------------------


@functools.cache
def rotations(length: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position x frequency, (length, width / 2). Not a buffer, because peers would average it."""
    frequency = 10_000.0 ** -(torch.arange(0, width, 2, device=device) / width)
    angle = torch.arange(length, device=device)[:, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.inputs(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind()
        cos, sin = rotations(length, width // self.heads, x.device)
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        return self.output(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads)
        self.norm_2 = nn.LayerNorm(width, bias=False)
        self.inner = nn.Linear(width, 4 * width, bias=False)
        self.output = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.output(F.gelu(self.inner(self.norm_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Bytes (batch, length) -> logits (batch, length, 256). The head is the embedding, transposed."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embedding.weight)


def build_model(size: str, seed: int = 0) -> GPT:
    """A model of one of SIZES. The same `seed` gives the same weights on every host."""
    model = GPT(SIZES[size])
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            # Layers that add to the residual stream start smaller, by the number of additions (GPT-2, section 2.3).
            scale = (2 * len(model.blocks)) ** -0.5 if name.endswith("output.weight") else 1.0
            nn.init.normal_(parameter, std=0.02 * scale, generator=generator)
    return model


def window_loss(model: nn.Module, windows: Tensor) -> Tensor:
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())


@torch.no_grad()
def evaluate(model: nn.Module, windows: Tensor, batch: int = 32) -> float:
    """Mean loss over `windows`, in nats per byte. Every rank of a sharded model must call this."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    total = sum(window_loss(model, part.to(device)).item() * len(part) for part in windows.split(batch))
    model.train(was_training)
    return total / len(windows)


# -- optimizer -------------------------------------------------------------------------------------------------


def build_optimizer(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """AdamW with weight decay on matrices, and none on gains."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    gains = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)


def learning_rate(step: int, steps: int, warmup: int, peak: float) -> float:
    """Linear warm-up, then a cosine to zero (Loshchilov & Hutter 2017, arXiv 1608.03983)."""
    if step < warmup:
        return peak * (step + 1) / warmup
    share = (step - warmup) / max(1, steps - warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * share))


# -- loop ------------------------------------------------------------------------------------------------------


def train(options: argparse.Namespace) -> dict[str, Any]:
    """One training process from start to end. Return what `main` prints."""
    if options.threads:
        torch.set_num_threads(options.threads)
    rank, device = int(os.environ.get("RANK", "0")), choose_device(options.device)
    distributed = "WORLD_SIZE" in os.environ
    if distributed:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    text = load_corpus().train
    held_out = validation_windows(options.eval_windows, options.context)
    generator = data_generator(options.data_seed, rank)

    peak = options.lr or SIZES[options.size].lr
    warmup = min(100, options.steps // 20) if options.warmup is None else options.warmup
    model = build_model(options.size, options.seed).to(device)
    sharded = distributed and options.shard
    replica = wrapped(model, distributed, sharded)
    optimizer = build_optimizer(model, peak)
    precision = torch.autocast(device.type, torch.bfloat16) if options.dtype == "bf16" else contextlib.nullcontext()

    peer = gossipdp.attach(model, optimizer, samples_per_step=options.batch)

    evaluates = rank == 0 or sharded
    with contextlib.nullcontext() if options.log is None or rank else options.log.open("a", buffering=1) as lines:
        log = Log(options, lines, peer, functools.partial(evaluate, model, held_out) if evaluates else None)
        for step in range(options.steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, options.steps, warmup, peak)
            starts = torch.randint(len(text) - options.context, (options.batch,), generator=generator)
            windows = windows_at(text, starts, options.context).to(device)
            with precision:
                loss = window_loss(replica, windows)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            log.step(step + 1, loss)

        seconds = log.seconds()
        peer.detach()
        summary = {
            "validation_loss": evaluate(model, held_out) if evaluates else math.nan,
            "steps": options.steps,
            "parameters": sum(p.numel() for p in model.parameters()),
            "seconds": round(seconds, 4),
            "stall_seconds": round(peer.stall_seconds, 4),
            "stall_share": round(peer.stall_seconds / seconds, 6) if seconds else 0.0,
        }
        log.write({"step": options.steps, "val": summary["validation_loss"]})
    if options.save is not None:
        save(model, options.save, rank)
    if distributed:
        # DDP's reducer must not be the last owner of the group: it would wait for the group's threads while it holds
        # the GIL, which they may need.
        del replica
        dist.destroy_process_group()
    return summary


def choose_device(wish: str) -> torch.device:
    """The device of --device; on CUDA that of the local rank, unless an index is given."""
    device = torch.device(wish if wish != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        device = torch.device("cuda", local_rank if device.index is None else device.index)
        torch.cuda.set_device(device)
    return device


def wrapped(model: GPT, distributed: bool, sharded: bool) -> nn.Module:
    """The module to call: `model` itself, sharded in place by FSDP2, or in DDP."""
    if sharded:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return DistributedDataParallel(model) if distributed and not sharded else model


Validate: TypeAlias = Callable[[], float]


class Log:
    """Reports steps to `peer` and to JSON `lines`. `lines` or `validate` is None in a process that does not do that."""

    def __init__(
        self, options: argparse.Namespace, lines: TextIO | None, peer: gossipdp.Attachment, validate: Validate | None
    ) -> None:
        self._options, self._lines, self._peer, self._validate = options, lines, peer, validate
        self._start, self._evaluating = time.monotonic(), 0.0

    def seconds(self) -> float:
        """Training time since the start, without validations."""
        return time.monotonic() - self._start - self._evaluating

    def step(self, done: int, loss: Tensor) -> None:
        """After `done` steps: report, validate and log, each if it is due."""
        options = self._options
        record: dict[str, Any] = {}
        if done % options.log_every == 0 or done == options.steps:
            record = {"step": done, "loss": loss.item()}
            self._peer.report(loss=record["loss"])
        looks = options.eval_every and done % options.eval_every == 0 and done < options.steps
        if looks and self._validate is not None:
            before = time.monotonic()
            record |= {"step": done, "loss": loss.item(), "val": self._validate()}
            self._evaluating += time.monotonic() - before
            self._peer.report(loss=record["loss"], eval_loss=record["val"])
        if record and self._lines is not None:
            tokens = done * options.batch * options.context * world_size()
            self.write(record | {"tokens": tokens, "elapsed": round(self.seconds(), 4)})

    def write(self, record: dict[str, Any]) -> None:
        if self._lines is not None:
            self._lines.write(json.dumps(record) + "\n")


def save(model: nn.Module, path: Path, rank: int) -> None:
    """Write the whole weights, also of a sharded model, from rank 0. Every rank calls this."""
    full = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights: dict[str, Any] = get_model_state_dict(model, options=full)
    if rank == 0:
        save_file(weights, path)


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def main(argv: Sequence[str] | None = None) -> None:
    summary = train(settings(argv))
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(summary), flush=True)


if __name__ == "__main__":
    main()
