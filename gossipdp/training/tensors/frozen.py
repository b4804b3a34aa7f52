"""Digests of the parameters that a model does not train, so that hosts which build on other ones are told apart.

Adapters of two revisions of a base model, or layers on top of two random ones, would be averaged, and fit neither.
Parameters alone, and such as hold floating-point numbers: buffers move in training, and what is packed is the affair of
the library that packs it. Nothing is gathered, and nothing here may change a number in a tensor.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gossipdp.protocol.schema import MAX_BYTES, Frozen
from gossipdp.training.tensors.schema import plain_name
from gossipdp.training.tensors.streams import STAGED

__all__ = ["frozen_digests"]

log = logging.getLogger("gossipdp.training")

MOST: Final = 16_384
"""parameters that are told of one by one"""
LONGEST: Final = 1024
"""characters of a name that a schema takes"""
WRITTEN: Final = 32
"""bytes that one takes in a schema beside its name, at most"""
THREADS: Final = 4
"""at most, that hash at the same time: hashlib lets others run"""
LONG: Final = 1e9
"""bytes that take so long that it is said"""


def frozen_digests(
    model: nn.Module, room: int = MAX_BYTES, excluded: frozenset[str] = frozenset()
) -> tuple[Frozen, ...]:
    """Of the frozen parameters of `model`, unwrapped; none if there are any that this process does not hold whole.

    Nothing is raised for what cannot be told: the first rank warns that they are not compared.

    Args:
        room: bytes that are left for them in the schema.
        excluded: names of those that are not compared.
    """
    listed = [(plain_name(name), each) for name, each in model.named_parameters() if not each.requires_grad]
    frozen = [(name, each) for name, each in listed if each.is_floating_point() and name not in excluded]
    odd = next((f"{name} is sharded, packed, or on no device" for name, each in frozen if not _plain(each)), "")
    if odd := odd or _untold([name for name, _ in frozen], room):
        log.log(
            logging.WARNING if _first() else logging.INFO,
            "frozen parameters are not compared with the network's: %s; compare_frozen=False keeps this quiet",
            odd,
        )
        return ()
    size = sum(each.numel() * each.element_size() for _, each in frozen)
    if size > LONG and _first():
        log.warning("reading %.1f GB of frozen parameters, for they must be the network's", size / 1e9)
    for device in {each.device for _, each in frozen if each.is_cuda}:
        torch.cuda.synchronize(device)  # what writes them may be on a stream that other threads do not wait for
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        digests = pool.map(_digest, [each for _, each in frozen])
        return tuple(Frozen(name, digest) for (name, _), digest in zip(frozen, digests, strict=True))


def _untold(names: Sequence[str], room: int) -> str:
    """Why a schema cannot hold them, or ""."""
    if len(names) > MOST or sum(len(name.encode()) + WRITTEN for name in names) > room:
        return f"there are {len(names)}, with names too long for all"
    if any(len(name) > LONGEST for name in names):
        return f"a name has more than {LONGEST} characters"
    return "" if len(set(names)) == len(names) else "two have one name"


def _first() -> bool:
    """One rank speaks for all."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def _plain(parameter: nn.Parameter) -> bool:
    """Are its numbers here, all of them, as they are? A shard's are not; a library's own kind of tensor may pack."""
    return type(parameter) is nn.Parameter and parameter.layout is torch.strided and not parameter.is_meta


@torch.no_grad()
def _digest(tensor: Tensor) -> bytes:
    """16 bytes; of what lies on a device, or in another order, a copy of a part at a time is made, and waited for."""
    about = f"{tuple(tensor.shape)} {tensor.dtype}".encode()
    digest = hashlib.blake2b(about, digest_size=16, person=b"gossipdp frozen")
    for part in _parts(tensor.detach()):
        # A single element counts as contiguous whatever its stride, and only one of 1 is viewed as bytes.
        flat = part.cpu().contiguous().as_strided((part.numel(),), (1,))
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.digest()


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Its elements in rows' order, flat, at most STAGED at a time."""
    if tensor.dim() < 2 or tensor.is_contiguous():
        yield from tensor.reshape(-1).split(STAGED)
    elif rows := STAGED // tensor[0].numel():
        yield from (block.reshape(-1) for block in tensor.split(rows))
    else:
        for row in tensor:
            yield from _parts(row)
