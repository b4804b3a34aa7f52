"""How values of the flat vector change a tensor in place, and what rounding keeps back (algorithms section 1).

All tensors here are flat and of one length: `target` are elements of the model, `part` fp32 values of the vector, and
`kept` the residual of a dtype with fewer bits, or None. A residual is an int16 in units of the element's own last place
over 2^16. A bf16 element and its residual so hold an fp32 number, in the memory that fp32 takes. An optimizer's step
that changes an element's exponent scales its residual, which is at most half a last place. The result has the same bits
on every device.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from gossipdp.training.tensors.schema import local, unwrap

__all__ = ["LOW", "Flat", "add", "add_to_buffer", "leaves_nothing", "load", "load_buffer", "variances", "widened"]

LOW: Final = (torch.bfloat16, torch.float16)
"""dtypes that have a residual"""
STEPS: Final = 2.0**16
"""units of a residual in one last place"""
EXPONENT: Final = 0x7F800000
"""the exponent's bits of an fp32 number"""
SMALLEST: Final = 2.0**-100
"""elements closer to 0 count as large as this: the unit of their residual is no denormal number"""


def _units(target: Tensor) -> Tensor:
    """The unit of each element's residual, in fp32: a power of two."""
    limits = torch.finfo(target.dtype)
    power = target.float().view(torch.int32).bitwise_and_(EXPONENT).view(torch.float32)
    return power.clamp_(min=max(limits.smallest_normal, SMALLEST)).mul_(limits.eps / STEPS)


def widened(target: Tensor, kept: Tensor | None) -> Tensor:
    """target + kept, in fp32; fp64 stays what it is."""
    wide = target if target.dtype == torch.float64 else target.float()
    return wide if kept is None else wide + _units(target).mul_(kept)


def _keep(kept: Tensor, left: Tensor, target: Tensor) -> None:
    """kept := left, the fp32 difference that rounding to `target` has left over."""
    kept.copy_(left.div_(_units(target)).round_().clamp_(-(STEPS / 2), STEPS / 2 - 1))


def leaves_nothing(target: Tensor, part: Tensor) -> bool:
    """True if the dtype of `target` holds `part` exactly, or has no residual. Waits for the device."""
    return target.dtype not in LOW or torch.equal(part.to(target.dtype).float(), part)


def load(target: Tensor, part: Tensor, kept: Tensor | None) -> None:
    """target := part; kept := what rounding leaves over. Equal elements are not written, so fp64 keeps its low bits."""
    target.copy_(torch.where(target.float() == part, target, part.to(target.dtype)))
    if kept is not None:
        _keep(kept, part - target.float(), target)


def add(target: Tensor, part: Tensor, kept: Tensor | None) -> None:
    """target += part + kept; kept := what rounding leaves over."""
    if kept is None:
        target.add_(part)
        return
    before = target.float()
    wanted = _units(target).mul_(kept).add_(part)
    target.copy_(before + wanted)
    _keep(kept, wanted.sub_(target.float().sub_(before)), target)


def load_buffer(target: Tensor, wanted: Tensor, stays: Tensor, kept: Tensor | None) -> None:
    """target := wanted, except where `stays`; kept := what rounding leaves over.

    Args:
        wanted: absolute values, in fp32 or fp64.
        stays: True where the target is right already. No bit of it changes there.
    """
    rounded = wanted.to(target.dtype)
    if kept is not None:
        left = torch.where(wanted.isfinite(), wanted - rounded.float(), 0.0)
        before = kept.clone()
        _keep(kept, left, rounded)
        kept.copy_(torch.where(stays, before, kept))
    target.copy_(torch.where(stays, target, rounded))


def add_to_buffer(target: Tensor, part: Tensor, kept: Tensor | None) -> None:
    """As `add`. Where part is 0, no bit changes."""
    still = part == 0.0
    if kept is None:
        target.copy_(torch.where(still, target, target + part))
        return
    before, unchanged = target.float(), kept.clone()
    wanted = _units(target).mul_(kept).add_(part)
    after = (before + wanted).to(target.dtype)
    _keep(kept, wanted.sub_(after.float().sub_(before)), after)
    kept.copy_(torch.where(still, unchanged, kept))
    target.copy_(torch.where(still, target, after))


class Flat:
    """Elements of a tensor in row-major order, to be written: themselves, or a copy that is put back (channels_last).

    Args:
        first, last: elements [first, last). A copy is of the rows that hold them.
    """

    def __init__(self, tensor: Tensor, first: int, last: int) -> None:
        self._tensor, self._first, self._last = tensor, first, last

    def __enter__(self) -> Tensor:
        return self.read()

    def read(self) -> Tensor:
        """The elements, flat. What is written there reaches the tensor with `__exit__`, if not at once."""
        if self._tensor.is_contiguous():
            return self._tensor.view(-1)[self._first : self._last]
        width = max(1, self._tensor[0].numel())
        lower, upper = self._first // width, -(-self._last // width)
        self._rows = self._tensor[lower:upper]
        self._copy = self._rows.reshape(-1)
        return self._copy[self._first - lower * width : self._last - lower * width]

    def __exit__(self, *_: object) -> None:
        if not self._tensor.is_contiguous():
            self._rows.copy_(self._copy.view(self._rows.shape))


def variances(model: nn.Module, tensors: list[Tensor]) -> set[int]:
    """Indices of the tensors that are running variances of batch norms: they must not fall below zero."""
    kind = nn.modules.batchnorm._NormBase
    found = {
        module.running_var.data_ptr()
        for module in unwrap(model).modules()
        if isinstance(module, kind) and module.running_var is not None
    }
    return {index for index, tensor in enumerate(tensors) if local(tensor).data_ptr() in found}
