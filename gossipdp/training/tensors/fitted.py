"""Buffers that are fitted to one replica, by the kind of their module: pruning masks, and spectral norm's unit vectors.

A mean of masks is no mask, and a mean of u and -u is nothing. Each host keeps its own, and a joiner gets the network's
with the model (see `carried`). Nothing here touches a tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm

from gossipdp.training.tensors.schema import places

__all__ = ["fitted_names"]


def fitted_names(model: nn.Module) -> frozenset[str]:
    """Names of such buffers of `model`, unwrapped. A mask of the script's own looks like any other buffer."""
    return frozenset(name for name, module, key in places(model) if key in _fitted(module))


def _fitted(module: nn.Module) -> Iterator[str]:
    """Keys of such buffers in `module`."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, BasePruningMethod):
            yield f"{hook._tensor_name}_mask"
        elif isinstance(hook, SpectralNorm):
            yield from (f"{hook.name}_u", f"{hook.name}_v")
    if isinstance(module, _SpectralNorm):
        yield from ("_u", "_v")
    # A module that was never imported has no instances, so it need not be imported here.
    sparsity = sys.modules.get("torch.ao.pruning.sparsifier.utils")
    if isinstance(module, getattr(sparsity, "FakeSparsity", ())):
        yield "mask"
