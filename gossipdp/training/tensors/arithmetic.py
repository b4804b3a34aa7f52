"""How values of the flat vector change a tensor in place, and what rounding keeps back (algorithms section 1).

All tensors here are flat and of one length: `target` are elements of the model, `part` fp32 values of the vector, and
`kept` the fp32 residual of a dtype with fewer bits, or None. The result has the same bits on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gossipdp.training.tensors.schema import local, unwrap

__all__ = ["Flat", "add", "add_to_buffer", "load", "load_buffer", "variances"]


def load(target: Tensor, part: Tensor, kept: Tensor | None) -> None:
    """target := part; kept := what rounding leaves over. Equal elements are not written, so fp64 keeps its low bits."""
    target.copy_(torch.where(target.float() == part, target, part.to(target.dtype)))
    if kept is not None:
        torch.sub(part, target.float(), out=kept)


def add(target: Tensor, part: Tensor, kept: Tensor | None) -> None:
    """target += part + kept; kept := what rounding leaves over."""
    if kept is None:
        target.add_(part)
        return
    wanted, before = part + kept, target.float()
    target.copy_(before + wanted)
    torch.sub(wanted, target.float() - before, out=kept)


def load_buffer(target: Tensor, wanted: Tensor, stays: Tensor, kept: Tensor | None) -> None:
    """target := wanted, except where `stays`; kept := what rounding leaves over.

    Args:
        wanted: absolute values, in fp32 or fp64.
        stays: True where the target is right already. No bit of it changes there.
    """
    rounded = wanted.to(target.dtype)
    if kept is not None:
        left = torch.where(wanted.isfinite(), wanted - rounded.float(), 0.0)
        kept.copy_(torch.where(stays, kept, left))
    target.copy_(torch.where(stays, target, rounded))


def add_to_buffer(target: Tensor, part: Tensor, kept: Tensor | None) -> None:
    """As `add`. Where part is 0, no bit changes."""
    still = part == 0.0
    if kept is None:
        target.copy_(torch.where(still, target, target + part))
        return
    wanted, before = part + kept, target.float()
    after = (before + wanted).to(target.dtype)
    kept.copy_(torch.where(still, kept, wanted - (after.float() - before)))
    target.copy_(torch.where(still, target, after))


class Flat:
    """A tensor's elements in row-major order, to be written: itself, or a copy that is put back (channels_last)."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __enter__(self) -> Tensor:
        self._flat = self._tensor.reshape(-1)
        return self._flat

    def __exit__(self, *_: object) -> None:
        if not self._tensor.is_contiguous():
            self._tensor.copy_(self._flat.view(self._tensor.shape))


def variances(model: nn.Module, tensors: list[Tensor]) -> set[int]:
    """Indices of the tensors that are running variances of batch norms: they must not fall below zero."""
    kind = nn.modules.batchnorm._NormBase
    found = {
        module.running_var.data_ptr()
        for module in unwrap(model).modules()
        if isinstance(module, kind) and module.running_var is not None
    }
    return {index for index, tensor in enumerate(tensors) if local(tensor).data_ptr() in found}
