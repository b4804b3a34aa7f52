"""Adam's moments in the format of `codecs.moments`, encoded and decoded by torch on the device that holds them.

Nothing here waits for a device. Moments that cannot be kept get a top that is NaN, which `codecs.moments.check`
refuses. Nothing here knows optimizers.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from gossipdp.codecs.blocks import BLOCK
from gossipdp.codecs.moments import LEAST, MOST, MOST_RATIO, STEPS

__all__ = ["Encoded", "decode", "encode"]

SMALLEST: Final = 2.0**-100
"""a smaller scale counts as 0"""


class Encoded(NamedTuple):
    """The parts of a payload in its order. n parameters have b blocks of 256; the last may be shorter."""

    roots: Tensor
    """codes of s, uint8, shape (n,)"""
    tops: Tensor
    """fp32, shape (b,)"""
    ratios: Tensor
    """codes of r, as uint8, shape (n,)"""
    scales: Tensor
    """fp32, shape (b,)"""


def encode(v: Tensor, m: Tensor) -> Encoded:
    """Encode both moments of some blocks.

    Args:
        v, m: exp_avg_sq and exp_avg, fp32, shape (256 b,); used as memory for what is computed. An encoder that needs
            fewer elements passes zeros for the rest.

    Returns:
        The parts. A block with a value that is not finite, or a negative v, has a top that is NaN.
    """
    roots, ratios = v.sqrt_().view(-1, BLOCK), m.view(-1, BLOCK)
    tops = roots.amax(1)
    tops = torch.where(tops.isfinite() & _largest(ratios).isfinite(), tops, torch.nan)
    tops = torch.where(tops > 0.0, tops.clamp(LEAST, MOST), tops)
    divisors = torch.where(tops == 0.0, 1.0, tops)[:, None]
    codes = (roots / divisors).log2_().mul_(STEPS).round_().add_(255.0).clamp_(1.0, 255.0)
    used = roots.sign_()  # 0 only where s is; a mask of booleans would take longer than all the rest
    root_codes = (codes * used).to(torch.uint8)
    # From here on `codes` is s', as the receiver will have it.
    codes.sub_(255.0).mul_(1.0 / STEPS).exp2_().mul_(divisors).clamp_(min=LEAST)
    ratios.div_(codes).clamp_(-MOST_RATIO, MOST_RATIO).mul_(used)
    scales = _largest(ratios).div_(127.0)
    scales = torch.where(scales < SMALLEST, 0.0, scales)
    inverse = torch.where(scales > 0.0, 1.0 / scales, 0.0)
    ratio_codes = ratios.mul_(inverse[:, None]).round_().clamp_(-127.0, 127.0).to(torch.int8).view(torch.uint8)
    return Encoded(root_codes.view(-1), tops, ratio_codes.view(-1), scales)


def decode(encoded: Encoded) -> tuple[Tensor, Tensor]:
    """exp_avg_sq and exp_avg of whole blocks, fp32, shape (256 b,). Any codes give |m| <= 8 sqrt(v).

    Equal bytes give equal bits on every device: it uses a table and operations that IEEE 754 rounds.
    """
    codes = encoded.roots.to(torch.int32)
    levels = torch.exp2(torch.arange(-255, 1, dtype=torch.float64, device="cpu") / STEPS).float()
    levels[0] = 0.0
    roots = levels.to(codes.device).index_select(0, codes).view(-1, BLOCK).mul_(encoded.tops[:, None]).view(-1)
    roots = torch.where(codes > 0, roots.clamp(min=LEAST), roots)
    ratios = encoded.ratios.view(torch.int8).to(torch.float32).view(-1, BLOCK).mul_(encoded.scales[:, None])
    m = ratios.clamp_(-MOST_RATIO, MOST_RATIO).view(-1).mul_(roots)
    return roots.square_(), m


def _largest(rows: Tensor) -> Tensor:
    """The largest magnitude of each row; NaN if there is one."""
    return torch.maximum(rows.amax(1), rows.amin(1).neg_())
