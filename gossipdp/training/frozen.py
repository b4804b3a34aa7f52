"""Digests of the parameters that a model does not train, so that hosts which build on other ones are told apart.

Adapters of two revisions of a base model, or layers on top of two random ones, would be averaged, and fit neither.
Parameters alone, and such as hold floating-point numbers: buffers move in training, and what is packed is the affair of
the library that packs it. Nothing is gathered, and nothing here may change a number in a tensor.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Final

import torch
from torch import Tensor, nn

from gossipdp.protocol.schema import Frozen
from gossipdp.training.schema import plain_name
from gossipdp.training.streams import STAGED

__all__ = ["frozen_digests"]

log = logging.getLogger("gossipdp.training")

MOST: Final = 16_384
"""parameters that are told of one by one"""


def frozen_digests(model: nn.Module) -> tuple[Frozen, ...]:
    """Of the frozen parameters of `model`, unwrapped; none if there are any that this process does not hold whole."""
    listed = [(plain_name(name), each) for name, each in model.named_parameters() if not each.requires_grad]
    frozen = [(name, each) for name, each in listed if each.is_floating_point()]
    odd = next((name for name, each in frozen if not _plain(each)), "")
    if odd or len(frozen) > MOST:
        log.info("frozen parameters are not compared with the network's: %s", odd or f"there are {len(frozen)}")
        return ()
    return tuple(Frozen(name, _digest(each)) for name, each in frozen)


def _plain(parameter: nn.Parameter) -> bool:
    """Are its numbers here, all of them, as they are? A shard's are not; a library's own kind of tensor may pack."""
    return type(parameter) is nn.Parameter and parameter.layout is torch.strided and not parameter.is_meta


@torch.no_grad()
def _digest(tensor: Tensor) -> bytes:
    """16 bytes; on a device a copy of a part at a time is made, and waited for."""
    about = f"{tuple(tensor.shape)} {tensor.dtype}".encode()
    digest = hashlib.blake2b(about, digest_size=16, person=b"gossipdp frozen")
    for part in tensor.detach().reshape(-1).split(STAGED):
        digest.update(part.cpu().view(torch.uint8).numpy())
    return digest.digest()
