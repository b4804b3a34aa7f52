"""Digests of a model's frozen parameters, so that peers that build on different ones are told apart.

Adapters of two revisions of a base model would be averaged, and the average would fit neither. FSDP2-sharded
parameters, quantised parameters and buffers are not compared. A warning names sharded ones. Nothing here gathers a
tensor or changes a number in one.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gossipdp.protocol.schema import MAX_BYTES, Frozen
from gossipdp.training.messages import log
from gossipdp.training.tensors.schema import plain_name
from gossipdp.training.tensors.streams import parts

__all__ = ["first_rank", "frozen_digests"]

MOST: Final = 16_384
"""parameters of which the schema holds digests, at most"""
LONGEST: Final = 1024
"""characters of a name in a schema, at most"""
WRITTEN: Final = 32
"""bytes that a parameter takes in a schema beside its name, at most"""
THREADS: Final = 4
"""threads that hash at the same time, at most; hashlib releases the GIL"""
LONG: Final = 1e9
"""bytes of frozen parameters from which on a log line says that they are read"""


def frozen_digests(
    model: nn.Module, room: int = MAX_BYTES, excluded: frozenset[str] = frozenset()
) -> tuple[Frozen, ...]:
    """Digests of the frozen floating-point parameters of `model`, unwrapped.

    Args:
        room: bytes that the schema has left for them.
        excluded: names that are not compared.

    Returns:
        None at all if any of them is sharded, packed or does not fit. The first rank warns about that.
    """
    listed = [(plain_name(name), each) for name, each in model.named_parameters() if not each.requires_grad]
    frozen = [(name, each) for name, each in listed if each.is_floating_point() and name not in excluded]
    odd = next((f"{name} is sharded, packed, or on no device" for name, each in frozen if not _plain(each)), "")
    if odd := odd or _oversized([name for name, _ in frozen], room):
        log.log(
            logging.WARNING if first_rank() else logging.INFO,
            "frozen parameters are not compared with the network's: %s; compare_frozen=False silences this",
            odd,
        )
        return ()
    size = sum(each.numel() * each.element_size() for _, each in frozen)
    if size > LONG and first_rank():
        log.warning("reading %.1f GB of frozen parameters, to compare them with the network's", size / 1e9)
    for device in {each.device for _, each in frozen if each.is_cuda}:
        torch.cuda.synchronize(device)  # they may be written on a stream that other threads do not wait for
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        digests = pool.map(_digest, [each for _, each in frozen])
        return tuple(Frozen(name, digest) for (name, _), digest in zip(frozen, digests, strict=True))


def _oversized(names: Sequence[str], room: int) -> str:
    """Why a schema cannot hold these parameters, or ""."""
    if len(names) > MOST or sum(len(name.encode()) + WRITTEN for name in names) > room:
        return f"the {len(names)} names do not fit into the schema"
    if any(len(name) > LONGEST for name in names):
        return f"a name has more than {LONGEST} characters"
    return "" if len(set(names)) == len(names) else "two have the same name"


def first_rank() -> bool:
    """True on the rank that logs for all."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def _plain(parameter: nn.Parameter) -> bool:
    """True if the parameter's own memory holds all its numbers. A shard's does not; a tensor subclass may pack them."""
    return type(parameter) is nn.Parameter and parameter.layout is torch.strided and not parameter.is_meta


@torch.no_grad()
def _digest(tensor: Tensor) -> bytes:
    """16 bytes. A tensor on a device, or not contiguous, is copied part by part."""
    about = f"{tuple(tensor.shape)} {tensor.dtype}".encode()
    digest = hashlib.blake2b(about, digest_size=16, person=b"gossipdp frozen")
    for part in parts(tensor.detach()):
        # A single element counts as contiguous with any stride, but only stride 1 can be viewed as bytes.
        # numpy() keeps torch from resizing a storage for ever, so it gets a copy.
        flat = part.to("cpu", copy=True).contiguous().as_strided((part.numel(),), (1,))
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.digest()
