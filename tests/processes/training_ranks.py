"""A training process, or one rank of several, for test_ranks: byte_gpt's model and data, and a diary of every rank.

    training_ranks.py DIARY CLOCK ddp|fsdp|one [OTHER]

Training and its schedule end at CLOCK steps of the network's clock. Then it continues at a rate of zero, so that others
get the last steps, until the file DIARY.stop exists. With GOSSIPDP_OFF=1 the clock is its own. A step of a host has the
same number of windows for any number of ranks. Warm-up and clipping are byte_gpt's: without them, runs that differ only
in their windows end 0.1 nats apart. With OTHER, the diary of another host, the faster host waits. Lines of the diary,
one file per rank:

    {"at", "delayed", "event": "begin" | "step" | "trained" | "end", "step", "digest", "validation", "process"}
"""

import hashlib
import json
import os
import select
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import gossipdp
from peers.jobs import byte_gpt
from simulations.processes.progress import delay

BATCH, CONTEXT = 8, 64
"""windows per step of all ranks together, and bytes per window"""
PEAK = 3e-3
AHEAD = 10
"""steps that a host may be ahead of the other"""
LOOK = 0.005
"""seconds between two looks at the other diary"""


def digest(model: nn.Module) -> str:
    found = hashlib.blake2b(digest_size=8)
    for parameter in model.parameters():
        value = parameter.detach()
        found.update((value.full_tensor() if isinstance(value, DTensor) else value).numpy().tobytes())
    return found.hexdigest()


def told(stop: Path) -> bool:
    """Only the first rank looks, because all ranks must end at the same step."""
    found = torch.tensor([float(stop.exists())])
    if dist.is_initialized():
        dist.broadcast(found, 0)
    return bool(found)


def counter(diary: str | Path) -> Path:
    """A file with one byte per step that its host has begun."""
    return Path(f"{diary}.steps")


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def main() -> None:
    diary, until, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    other = counter(sys.argv[4]) if len(sys.argv) > 4 else None
    rank = int(os.environ.get("RANK", "0"))
    torch.set_num_threads(1)
    if kind != "one":
        dist.init_process_group("gloo")
    model = byte_gpt.build_model("0.25M")
    replica: nn.Module = model
    if kind == "fsdp":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    elif kind == "ddp":
        replica = DistributedDataParallel(model)
    optimizer = byte_gpt.build_optimizer(model, PEAK)
    generator = byte_gpt.data_generator(None, rank)
    text, held_out = byte_gpt.load_corpus().train, byte_gpt.validation_windows(256, CONTEXT)
    batch, warmup = BATCH // byte_gpt.world_size(), min(100, until // 20)

    with Path(f"{diary}.{rank}").open("a", buffering=1) as lines, counter(diary).open("ab", buffering=0) as count:

        def note(event: str, **more: object) -> None:
            lines.write(json.dumps({"at": time.monotonic(), "delayed": delay(), "event": event, **more}) + "\n")

        peer = gossipdp.attach(model, optimizer, samples_per_step=batch)
        note("begin", step=0, digest=digest(model), process=os.getpid())
        step, trained = 0, False
        while (clock := peer.clock) < until or step % 10 or not told(Path(f"{diary}.stop")):
            if clock >= until and not trained:
                note("trained", step=step, validation=byte_gpt.evaluate(model, held_out))
            trained = clock >= until
            step += 1
            if not rank:
                count.write(b".")
                # The other ranks wait for this one's gradients.
                while other is not None and not trained and size(other) < step - AHEAD:
                    select.select([], [], [], LOOK)
            for group in optimizer.param_groups:
                group["lr"] = byte_gpt.learning_rate(min(clock, until), until, warmup, PEAK)
            starts = torch.randint(len(text) - CONTEXT, (batch,), generator=generator)
            loss = byte_gpt.window_loss(replica, byte_gpt.windows_at(text, starts, CONTEXT))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            note("step", step=step, digest=digest(model) if step % 10 == 0 and clock < until else "")
        validation = byte_gpt.evaluate(model, held_out)
        peer.detach()
        note("end", step=step, digest=digest(model), validation=validation, stall=peer.stall_seconds)
    if kind != "one":
        group = dist.group.WORLD  # to be let go after DDP, which would wait for its threads with the GIL held
        dist.destroy_process_group()
        del replica, peer, group


if __name__ == "__main__":
    main()
